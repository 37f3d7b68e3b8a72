"""The gradient for queries and keys on a CPU when all pairs weigh the same: see `torch.gradient` for what is summed.

With a_i = (g_i/C_i, −g_i·out_i/C_i) and b_j = (v_j, 1), query i gets Σ_j (a_i·b_j) k̂_j and key j Σ_i (b_j·a_i) q̂_i: one
kernel, `add_turns`, does both. Tables follow one another and the buckets of a table share nothing, so results are the
same to the bit for any number of threads.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.interface import GradientInputs, Order
from annattn.kernels.numba import memory
from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.newest import by_group
from annattn.kernels.numba.numbering import number_codes, room_for
from annattn.kernels.numba.outer import LINE, ROWS, add_turns
from annattn.kernels.numba.rows import copy_row, set_row
from annattn.kernels.numba.threads import pieces_of, run_pieces

__all__ = ["constant_gradient", "newest_gradient"]

_ROWS = 2048  # rows prepared or finished in one piece, if a group is cut into pieces
_LEAST_SQUARE, _LARGEST_SQUARE = 1e-20, 1e30  # where squares of float32 neither overflow nor lose digits
_PIECES = 16  # runs of buckets a table is cut into; a bucket larger than a run is cut by columns as well

_U = np.uint64


class _Rows(NamedTuple):
    """Rows of all heads: row i of head h of group g begins at starts[g, h] + i · stride."""

    array: np.ndarray
    starts: np.ndarray
    stride: int


class _Work(NamedTuple):
    """What the kernels work on: `groups` key heads of batch rows, each with the query heads that share it."""

    targets: np.ndarray  # codes (groups, share, tables, n)
    sources: np.ndarray  # codes (groups, 1, tables, m)
    slots: int  # codes are below it; 0 if they must be numbered first
    query: _Rows
    key: _Rows
    value: _Rows
    grad: _Rows
    mean: _Rows
    counts: np.ndarray  # (groups, share, n)
    layout: tuple[int, int, int, int, int, int]  # see `add_turns`
    causal: bool
    constant: float
    to_query: np.ndarray  # (groups, share · n, dim)
    to_key: np.ndarray  # (groups, m, dim)


def constant_gradient(inputs: GradientInputs) -> tuple[Tensor, Tensor]:
    """The gradients of `bucket_mean` for queries and keys when w(x) is a constant; in the dtype of `grad`."""
    query_codes, key_codes = inputs.query_codes, inputs.key_codes
    assert query_codes is not None
    assert key_codes is not None
    grads = _empty_gradients(inputs)
    if not inputs.query.numel() or not inputs.key.numel():
        return grads[0].zero_(), grads[1].zero_()
    dtype, (heads, share, _) = inputs.grad.dtype, heads_and_shares(inputs.query, inputs.key)
    groups, n, m, tables = (
        inputs.query.shape[0] * heads,
        inputs.query.shape[2],
        inputs.key.shape[2],
        query_codes.shape[-1],
    )
    targets = query_codes.transpose(2, 3).contiguous().numpy().reshape(groups, share, tables, n)
    sources = key_codes.transpose(2, 3).contiguous().numpy().reshape(groups, 1, tables, m)
    memory.require_below(inputs.buckets, "hash code", targets, sources)
    work = _work(inputs, targets, sources, inputs.buckets if 0 < inputs.buckets <= 4 * (share * n + m) else 0, grads)
    pieces, few = _pieces(work)
    if few > 1:
        for group in range(groups):
            _turn_group(work, group, dtype)
        return grads
    edges = groups * np.arange(pieces + 1) // pieces

    def one(piece: int) -> None:
        _turn_groups(work, edges[piece], edges[piece + 1], *_room(work, dtype))

    run_pieces(one, pieces, "gradients", dtype)
    return grads


def newest_gradient(inputs: GradientInputs) -> tuple[Tensor, Tensor]:
    """The same of `newest_mean`: a query turns towards, or from, the key found in each table."""
    assert inputs.newest is not None
    grads = _empty_gradients(inputs)
    if not inputs.query.numel() or not inputs.value.numel():
        return grads[0].zero_(), grads[1].zero_()
    found = by_group(inputs.value, inputs.newest)
    groups, _, tables, _ = found.shape
    work = _work(inputs, found, np.empty((0, 1, tables, inputs.key.shape[2]), np.int64), 0, grads)
    pieces, _ = _pieces(work)
    edges, dtype = groups * np.arange(pieces + 1) // pieces, inputs.grad.dtype

    def one(piece: int) -> None:
        _turn_newest(work, edges[piece], edges[piece + 1], *_room(work, dtype))

    run_pieces(one, pieces, "newest gradient", dtype)
    return grads


def _empty_gradients(inputs: GradientInputs) -> tuple[Tensor, Tensor]:
    query, key, dtype = inputs.query, inputs.key, inputs.grad.dtype
    return memory.empty(*query.shape, dtype=dtype), memory.empty(*key.shape, dtype=dtype)


def _work(
    inputs: GradientInputs, targets: np.ndarray, sources: np.ndarray, slots: int, grads: tuple[Tensor, Tensor]
) -> _Work:
    groups, share, _, n = targets.shape
    m, dim, width, dtype = inputs.key.shape[2], inputs.query.shape[-1], inputs.value.shape[-1], inputs.grad.dtype

    def rows(x: Tensor) -> _Rows:
        array, starts, stride = memory.flat(x.to(dtype))
        return _Rows(array, starts.reshape(groups, -1), stride)

    return _Work(
        targets, sources, slots,
        rows(inputs.query), rows(inputs.key), rows(inputs.value), rows(inputs.grad), rows(inputs.out),
        inputs.count.contiguous().numpy().reshape(groups, share, n), _layout(dim, width, dtype),
        inputs.order == Order.CAUSAL, float(inputs.slope.constant or 0),
        grads[0].numpy().reshape(groups, share * n, dim), grads[1].numpy().reshape(groups, m, dim),
    )  # fmt: skip


def _pieces(work: _Work) -> tuple[int, int]:
    """Runs of groups; and if groups are few, more than 1."""
    groups, share, tables, n = work.targets.shape
    return pieces_of(groups, tables * (share * n + work.to_key.shape[1]) * (work.layout[0] + 2 * work.layout[3]), 2)


def _layout(dim: int, width: int, dtype: torch.dtype) -> tuple[int, int, int, int, int, int]:
    """Where the parts of a row begin: a_i or b_j in front, then the unit vector, then its gradient while it adds up."""
    per_line = LINE // dtype.itemsize
    padded, dim = -(-(width + 1) // ROWS) * ROWS, -(-dim // per_line) * per_line
    unit_at = -(-padded // per_line) * per_line
    return width + 1, padded, unit_at, dim, unit_at + dim, unit_at + 2 * dim


def _room(work: _Work, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Room for the rows of a group, each at the beginning of a line of the cache, and for their lengths."""
    stride, per_line = work.layout[-1], LINE // dtype.itemsize

    def lines(count: int) -> np.ndarray:
        room = memory.empty(count * stride + per_line, dtype=dtype).numpy()
        skipped = -room.ctypes.data % LINE // room.itemsize
        return room[skipped : skipped + count * stride]

    queries, keys = work.to_query.shape[1], work.to_key.shape[1]
    return lines(queries), lines(keys), memory.empty(queries + keys, dtype=dtype).numpy()


