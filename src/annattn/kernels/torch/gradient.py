"""The gradient for queries and keys: that of the collision probability, estimated on the pairs that did collide.

A hard collision has no derivative. Its expectation has one: with x the cosine of query i and key j, z hashes and p(x)
the collision probability of one, E[c_ij] = ℓ p(x)^z, whose derivative c_ij·z·p'(x)/p(x) estimates without bias. So
dL/dx_ij = c_ij · w(x_ij) · g_i·(v_j − out_i) / C_i with g the gradient of the output and C_i = Σ_j c_ij.

Three routes to the same sums: all pairs at once (short inputs), bucket by bucket, and pair by pair for buckets too
small to be worth a matrix product. With a constant w, large buckets need no pairs at all: Σ_j k_j v_jᵀ and Σ_j k_j do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.interface import GradientInputs, Order, Slope
from annattn.lsh.rows import directions_and_lengths

__all__ = ["collision_gradient", "newest_gradient"]

_ALL_PAIRS = 1024**2  # up to this many query-key pairs per head, comparing all of them beats sorting into buckets
_SMALL = 1024  # pairs of a bucket below which it joins the list of single pairs
_LIST = 2**16  # single pairs handled at a time
_CHUNK = 128  # rows of a bucket in a causal pass, or queries against all keys of a bucket otherwise


@dataclass(frozen=True)
class _Rows:
    """What the sums need of one group: unit queries and keys, values, g_i/C_i and g_i·out_i/C_i."""

    query: Tensor
    key: Tensor
    value: Tensor
    weight: Tensor
    level: Tensor

    def pick(self, queries: Tensor, keys: Tensor) -> "_Rows":
        """Copies of these rows."""
        return _Rows(self.query[queries], self.key[keys], self.value[keys], self.weight[queries], self.level[queries])

    def part(self, i: slice, j: slice) -> "_Rows":
        """Views of these rows."""
        return _Rows(self.query[i], self.key[j], self.value[j], self.weight[i], self.level[i])


def collision_gradient(inputs: GradientInputs) -> tuple[Tensor, Tensor]:
    """The gradients of `bucket_mean` for queries and keys, by whichever route is cheapest."""
    assert inputs.query_codes is not None
    assert inputs.key_codes is not None
    query_codes, key_codes, slope = inputs.query_codes, inputs.key_codes, inputs.slope
    n, m = inputs.query.shape[2], inputs.key.shape[2]

    def of_group(batch: int, head: int, mine: slice, rows: _Rows) -> tuple[Tensor, Tensor]:
        horizon = None
        if inputs.order == Order.CAUSAL:
            horizon = (torch.arange(n, device=rows.query.device) + (m - n)).repeat(mine.stop - mine.start)
        route = _all_pairs if len(rows.query) * m <= _ALL_PAIRS else _by_bucket
        return route(rows, query_codes[batch, mine].flatten(0, 1), key_codes[batch, head], horizon, slope)

    return _by_group(inputs, of_group)


def newest_gradient(inputs: GradientInputs) -> tuple[Tensor, Tensor]:
    """The same for `newest_mean`, whose pairs are each query with the newest key of each of its buckets."""
    assert inputs.newest is not None
    newest, slope = inputs.newest, inputs.slope

    def of_group(batch: int, head: int, mine: slice, rows: _Rows) -> tuple[Tensor, Tensor]:
        at = newest[batch, mine].flatten(0, 1)
        sums = _Sums(rows)
        sums.add_pairs((at >= 0).nonzero()[:, 0], at[at >= 0], slope)
        return sums.query, sums.key

    return _by_group(inputs, of_group)


def _by_group(
    inputs: GradientInputs, of_group: Callable[[int, int, slice, "_Rows"], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """The gradient for unit rows, one key head of one batch row at a time, made one for the rows as they are."""
    dtype = inputs.grad.dtype
    grad_query, grad_key = (torch.zeros_like(x, dtype=dtype) for x in (inputs.query, inputs.key))
    if not inputs.query.numel() or not inputs.key.numel():
        return grad_query, grad_key
    query, query_length = directions_and_lengths(inputs.query.to(dtype))
    key, key_length = directions_and_lengths(inputs.key.to(dtype))
    weight, level = _scaled(inputs.grad, inputs.out, inputs.count)
    for batch, head, mine, rows in _groups(query, key, inputs.value.to(dtype), weight, level):
        to_query, to_key = of_group(batch, head, mine, rows)
        grad_query[batch, mine] = to_query.reshape(grad_query[batch, mine].shape)
        grad_key[batch, head] = to_key
    return _tangent(grad_query, query, query_length), _tangent(grad_key, key, key_length)


def _groups(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, level: Tensor
) -> Iterator[tuple[int, int, slice, _Rows]]:
    """Every key head of every batch row, with the query heads it serves and the rows of both."""
    heads, share, _ = heads_and_shares(query, key)
    for batch in range(query.shape[0]):
        for head in range(heads):
            mine = slice(head * share, (head + 1) * share)
            unit, push, height = (x[batch, mine].flatten(0, 1) for x in (query, weight, level))
            yield batch, head, mine, _Rows(unit, key[batch, head], value[batch, head], push, height)


def _scaled(grad: Tensor, out: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """g_i/C_i and g_i·out_i/C_i; an output that is not finite pulls on nothing."""
    weight = grad / count[..., None].clamp(min=1)
    level = (weight * out.to(grad.dtype).nan_to_num(0, 0, 0)).sum(-1)
    return weight, level


def _tangent(grad: Tensor, unit: Tensor, norm: Tensor) -> Tensor:
    """From the unit vector to the vector: only what turns it counts."""
    return (grad - (grad * unit).sum(-1, keepdim=True) * unit) / norm


class _Sums:
    """dL/dq̂ and dL/dk̂ of one group while they are added up."""

    def __init__(self, rows: _Rows) -> None:
        self.rows = rows
        self.query, self.key = torch.zeros_like(rows.query), torch.zeros_like(rows.key)

    def add_pairs(self, queries: Tensor, keys: Tensor, slope: Slope) -> None:
        """One term for each listed pair."""
        for i, j in zip(queries.split(_LIST), keys.split(_LIST), strict=True):
            part = self.rows.pick(i, j)
            push = (part.weight * part.value).sum(-1) - part.level
            push = (push * slope((part.query * part.key).sum(-1)))[:, None]
            self.query.index_add_(0, i, push * part.key)
            self.key.index_add_(0, j, push * part.query)


def _all_pairs(
    rows: _Rows, query_codes: Tensor, key_codes: Tensor, horizon: Tensor | None, slope: Slope
) -> tuple[Tensor, Tensor]:
    shared = torch.zeros(len(rows.query), len(rows.key), dtype=rows.query.dtype, device=rows.query.device)
    for q, k in zip(query_codes.unbind(-1), key_codes.unbind(-1), strict=True):
        shared += (q[:, None] == k) & (k >= 0)
    if horizon is not None:
        shared *= torch.arange(len(rows.key), device=shared.device) <= horizon[:, None]
    push = shared * (rows.weight @ rows.value.mT - rows.level[:, None])
    push = torch.where(shared > 0, push * slope(rows.query @ rows.key.mT), 0)
    return push @ rows.key, push.mT @ rows.query


def _by_bucket(
    rows: _Rows, query_codes: Tensor, key_codes: Tensor, horizon: Tensor | None, slope: Slope
) -> tuple[Tensor, Tensor]:
    sums = _Sums(rows)
    for table in range(query_codes.shape[-1]):
        queries, keys, buckets = _sorted(query_codes[:, table], key_codes[:, table], horizon)
        # Members of a bucket side by side: one gather and one scatter per table instead of one per bucket.
        part = rows.pick(queries, keys)
        to_query, to_key = torch.zeros_like(part.query), torch.zeros_like(part.key)
        small_queries, small_keys = [], []
        for i, j in buckets:
            if (i.stop - i.start) * (j.stop - j.start) >= _SMALL:
                seen = None if horizon is None else horizon[queries[i]]
                to_query[i], to_key[j] = _one_bucket(part.part(i, j), keys[j], seen, slope)
                continue
            pairs = queries[i].repeat_interleave(j.stop - j.start), keys[j].repeat(i.stop - i.start)
            if horizon is not None:
                seen = pairs[1] <= horizon[pairs[0]]
                pairs = pairs[0][seen], pairs[1][seen]
            small_queries.append(pairs[0])
            small_keys.append(pairs[1])
        sums.query.index_add_(0, queries, to_query)
        sums.key.index_add_(0, keys, to_key)
        if small_queries:
            sums.add_pairs(torch.cat(small_queries), torch.cat(small_keys), slope)
    return sums.query, sums.key


def _sorted(
    query_codes: Tensor, key_codes: Tensor, horizon: Tensor | None
) -> tuple[Tensor, Tensor, list[tuple[slice, slice]]]:
    """Queries and keys in order of bucket, then time, and where each bucket that has both lies among them."""
    in_time = torch.arange(len(query_codes), device=query_codes.device)
    if horizon is not None:
        in_time = horizon.argsort(stable=True)
    queries = in_time[query_codes[in_time].argsort(stable=True)]
    keys = key_codes.argsort(stable=True)
    where = _runs(key_codes[keys])
    buckets = [(i, where[name]) for name, i in _runs(query_codes[queries]).items() if name >= 0 and name in where]
    return queries, keys, buckets


def _runs(codes: Tensor) -> dict[int, slice]:
    """Where each code lies in a sorted list of them."""
    names, counts = torch.unique_consecutive(codes, return_counts=True)
    ends = counts.cumsum(0).tolist()
    return {
        name: slice(end - count, end) for name, end, count in zip(names.tolist(), ends, counts.tolist(), strict=True)
    }


def _one_bucket(part: _Rows, keys: Tensor, horizon: Tensor | None, slope: Slope) -> tuple[Tensor, Tensor]:
    """The sums over the pairs of one bucket whose members are given in order of time."""
    dim, width = part.key.shape[1], part.value.shape[1]
    # Multiply-adds of all pairs, and of the outer products that do without them.
    of_pairs = len(part.query) * len(part.key) * (width + 2 * dim)
    of_products = 2 * (len(part.query) + len(part.key)) * dim * width
    if slope.constant is None or (horizon is None and of_pairs < of_products):
        return _pairs_of_bucket(part, keys, horizon, slope)
    if horizon is not None:
        return _causal_bucket(part, keys, horizon, slope)
    to_query = part.weight @ (part.value.mT @ part.key) - part.level[:, None] * part.key.sum(0)
    to_key = part.value @ (part.weight.mT @ part.query) - part.level @ part.query
    return slope.constant * to_query, slope.constant * to_key


def _pairs_of_bucket(part: _Rows, keys: Tensor, horizon: Tensor | None, slope: Slope) -> tuple[Tensor, Tensor]:
    to_query, to_key = torch.empty_like(part.query), torch.zeros_like(part.key)
    for at in torch.arange(len(part.query), device=part.query.device).split(_CHUNK):
        here = slice(int(at[0]), int(at[-1]) + 1)
        push = part.weight[here] @ part.value.mT - part.level[here, None]
        push *= slope.constant if slope.constant is not None else slope(part.query[here] @ part.key.mT)
        if horizon is not None:
            push = push * (keys <= horizon[here, None])
        to_query[here] = push @ part.key
        to_key += push.mT @ part.query[here]
    return to_query, to_key


def _causal_bucket(part: _Rows, keys: Tensor, horizon: Tensor, slope: Slope) -> tuple[Tensor, Tensor]:
    """Linear in the size of the bucket: chunks of queries in time, with running sums over the keys before the chunk."""
    assert slope.constant is not None
    to_query, to_key = torch.empty_like(part.query), torch.zeros_like(part.key)
    outer = torch.zeros(part.value.shape[1], part.key.shape[1], dtype=part.key.dtype, device=part.key.device)
    inner = torch.zeros_like(part.key[0]) if len(part.key) else part.key.new_zeros(part.key.shape[1])
    starts = range(0, len(part.query), _CHUNK)
    # Keys before edges[0] are seen by all queries of a chunk, those before edges[1] by some.
    first, last = (
        horizon[::_CHUNK].contiguous(),
        torch.stack([horizon[min(s + _CHUNK, len(horizon)) - 1] for s in starts]),
    )
    edges = list(
        zip(
            torch.searchsorted(keys, first, right=True).tolist(),
            torch.searchsorted(keys, last, right=True).tolist(),
            strict=True,
        )
    )
    done = 0
    for start, (seen, end) in zip(starts, edges, strict=True):
        here, near = slice(start, start + _CHUNK), slice(seen, end)
        outer += part.value[done:seen].mT @ part.key[done:seen]
        inner = inner + part.key[done:seen].sum(0)
        done = seen
        push = (part.weight[here] @ part.value[near].mT - part.level[here, None]) * (keys[near] <= horizon[here, None])
        to_query[here] = part.weight[here] @ outer - part.level[here, None] * inner + push @ part.key[near]
        to_key[near] += push.mT @ part.query[here]
    # The other way round for keys: queries of later chunks see all of a key's chunk.
    outer.zero_()
    back = torch.zeros_like(inner)
    done = len(part.key)
    for start, (seen, _) in zip(reversed(starts), reversed(edges), strict=True):
        # Keys in [seen, done) are fully seen by the chunks added so far and by no whole chunk before.
        to_key[seen:done] += part.value[seen:done] @ outer - back
        done = seen
        here = slice(start, start + _CHUNK)
        outer += part.weight[here].mT @ part.query[here]
        back = back + (part.level[here, None] * part.query[here]).sum(0)
    to_key[:done] += part.value[:done] @ outer - back
    return slope.constant * to_query, slope.constant * to_key
