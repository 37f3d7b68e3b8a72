"""Bucket primitives on a CPU, compiled by Numba: cuts the work into pieces, and lets `run_pieces` share them out.

Pieces are of fixed size and every sum has a fixed order, so results are the same to the bit for any number of threads.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from annattn.kernels import torch_backend
from annattn.kernels.codes import heads_and_shares
from annattn.kernels.compiled import say_if_slow
from annattn.kernels.numba_buckets import divide_rows, fill, first_lost, newest, number_codes, read, scan
from annattn.kernels.numba_hash import hyperplane_codes, padded_columns
from annattn.kernels.threads import run_pieces
from annattn.lsh import NO_BUCKET, Hasher, Hyperplane

__all__ = ["average", "collect", "equal_rows", "hash_pair", "latest", "unsupported_reasons"]

_ROWS = 2048  # rows hashed or read in one piece
_BLOCK = 8192  # sources put into buckets in one piece

Run = Callable[[Callable[[int], object], int], None]


def unsupported_reasons(value: Tensor) -> list[str]:
    """Why this backend cannot run on tensors like this one."""
    return [] if value.device.type == "cpu" else [f"tensors are on {value.device}, not on the CPU"]


def hash_pair(hasher: Hasher, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of queries and keys, comparable with each other."""
    fast = isinstance(hasher.family, Hyperplane) and hasher.buckets is not None and query.ndim == key.ndim == 4
    if not fast or torch.float64 in (query.dtype, key.dtype):
        return torch_backend.hash_pair(hasher, query, key)
    return _hyperplane_codes(hasher, query), _hyperplane_codes(hasher, key)


