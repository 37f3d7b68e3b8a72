"""The way for many buckets: each bucket has an owner among the ranks, and its members travel there, all to all.

It is how the paper's MPC proof has machines evaluate ANNA. An owner runs the ordinary kernels on the tokens it was sent
and returns its share of every sum; a token goes to each owner at most once, whatever the number of tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.distributed.names import owner_of
from annattn.distributed.peers import Peers
from annattn.distributed.wire import Column, pack, row_bytes, unpack
from annattn.kernels import GradientInputs, Order, bucket_sum, choose, newest, newest_call, query_key_gradient
from annattn.kernels.interface import Slope
from annattn.lsh import IGNORED

__all__ = ["Routing", "attend", "columns_back", "columns_forward", "gradients", "route", "sent_bytes"]

_OF_KEYS, _OF_QUERIES = 0, 1  # codes of tables in which a token is another owner's: keys and queries never meet there


@dataclass(frozen=True)
class Columns:
    """What a key and a query carry to an owner besides their codes, and what each gets back."""

    key: Sequence[Column]
    query: Sequence[Column]
    key_reply: Sequence[Column]
    query_reply: Sequence[Column]


def columns_forward(width: int, dtype: torch.dtype) -> Columns:
    """Keys carry their value; queries get a sum and a count."""
    return Columns([(width, dtype)], [], [], [(width, dtype), (1, torch.int64)])


def columns_back(dim: int, width: int, dtype: torch.dtype, *, turns: bool) -> Columns:
    """Keys carry themselves and their value, queries themselves and g_i/C_i with one more column; gradients come back.

    Where queries and keys want none (`turns`), only g_i/C_i travels.
    """
    if not turns:
        return Columns([], [(width, dtype)], [(width, dtype)], [])
    row = (dim, dtype)
    return Columns([row, (width, dtype)], [row, (width + 1, dtype)], [row, (width, dtype)], [row])


@dataclass(frozen=True)
class Routing:
    """Which of this rank's tokens go to which owner, and how many of each rank's come."""

    keys: list[Tensor]
    queries: list[Tensor]
    counts: Tensor
    """(from, to, keys and queries)."""


def route(peers: Peers, query_codes: Tensor, key_codes: Tensor, doing: str) -> Routing:
    """Who goes where; all ranks learn how many."""
    ways = []
    for codes in (key_codes, query_codes):
        flat = codes.flatten(0, 2)
        owner = torch.where(flat < 0, -1, owner_of(flat, peers.size))
        ways.append([(owner == s).any(-1).nonzero()[:, 0] for s in range(peers.size)])
    mine = torch.tensor([[len(k), len(q)] for k, q in zip(*ways, strict=True)], device=key_codes.device)
    return Routing(ways[0], ways[1], peers.gather(mine, doing).cpu())


def sent_bytes(routing: Routing, columns: Columns, tables: int, ranks: int) -> list[int]:
    """How many bytes each rank sends."""
    head = row_bytes([(1 + tables, torch.int64)])
    up = torch.tensor([head + row_bytes(columns.key), head + row_bytes(columns.query)])
    down = torch.tensor([row_bytes(columns.key_reply), row_bytes(columns.query_reply)])
    others = routing.counts * (1 - torch.eye(ranks, dtype=torch.int64))[..., None]
    return ((others * up).sum((1, 2)) + (others * down).sum((0, 2))).tolist()


@dataclass(frozen=True)
class _Here:
    """What an owner was sent, on one line of time, keys before the queries of the same moment; groups never meet."""

    query_codes: Tensor
    key_codes: Tensor
    buckets: int
    keys: list[Tensor]
    queries: list[Tensor]
    key_slots: Tensor
    query_slots: Tensor


def attend(
    peers: Peers, routing: Routing, query_codes: Tensor, key_codes: Tensor, value: Tensor, times: tuple[Tensor, Tensor],
    order: Order, columns: Columns, doing: str, *, keep_newest: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Σ_j c_ij v_j and Σ_j c_ij for this rank's queries; with `keep_newest`, each bucket is its newest key."""
    here = _collect(peers, routing, query_codes, key_codes, times, [value.flatten(0, 2)], [], columns, order, doing)
    (rows,) = here.keys
    if keep_newest:
        positions = newest(here.query_codes, here.key_codes, here.buckets)
        count = (positions >= 0).sum(-1)
        total = choose(newest_call(rows, positions)).newest_mean(rows, positions) * count[..., None]
    else:
        total, count = bucket_sum(here.query_codes, here.key_codes, rows, order, here.buckets, True)
    total, count = total[0, 0, here.query_slots], count[0, 0, here.query_slots, None]
    replies = _return(peers, routing, [], [total, count], columns, doing)[1]
    shape = query_codes.shape[:3]
    found = value.new_zeros(shape.numel(), value.shape[-1])
    met = torch.zeros(shape.numel(), dtype=torch.int64, device=value.device)
    for at, (part, number) in zip(routing.queries, replies, strict=True):
        found[at] += part
        met[at] += number[:, 0]
    return found.reshape(*shape, value.shape[-1]), met.reshape(shape)


