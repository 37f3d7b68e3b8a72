"""The way whose traffic does not depend on the length: ranks add up what their buckets hold, and read the sum.

The rows of the tables, one per batch row, head, table and bucket, are cut into ranges, and each rank owns one. It is
sent that range of every rank's state, adds up in the order of the ranks, and sends each rank the sum of the others it
may see: all of them, those before it (causal), or those after it (the backward pass of causal attention).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from annattn.distributed.peers import Peers
from annattn.distributed.wire import Column, pack, row_bytes, unpack
from annattn.kernels import Order, bucket_sum
from annattn.kernels.codes import heads_and_shares

__all__ = ["add_up_others", "fill", "fill_outer", "read", "read_outer", "sent_bytes"]


def sent_bytes(rows: int, columns: Sequence[Column], order: Order, ranks: int) -> list[int]:
    """How many bytes each rank sends in `add_up_others`.

    >>> sent_bytes(8, [(3, torch.float32), (1, torch.int64)], Order.ALL, 2)
    [160, 160]
    """
    each, ranges = row_bytes(columns), _ranges(rows, ranks)
    sent = []
    for rank in range(ranks):
        up = sum(ranges[s] for s in range(ranks) if s != rank) if _gives(rank, order, ranks) else 0
        down = ranges[rank] * sum(_takes(s, order, ranks) for s in range(ranks) if s != rank)
        sent.append(each * (up + down))
    return sent


def add_up_others(peers: Peers, tensors: Sequence[Tensor], order: Order, doing: str) -> list[Tensor]:
    """The sums of these tensors (rows, width) over the other ranks that this one may see, in the order of the ranks."""
    rows = len(tensors[0])
    columns = [(x.shape[1], x.dtype) for x in tensors]
    ranges, each = _ranges(rows, peers.size), row_bytes(columns)
    me, nothing = peers.rank, tensors[0].new_empty(0, dtype=torch.uint8)
    starts = [sum(ranges[:s]) for s in range(peers.size)]
    cut = [slice(start, start + length) for start, length in zip(starts, ranges, strict=True)]
    gives = [_gives(s, order, peers.size) for s in range(peers.size)]
    takes = [_takes(s, order, peers.size) for s in range(peers.size)]
    up = [pack([x[part] for x in tensors]) if gives[me] else nothing for part in cut]
    found = peers.exchange(up, [ranges[me] * each if given else 0 for given in gives], doing)
    theirs = [unpack(raw, ranges[me], columns) if given else None for raw, given in zip(found, gives, strict=True)]
    answers = _sums(theirs, [x[cut[me]] for x in tensors], order)
    down = [pack(answer) if taken else nothing for answer, taken in zip(answers, takes, strict=True)]
    replies = peers.exchange(down, [length * each if takes[me] else 0 for length in ranges], doing)
    if not takes[me]:
        return [torch.zeros_like(x) for x in tensors]
    parts = [unpack(raw, length, columns) for raw, length in zip(replies, ranges, strict=True)]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _sums(theirs: Sequence[list[Tensor] | None], like: Sequence[Tensor], order: Order) -> list[list[Tensor]]:
    """For each rank the sum over the others it may see: over those before, those after, or both."""
    answers = [[torch.zeros_like(x) for x in like] for _ in theirs]

    def run(ranks: Sequence[int]) -> None:
        # In float64, so that how many ranks there are hardly matters.
        so_far = [x.new_zeros(x.shape, dtype=torch.float64 if x.is_floating_point() else x.dtype) for x in like]
        for rank in ranks:
            for answer, total in zip(answers[rank], so_far, strict=True):
                answer += total
            held = theirs[rank]
            if held is not None:
                for total, x in zip(so_far, held, strict=True):
                    total += x

    if order != Order.MIRRORED:
        run(range(len(theirs)))
    if order != Order.CAUSAL:
        run(range(len(theirs) - 1, -1, -1))
    return answers


def _ranges(rows: int, ranks: int) -> list[int]:
    return [rows * (s + 1) // ranks - rows * s // ranks for s in range(ranks)]


def _gives(rank: int, order: Order, ranks: int) -> bool:
    """Whether some other rank may see this one's state."""
    return {Order.ALL: ranks > 1, Order.CAUSAL: rank < ranks - 1, Order.MIRRORED: rank > 0}[order]