def equal_rows(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes in one table that are equal exactly when rows are."""
    return torch_backend.equal_rows(query, key)


def average(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j / Σ_j c_ij and Σ_j c_ij: see `torch_backend.average`."""
    total, count = collect(target_codes, source_codes, value, order, buckets, one_table_at_a_time)
    heads, share, _ = heads_and_shares(target_codes, source_codes)
    n, m = target_codes.shape[2], source_codes.shape[2]
    targets, sources, flat, counts = target_codes.numpy(), source_codes.numpy(), total.numpy(), count.numpy()

    def divide(piece: int) -> None:
        batch, head = divmod(piece, heads * share)
        lost = first_lost(sources[batch, head // share], NO_BUCKET)
        spoiled = targets[batch, head, :, 0] == NO_BUCKET
        if lost < m:
            spoiled[0 if order == 0 else max(0, lost - (m - n)) :] = True
        divide_rows(flat[batch, head].reshape(-1), counts[batch, head], spoiled, 0, n, total.shape[-1])

    if total.numel():
        run_pieces(divide, target_codes.shape[0] * heads * share)
    return total, count


def collect(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j and Σ_j c_ij: see `torch_backend.collect`."""
    heads, share, _ = heads_and_shares(target_codes, source_codes)
    batch, _, n, tables = target_codes.shape
    m, width = source_codes.shape[2], value.shape[-1]
    if not target_codes.numel() or not source_codes.numel():
        return value.new_zeros(*target_codes.shape[:3], width), torch.zeros(target_codes.shape[:3], dtype=torch.int64)
    total = torch.empty(*target_codes.shape[:3], width, dtype=value.dtype)
    count = torch.empty(target_codes.shape[:3], dtype=torch.int64)
    targets = target_codes.contiguous().numpy().reshape(batch, heads, -1, n, tables)
    sources = source_codes.contiguous().numpy().reshape(batch, heads, -1, m, tables)
    flat, base, (_, _, stride, _) = _flat(value)
    chunks = [(table, 1) for table in range(tables)] if one_table_at_a_time else [(0, tables)]

    def one_group(group: int, run: Run) -> None:
        b, h = divmod(group, heads)
        into, counts = total[b].numpy().reshape(heads, -1)[h], count[b].numpy().reshape(heads, share, n)[h]
        first = h * sources.shape[2]
        bases = np.array(
            [base(b, first + head) for head in range(sources.shape[2])],
            dtype=np.int64,
        )
        group_targets, group_sources, slots = targets[b, h], sources[b, h], buckets
        if not 0 < buckets <= 4 * (n + m):
            group_targets, group_sources, slots = _numbered(group_targets, group_sources, run)
        for first_table, count_tables in chunks:
            _one_chunk(
                run, group_targets, group_sources, (first_table, count_tables), slots,
                (flat, bases, stride, width), order, into, counts,
            )  # fmt: skip

    groups = batch * heads
    with say_if_slow("collect", value.dtype, order == 0):
        if groups >= torch.get_num_threads():
            run_pieces(lambda group: one_group(group, _serially), groups)
        else:
            for group in range(groups):
                one_group(group, run_pieces)
    return total, count


def latest(target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
    """Per table the newest source in a causal target's bucket: see `torch_backend.latest`."""
    heads, _, _ = heads_and_shares(target_codes, source_codes)
    batch, _, n, tables = target_codes.shape
    m = source_codes.shape[2]
    found = torch.full(target_codes.shape, -1, dtype=torch.int64)
    if not target_codes.numel() or not source_codes.numel():
        return found
    targets = target_codes.contiguous().numpy().reshape(batch * heads, -1, n, tables)
    sources = source_codes.contiguous().numpy().reshape(batch * heads, 1, m, tables)
    into = found.numpy().reshape(targets.shape)
    slots = [buckets] * len(targets)
    if not 0 < buckets <= 4 * (n + m):
        numbered = [_numbered(t, s, run_pieces) for t, s in zip(targets, sources, strict=True)]
        targets, sources, slots = zip(*numbered, strict=True)

    def one(piece: int) -> None:
        group, table = divmod(piece, tables)
        newest(targets[group], sources[group][0], table, max(slots[group], 1), m - n, into[group])

    with say_if_slow("latest"):
        run_pieces(one, batch * heads * tables)
    return found


def _one_chunk(run, targets, sources, chunk, slots, values, order, total, count) -> None:
    """Add the tables of one chunk to the totals of one group: fill, then read; causal, fill and read in one scan."""
    first_table, tables = chunk
    flat, bases, stride, width = values
    share, n, _ = targets.shape
    heads, m, _ = sources.shape
    # As many blocks as hold no more sums than there are values, whatever the threads. Sums are kept in float64, so
    # that they do not drift however many values a bucket holds.
    blocks = max(1, m // max(_BLOCK, 2 * tables * slots))
    edges = [m * block // blocks for block in range(blocks + 1)]
    sums = np.zeros((blocks, tables, slots * width))
    tally = np.zeros((blocks, tables, slots), np.int64)

    def fill_one(piece: int) -> None:
        block, table = divmod(piece, tables)
        begin, end = edges[block], edges[block + 1]
        if order < 0:
            begin, end = m - end, m - begin
        for head in range(heads):
            codes = sources[head]
            fill(
                codes,
                first_table + table,
                flat,
                bases[head],
                stride,
                width,
                begin,
                end,
                sums[block, table],
                tally[block, table],
            )

    if order == 0:
        run(fill_one, blocks * tables)
        whole, counts = sums.sum(0).astype(flat.dtype), tally.sum(0)
        pieces = -(-n // _ROWS)

        def read_one(piece: int) -> None:
            head, part = divmod(piece, pieces)
            stop = min((part + 1) * _ROWS, n)
            into = total[head * n * width : (head + 1) * n * width]
            read(targets[head], first_table, whole.reshape(-1), counts, width, part * _ROWS, stop, into, count[head])

        run(read_one, share * pieces)
        return
    if blocks > 1:
        run(fill_one, (blocks - 1) * tables)
        # A block starts from the sums of those before it.
        sums[1:], tally[1:] = np.cumsum(sums[:-1], 0), np.cumsum(tally[:-1], 0)
        sums[0], tally[0] = 0, 0
    horizon = m - n if order > 0 else 0
    if first_table == 0 and horizon < 0:
        # Targets before the first source see nothing, and no scan comes by.
        total.reshape(share, n, width)[:, :-horizon] = 0
        count[:, :-horizon] = 0

    def scan_one(block: int) -> None:
        span = (edges[block], edges[block + 1], block == blocks - 1)
        scan(
            targets, sources, first_table, flat, bases, stride, width, span, horizon, order < 0,
            sums[block].reshape(-1), tally[block], total, count,
        )  # fmt: skip

    run(scan_one, blocks)


def _numbered(targets: np.ndarray, sources: np.ndarray, run: Run) -> tuple[np.ndarray, np.ndarray, int]:
    """The codes of one group replaced by numbers from 0, and how many the fullest table needs."""
    tables = targets.shape[-1]
    flat_targets, flat_sources = targets.reshape(-1, tables), sources.reshape(-1, tables)
    new_targets, new_sources = np.empty_like(flat_targets), np.empty_like(flat_sources)
    used = [0] * tables

    def number(table: int) -> None:
        used[table] = number_codes(flat_targets, flat_sources, table, new_targets, new_sources)

    run(number, tables)
    return new_targets.reshape(targets.shape), new_sources.reshape(sources.shape), max(1, *used)


def _hyperplane_codes(hasher: Hasher, x: Tensor) -> Tensor:
    hasher._check(x)
    x = x.detach().float()
    batch, heads, n, _ = x.shape
    codes = torch.empty(batch, heads, n, hasher.tables, dtype=torch.int64)
    if not codes.numel():
        return codes
    flat, base, (_, _, stride, step) = _flat(x, any_step=True)
    into = codes.numpy()
    columns, longest = padded_columns(hasher.parameters[0].numpy())
    pieces = -(-n // _ROWS)

    def one(piece: int) -> None:
        head, part = divmod(piece, pieces)
        b, h = divmod(head, heads)
        stop = min((part + 1) * _ROWS, n)
        hyperplane_codes(
            flat, base(b, h), stride, step, columns, longest, hasher.tables, hasher.hashes, into[b, h],
            part * _ROWS, stop,
        )  # fmt: skip

    with say_if_slow("hash"):
        run_pieces(one, batch * heads * pieces)
    return codes


def _flat(x: Tensor, *, any_step: bool = False):
    """The storage of a 4-axis tensor as one flat array, where the rows of a head start in it, and its strides."""
    x = x.detach()
    if (x.stride(-1) != 1 and not any_step) or min(x.stride(), default=0) < 0:
        x = x.contiguous()
    strides, offset = x.stride(), x.storage_offset()
    if not x.numel():
        return x.new_empty(1).numpy(), lambda b, h: 0, strides
    size = offset + sum((length - 1) * stride for length, stride in zip(x.shape, strides, strict=True)) + 1
    flat = x.as_strided((size,), (1,), 0).numpy()
    return flat, lambda b, h: offset + b * strides[0] + h * strides[1], strides


def _serially(work: Callable[[int], object], count: int) -> None:
    for piece in range(count):
        work(piece)