def gradients(
    peers: Peers, routing: Routing, query_codes: Tensor, key_codes: Tensor, rows: tuple[Tensor, Tensor, Tensor, Tensor],
    times: tuple[Tensor, Tensor], order: Order, slope: Slope | None, columns: Columns, doing: str, *, keep_newest: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor]:  # fmt: skip
    """The gradients of `attend` for this rank's queries, keys and values.

    `rows` are queries, keys, values and g_i/C_i, the last with one more column if queries and keys want a gradient:
    what a value of 1 would be multiplied with.
    """
    query, key, value, weight = (x.flatten(0, 2) for x in rows)
    width = value.shape[1]
    carried = ([key, value], [query, weight]) if slope is not None else ([], [weight])
    here = _collect(peers, routing, query_codes, key_codes, times, *carried, columns, order, doing)
    push = here.queries[-1]
    to_key: list[Tensor] = []
    to_query: list[Tensor] = []
    positions = None
    pull = push[..., :width].contiguous()
    if keep_newest:
        positions = newest(here.query_codes, here.key_codes, here.buckets)
        like = pull.new_zeros(*here.key_codes.shape[:3], width)
        hits = (positions >= 0).sum(-1, keepdim=True)  # the kernel divides by them, and `weight` is divided already
        grad_value = choose(newest_call(like, positions)).newest_value_gradient(like, positions, pull * hits)
    else:
        grad_value, _ = bucket_sum(here.key_codes, here.query_codes, pull, Order(-order), here.buckets, True)
    if slope is not None:
        ones = torch.ones(*here.query_codes.shape[:3], dtype=torch.int64, device=push.device)
        inputs = GradientInputs(
            here.queries[0], here.keys[0], torch.nn.functional.pad(here.keys[1], (0, 1), value=1.0), push,
            torch.zeros_like(push), ones, slope, order,
            query_codes=None if keep_newest else here.query_codes, key_codes=None if keep_newest else here.key_codes,
            buckets=here.buckets, newest=positions,
        )  # fmt: skip
        turn_query, turn_key = query_key_gradient(
            "newest_gradient" if keep_newest else "gradient", inputs, query_codes.shape[-1]
        )
        to_query, to_key = [turn_query[0, 0, here.query_slots]], [turn_key[0, 0, here.key_slots]]
    to_key.append(grad_value[0, 0, here.key_slots])
    of_keys, of_queries = _return(peers, routing, to_key, to_query, columns, doing)
    grads = [torch.zeros_like(query), torch.zeros_like(key), weight.new_zeros(len(value), width)]
    for at, parts in zip(routing.keys, of_keys, strict=True):
        for grad, part in zip(grads[1:] if slope is not None else grads[2:], parts, strict=True):
            grad[at] += part
    for at, parts in zip(routing.queries, of_queries, strict=True):
        for part in parts:
            grads[0][at] += part
    shaped = [grad.reshape(*like.shape[:3], grad.shape[1]) for grad, like in zip(grads, rows, strict=False)]
    return (shaped[0], shaped[1], shaped[2]) if slope is not None else (None, None, shaped[2])


def _collect(
    peers: Peers, routing: Routing, query_codes: Tensor, key_codes: Tensor, times: tuple[Tensor, Tensor],
    key_rows: list[Tensor], query_rows: list[Tensor], columns: Columns, order: Order, doing: str,
) -> _Here:  # fmt: skip
    """Send tokens to their owners, and lay out those that came."""
    tables = key_codes.shape[-1]
    head = [(1, torch.int64), (tables, torch.int64)]
    key_columns, query_columns = [*head, *columns.key], [*head, *columns.query]
    heads = key_codes.shape[1]
    key_heads = [_moments(times[1], key_codes, heads), key_codes.flatten(0, 2), *key_rows]
    query_heads = [_moments(times[0], query_codes, heads), query_codes.flatten(0, 2), *query_rows]
    parts = [
        torch.cat([pack([x[k] for x in key_heads]), pack([x[q] for x in query_heads])])
        for k, q in zip(routing.keys, routing.queries, strict=True)
    ]
    counts = routing.counts[:, peers.rank].tolist()
    sizes = [(nk * row_bytes(key_columns), nq * row_bytes(query_columns)) for nk, nq in counts]
    found = peers.exchange(parts, [sum(size) for size in sizes], doing)
    keys, queries = [], []
    for raw, size, (nk, nq) in zip(found, sizes, counts, strict=True):
        of_keys, of_queries = raw.split(list(size))
        keys.append(unpack(of_keys, nk, key_columns))
        queries.append(unpack(of_queries, nq, query_columns))
    key_moments, key_all, *key_carried = (torch.cat(column) for column in zip(*keys, strict=True))
    query_moments, query_all, *query_carried = (torch.cat(column) for column in zip(*queries, strict=True))
    return _lay_out(peers, order, (key_moments, key_all, key_carried), (query_moments, query_all, query_carried))