def _turn_group(work: _Work, group: int, dtype: torch.dtype) -> None:
    """One group on all threads."""
    left, right, lengths = _room(work, dtype)
    queries, keys = work.to_query.shape[1], work.to_key.shape[1]
    per_line = LINE // dtype.itemsize
    parts = [(0, a, min(a + _ROWS, queries)) for a in range(0, queries, _ROWS)]
    parts += [(1, a, min(a + _ROWS, keys)) for a in range(0, keys, _ROWS)]

    def prepare(piece: int) -> None:
        _prepare(work, group, *parts[piece], left, right, lengths)

    def finish(piece: int) -> None:
        _finish(work, group, *parts[piece], left, right, lengths)

    def sort(table: int) -> None:
        used[table] = _sort_table(work, group, table, *orders[table], edges[table])

    tables = work.targets.shape[2]
    orders = [(np.empty(queries, np.int64), np.empty(keys, np.int64)) for _ in range(tables)]
    edges = [np.empty((2, (work.slots or keys) + 1), np.int64) for _ in range(tables)]
    used = [0] * tables
    run_pieces(prepare, len(parts), "gradient", dtype)
    run_pieces(sort, tables, "sort")
    for table in range(tables):
        cuts = _cuts(edges[table][:, : used[table] + 1].sum(0), work.layout[3] // per_line)

        def add(piece: int, table: int = table, cuts: list = cuts) -> None:
            _add_buckets(work, left, right, *orders[table], edges[table], *cuts[piece])

        run_pieces(add, len(cuts), "turns", dtype)
    run_pieces(finish, len(parts), "ends", dtype)


def _cuts(edges: np.ndarray, lines: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Runs of buckets with about equally many rows, all lines each; a bucket larger than that line by line."""
    if edges[-1] == 0:
        return []
    goal = max(1, edges[-1] // _PIECES)
    starts = np.unique(np.searchsorted(edges, np.arange(0, edges[-1], goal), side="right") - 1)
    runs = zip(starts, [*starts[1:], len(edges) - 1], strict=True)
    cuts = []
    for first, last in runs:
        is_large = edges[first + 1] - edges[first] > 2 * goal
        if is_large:
            cuts += [((first, first + 1), (line, line + 1)) for line in range(lines)]
        if last > first + is_large:
            cuts.append(((first + is_large, last), (0, lines)))
    return cuts


@kernel
def _turn_groups(work, first_group, last_group, left, right, lengths):
    """Everything for groups [first_group, last_group)."""
    tables = work.targets.shape[2]
    count_queries, count_keys = work.to_query.shape[1], work.to_key.shape[1]
    queries, keys = np.empty(count_queries, np.int64), np.empty(count_keys, np.int64)
    edges = np.empty((2, (work.slots if work.slots > 0 else count_keys) + 1), np.int64)
    _, padded, _, dim, _, _ = work.layout
    outer = np.empty(padded * dim, left.dtype)
    horizon = work.targets.shape[3], work.sources.shape[3] - work.targets.shape[3]
    for group in range(first_group, last_group):
        _prepare(work, group, 0, 0, count_queries, left, right, lengths)
        _prepare(work, group, 1, 0, count_keys, left, right, lengths)
        for table in range(tables):
            used = _sort_table(work, group, table, queries, keys, edges)
            add_turns(left, right, work.layout, queries, keys, edges, horizon, work.causal, (0, used), (0, dim), outer)
        _finish(work, group, 0, 0, count_queries, left, right, lengths)
        _finish(work, group, 1, 0, count_keys, left, right, lengths)


@kernel
def _turn_newest(work, first_group, last_group, left, right, lengths):
    """Everything for groups [first_group, last_group) whose `targets` are positions of keys."""
    _, share, tables, n = work.targets.shape
    width, _, unit_at, _, sum_at, stride = work.layout
    queries, keys, dim = work.to_query.shape[1], work.to_key.shape[1], work.to_query.shape[2]
    for group in range(first_group, last_group):
        _prepare(work, group, 0, 0, queries, left, right, lengths)
        _prepare(work, group, 1, 0, keys, left, right, lengths)
        for head in range(share):
            positions = work.targets[group, head].reshape(-1)
            for i in range(n):
                query = (head * n + i) * stride
                for table in range(tables):
                    at = positions[table * n + i]
                    if at >= 0:
                        _turn_pair(left, query, right, at * stride, width, unit_at, sum_at, dim)
        _finish(work, group, 0, 0, queries, left, right, lengths)
        _finish(work, group, 1, 0, keys, left, right, lengths)


@kernel(fastmath={"reassoc", "contract"}, inlined=True)
def _turn_pair(left, query, right, key, width, unit_at, sum_at, dim):
    """What a query and a key do to each other."""
    query, key, push = _U(query), _U(key), left.dtype.type(0)
    for k in range(_U(width)):
        push += left[query + k] * right[key + k]
    of_query, of_key = query + _U(unit_at), key + _U(unit_at)
    query, key = query + _U(sum_at), key + _U(sum_at)
    for k in range(_U(dim)):
        left[query + k] += push * right[of_key + k]
        right[key + k] += push * left[of_query + k]


@kernel
def _add_buckets(work, left, right, queries, keys, edges, buckets, lines):
    """A range of buckets of a sorted table, and of lines of its columns."""
    _, padded, _, dim, _, _ = work.layout
    horizon = work.targets.shape[3], work.sources.shape[3] - work.targets.shape[3]
    columns = lines[0] * (LINE // left.itemsize), lines[1] * (LINE // left.itemsize)
    outer = np.empty(padded * dim, left.dtype)
    add_turns(left, right, work.layout, queries, keys, edges, horizon, work.causal, buckets, columns, outer)


@kernel
def _sort_table(work, group, table, queries, keys, edges):
    """Rows of both sides by bucket, then by place in time, and where each bucket begins; returns how many there are.

    Row i of head h is number h·n + i. Rows with a negative code are left out.
    """
    targets = work.targets[group, :, table].copy().reshape(-1)
    sources = work.sources[group, :, table].copy().reshape(-1)
    used = work.slots
    if used == 0:
        names = np.empty(room_for(len(sources)), np.int64)
        used = number_codes(targets, sources, names, np.empty(len(names), np.int32), targets, sources)
    _sort(targets, work.targets.shape[1], used, queries, edges[0])
    _sort(sources, 1, used, keys, edges[1])
    return used


@kernel
def _sort(codes, share, used, order, edges):
    n = len(codes) // share
    # edges[b + 1] is first where the rows of bucket b begin, and in the end, when they are in, where they end.
    edges[: used + 1] = 0
    for row in range(len(codes)):
        if codes[row] >= 0:
            edges[codes[row] + 1] += 1
    total = 0
    for bucket in range(used):
        size = edges[bucket + 1]
        edges[bucket + 1] = total
        total += size
    for place in range(n):
        for row in range(place, len(codes), n):
            code = codes[row]
            if code >= 0:
                order[edges[code + 1]] = row
                edges[code + 1] += 1


@kernel
def _prepare(work, group, side, start, stop, left, right, lengths):
    """Rows [start, stop) of one side: a_i or b_j, the unit vector and a sum of 0; a length apart."""
    width, _, unit_at, _, _, stride = work.layout
    dim, n, queries = work.to_query.shape[2], work.targets.shape[3], work.to_query.shape[1]
    # All that is looked up here would be counted, and given up again, for each row below.
    rows = left if side == 0 else right
    vectors, vector_starts, vector_stride = work.query if side == 0 else work.key
    fronts, front_starts, front_stride = work.grad if side == 0 else work.value
    means, mean_starts, mean_stride = work.mean
    counts = work.counts[group].reshape(-1)
    first_length = 0 if side == 0 else queries
    for row in range(start, stop):
        head = row // n if side == 0 else 0
        i, at = row - head * n, row * stride
        lengths[first_length + row] = _set_unit(
            vectors, vector_starts[group, head] + i * vector_stride, dim, rows, at + unit_at
        )
        front = front_starts[group, head] + i * front_stride
        if side == 0:
            mean = mean_starts[group, head] + i * mean_stride
            rows[at + width - 1] = _set_push(fronts, front, means, mean, counts[row], width - 1, rows, at)
        else:
            copy_row(rows, at, fronts, front, width - 1)
            rows[at + width - 1] = 1
        set_row(rows, at + width, 0, unit_at - width)
        set_row(rows, at + unit_at + dim, 0, stride - unit_at - dim)


@kernel(fastmath={"reassoc", "contract"})
def _set_unit(x, of, dim, rows, at):
    """A row of x as a unit vector; returns its length. Without a direction it is 0, of infinite length."""
    of, at, scale, square = _U(of), _U(at), x.dtype.type(1), x.dtype.type(0)
    for k in range(_U(dim)):
        square += x[of + k] * x[of + k]
    if not (square > _LEAST_SQUARE and square < _LARGEST_SQUARE):
        # Scaled first, so that squares neither overflow nor vanish.
        largest, is_finite = x.dtype.type(0), True
        for k in range(_U(dim)):
            is_finite &= abs(x[of + k]) < np.inf
            largest = max(largest, abs(x[of + k]))
        if not (is_finite and largest > 0):
            set_row(rows, at, 0, dim)
            return x.dtype.type(np.inf)
        scale, square = largest, x.dtype.type(0)
        for k in range(_U(dim)):
            square += (x[of + k] / scale) * (x[of + k] / scale)
    norm = np.sqrt(square)
    for k in range(_U(dim)):
        rows[at + k] = x[of + k] / scale / norm
    return scale * norm


@kernel(fastmath={"reassoc", "contract"})
def _set_push(grad, of_grad, mean, of_mean, count, width, rows, at):
    """g_i/C_i; returns −g_i·out_i/C_i. An output that is not finite pulls on nothing."""
    of_grad, of_mean, at = _U(of_grad), _U(of_mean), _U(at)
    nothing = grad.dtype.type(0)
    share, level = grad.dtype.type(1) / grad.dtype.type(max(count, 1)), nothing
    for k in range(_U(width)):
        pull, out = grad[of_grad + k] * share, mean[of_mean + k]
        rows[at + k] = pull
        level -= pull * (out if abs(out) < np.inf else nothing)
    return level


@kernel
def _finish(work, group, side, start, stop, left, right, lengths):
    """From the gradient of unit vectors to that of the vectors, for rows [start, stop) of one side."""
    _, _, unit_at, _, sum_at, stride = work.layout
    dim, queries = work.to_query.shape[2], work.to_query.shape[1]
    rows = left if side == 0 else right
    into = (work.to_query if side == 0 else work.to_key)[group].reshape(-1)
    first_length = 0 if side == 0 else queries
    for row in range(start, stop):
        scale = rows.dtype.type(work.constant) / lengths[first_length + row]
        _set_gradient(rows, row * stride + unit_at, row * stride + sum_at, scale, into, row * dim, dim)


@kernel(fastmath={"reassoc", "contract"})
def _set_gradient(rows, unit, turning, scale, into, at, dim):
    """Only what turns a vector counts."""
    unit, turning, at, along = _U(unit), _U(turning), _U(at), rows.dtype.type(0)
    for k in range(_U(dim)):
        along += rows[turning + k] * rows[unit + k]
    for k in range(_U(dim)):
        into[at + k] = (rows[turning + k] - along * rows[unit + k]) * scale