def _takes(rank: int, order: Order, ranks: int) -> bool:
    """Whether this rank may see some other's state."""
    return {Order.ALL: ranks > 1, Order.CAUSAL: rank > 0, Order.MIRRORED: rank < ranks - 1}[order]


def fill(codes: Tensor, rows: Tensor, heads: int, bound: int) -> tuple[Tensor, Tensor]:
    """Σ rows and their number per bucket, as (batch · heads · tables · bound, width) and (..., 1)."""
    batch, _, _, tables = codes.shape
    every = torch.arange(bound, device=codes.device).expand(batch, heads, bound)[..., None].contiguous()
    sums, counts = [], []
    for table in range(tables):
        total, count = bucket_sum(every, codes[..., table : table + 1], rows, Order.ALL, bound, False)
        sums.append(total)
        counts.append(count)
    return torch.stack(sums, 2).flatten(0, 3), torch.stack(counts, 2).flatten()[:, None]


def read(state: Tensor, codes: Tensor, heads: int, bound: int) -> Tensor:
    """Over the tables, the sum of the rows of these buckets; codes may have a multiple of the heads."""
    batch, of_all, n, tables = codes.shape
    share = of_all // heads if heads else 1
    head = torch.arange(batch * heads, device=codes.device).reshape(batch, heads).repeat_interleave(share, 1)
    found = torch.zeros(batch, of_all, n, state.shape[1], dtype=state.dtype, device=state.device)
    if not found.numel() or not len(state):
        return found
    for table in range(tables):
        code = codes[..., table]
        place = (head[..., None] * tables + table) * bound + code.clamp(min=0)
        rows = state[place.flatten()].reshape(found.shape)
        found += rows.masked_fill_((code < 0)[..., None], 0)
    return found


def fill_outer(codes: Tensor, left: Tensor, right: Tensor, heads: int, bound: int) -> Tensor:
    """Σ left ⊗ right per bucket, flattened: (batch · heads · tables · bound, left width · right width)."""
    batch, _, _, tables = codes.shape
    state = left.new_zeros(batch, heads, tables, bound, left.shape[-1], right.shape[-1])
    for b, h, table, mine, runs in _runs(codes, heads):
        a, c = (x[b, mine].flatten(0, 1) for x in (left, right))
        for code, members in runs:
            state[b, h, table, code] = a[members].mT @ c[members]
    return state.reshape(batch * heads * tables * bound, left.shape[-1] * right.shape[-1])


def read_outer(state: Tensor, codes: Tensor, left: Tensor, heads: int, bound: int) -> Tensor:
    """Σ over the tables of left · (Σ left' ⊗ right') of the bucket: (batch, heads of the codes, n, right width)."""
    batch, of_all, n, tables = codes.shape
    width = left.shape[-1]
    out_width = state.shape[1] // max(width, 1)
    state = state.reshape(batch, heads, tables, bound, width, out_width)
    found = left.new_zeros(batch, heads, of_all // max(heads, 1) * n, out_width)
    for b, h, table, mine, runs in _runs(codes, heads):
        a = left[b, mine].flatten(0, 1)
        for code, members in runs:
            found[b, h, members] += a[members] @ state[b, h, table, code]
    return found.reshape(batch, of_all, n, out_width)


def _runs(codes: Tensor, heads: int):
    """Per batch row, head and table: the heads of the codes it serves, and each bucket with the rows in it."""
    _, share, _ = heads_and_shares(codes, codes[:, :heads])
    for b in range(codes.shape[0]):
        for h in range(heads):
            mine = slice(h * share, (h + 1) * share)
            flat = codes[b, mine].flatten(0, 1)
            for table in range(codes.shape[3]):
                ordered, place = torch.sort(flat[:, table], stable=True)
                code, size = torch.unique_consecutive(ordered, return_counts=True)
                members = place.split(size.tolist())
                there = [(int(c), at) for c, at in zip(code.tolist(), members, strict=True) if c >= 0]
                yield b, h, table, mine, there