def _moments(times: Tensor, codes: Tensor, heads: int) -> Tensor:
    """Group (batch row and key head) and time of every token as one number; times are below 2^40."""
    batch, of_all, n, _ = codes.shape
    share = of_all // heads if heads else 1
    group = torch.arange(batch * heads, device=codes.device).reshape(batch, heads).repeat_interleave(share, 1)
    return ((group[..., None] << 40) + times.expand(batch, of_all, n)).reshape(-1, 1)


def _lay_out(
    peers: Peers, order: Order, of_keys: tuple[Tensor, Tensor, list[Tensor]],
    of_queries: tuple[Tensor, Tensor, list[Tensor]],
) -> _Here:  # fmt: skip
    (key_moments, key_codes, key_rows), (query_moments, query_codes, query_rows) = of_keys, of_queries
    device, nk = key_codes.device, len(key_codes)
    codes, moments = torch.cat([key_codes, query_codes]), torch.cat([key_moments, query_moments])[:, 0]
    mine = (codes >= 0) & (owner_of(codes, peers.size) == peers.rank)
    # Codes of different groups become different: numbered twice, so that nothing overflows.
    group = (moments >> 40)[:, None].expand_as(codes)[mine]
    _, number = torch.unique(codes[mine], return_inverse=True)
    most = int(number.max()) + 1 if len(number) else 1
    distinct, number = torch.unique(group * most + number, return_inverse=True)
    fill = torch.full((len(codes), 1), _OF_KEYS, device=device)
    fill[nk:] = _OF_QUERIES
    named = fill.expand_as(codes).clone()
    named[mine] = number + 2
    if order == Order.ALL:
        key_slots, query_slots = torch.arange(nk, device=device), torch.arange(len(codes) - nk, device=device)
        lengths = nk, len(codes) - nk
    else:
        time = (moments & (2**40 - 1)) * 2
        time[nk:] += 1
        slots = torch.argsort(time, stable=True).argsort()
        key_slots, query_slots = slots[:nk], slots[nk:]
        lengths = len(codes), len(codes)

    def placed(rows: Tensor, slots: Tensor, length: int, value: int) -> Tensor:
        out = rows.new_full((1, 1, length, rows.shape[1]), value)
        out[0, 0, slots] = rows
        return out

    return _Here(
        placed(named[nk:], query_slots, lengths[1], IGNORED),
        placed(named[:nk], key_slots, lengths[0], IGNORED),
        len(distinct) + 2,
        [placed(rows, key_slots, lengths[0], 0) for rows in key_rows],
        [placed(rows, query_slots, lengths[1], 0) for rows in query_rows],
        key_slots,
        query_slots,
    )


def _return(
    peers: Peers, routing: Routing, to_key: list[Tensor], to_query: list[Tensor], columns: Columns, doing: str
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Send each rank what its tokens get; returns what this rank's got from each owner."""
    counts = routing.counts[:, peers.rank]
    key_parts = [x.split(counts[:, 0].tolist()) for x in to_key]
    query_parts = [x.split(counts[:, 1].tolist()) for x in to_query]
    nothing = torch.empty(0, dtype=torch.uint8, device=routing.keys[0].device)
    parts = [pack([nothing, *(x[s] for x in key_parts), *(x[s] for x in query_parts)]) for s in range(peers.size)]
    of_key, of_query = row_bytes(columns.key_reply), row_bytes(columns.query_reply)
    sizes = [(len(k) * of_key, len(q) * of_query) for k, q in zip(routing.keys, routing.queries, strict=True)]
    found = peers.exchange(parts, [sum(size) for size in sizes], doing)
    keys, queries = [], []
    for raw, size, k, q in zip(found, sizes, routing.keys, routing.queries, strict=True):
        for_keys, for_queries = raw.split(list(size))
        keys.append(unpack(for_keys, len(k), columns.key_reply))
        queries.append(unpack(for_queries, len(q), columns.query_reply))
    return keys, queries
