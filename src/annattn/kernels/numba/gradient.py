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
from annattn.kernels.numba.numbering import number_codes, room_for
from annattn.kernels.numba.outer import LINE, ROWS, add_turns
from annattn.kernels.numba.threads import pieces_of, run_pieces

__all__ = ["constant_gradient"]

_ROWS = 2048  # rows prepared or finished in one piece, if a group is cut into pieces
_PIECES = 16  # runs of buckets a table is cut into; a bucket larger than a run is cut by columns as well


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
    query, key, value, grad = inputs.query, inputs.key, inputs.value, inputs.grad
    query_codes, key_codes = inputs.query_codes, inputs.key_codes
    assert query_codes is not None
    assert key_codes is not None
    dtype = grad.dtype
    grad_query, grad_key = memory.empty(*query.shape, dtype=dtype), memory.empty(*key.shape, dtype=dtype)
    if not query.numel() or not key.numel():
        return grad_query.zero_(), grad_key.zero_()
    heads, share, _ = heads_and_shares(query, key)
    n, m, tables = query.shape[2], key.shape[2], query_codes.shape[-1]
    dim, width = query.shape[-1], value.shape[-1]
    groups = query.shape[0] * heads

    def rows(x: Tensor) -> _Rows:
        array, starts, stride = memory.flat(x.to(dtype))
        return _Rows(array, starts.reshape(groups, -1), stride)

    work = _Work(
        query_codes.transpose(2, 3).contiguous().numpy().reshape(groups, share, tables, n),
        key_codes.transpose(2, 3).contiguous().numpy().reshape(groups, 1, tables, m),
        inputs.buckets if 0 < inputs.buckets <= 4 * (share * n + m) else 0,
        rows(query), rows(key), rows(value), rows(grad), rows(inputs.out),
        inputs.count.contiguous().numpy().reshape(groups, share, n), _layout(dim, width, dtype),
        inputs.order == Order.CAUSAL, float(inputs.slope.constant or 0),
        grad_query.numpy().reshape(groups, share * n, dim), grad_key.numpy().reshape(groups, m, dim),
    )  # fmt: skip
    pieces, few = pieces_of(groups, tables * (share * n + m) * (width + 2 * dim), 2)
    if few > 1:
        for group in range(groups):
            _turn_group(work, group, dtype)
        return grad_query, grad_key
    edges = groups * np.arange(pieces + 1) // pieces

    def one(piece: int) -> None:
        _turn_groups(work, edges[piece], edges[piece + 1], *_room(work, dtype))

    run_pieces(one, pieces, "gradients", dtype)
    return grad_query, grad_key


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
        used[table] = _sort_table(work, group, table, orders[table], edges[table])

    tables = work.targets.shape[2]
    orders = [(np.empty(queries, np.int64), np.empty(keys, np.int64)) for _ in range(tables)]
    edges = [np.empty((2, (work.slots or keys) + 1), np.int64) for _ in range(tables)]
    used = [0] * tables
    run_pieces(prepare, len(parts), "gradient", dtype)
    run_pieces(sort, tables)
    for table in range(tables):
        cuts = _cuts(edges[table][:, : used[table] + 1].sum(0), work.layout[3] // per_line)

        def add(piece: int, table: int = table, cuts: list = cuts) -> None:
            _add_buckets(work, left, right, orders[table], edges[table], *cuts[piece])

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
    queries, keys = work.to_query.shape[1], work.to_key.shape[1]
    orders = np.empty(queries, np.int64), np.empty(keys, np.int64)
    edges = np.empty((2, (work.slots if work.slots > 0 else keys) + 1), np.int64)
    _, padded, _, dim, _, _ = work.layout
    outer = np.empty(padded * dim, left.dtype)
    horizon = work.targets.shape[3], work.sources.shape[3] - work.targets.shape[3]
    for group in range(first_group, last_group):
        _prepare(work, group, 0, 0, queries, left, right, lengths)
        _prepare(work, group, 1, 0, keys, left, right, lengths)
        for table in range(tables):
            used = _sort_table(work, group, table, orders, edges)
            add_turns(left, right, work.layout, orders, edges, horizon, work.causal, (0, used), (0, dim), outer)
        _finish(work, group, 0, 0, queries, left, right, lengths)
        _finish(work, group, 1, 0, keys, left, right, lengths)


@kernel
def _add_buckets(work, left, right, orders, edges, buckets, lines):
    """A range of buckets of a sorted table, and of lines of its columns."""
    _, padded, _, dim, _, _ = work.layout
    horizon = work.targets.shape[3], work.sources.shape[3] - work.targets.shape[3]
    columns = lines[0] * (LINE // left.itemsize), lines[1] * (LINE // left.itemsize)
    outer = np.empty(padded * dim, left.dtype)
    add_turns(left, right, work.layout, orders, edges, horizon, work.causal, buckets, columns, outer)


@kernel
def _sort_table(work, group, table, orders, edges):
    """Rows of both sides by bucket, then by place in time, and where each bucket begins; returns how many there are.

    Row i of head h is number h·n + i. Rows with a negative code are left out.
    """
    targets = work.targets[group, :, table].copy().reshape(-1)
    sources = work.sources[group, :, table].copy().reshape(-1)
    used = work.slots
    if used == 0:
        names = np.empty(room_for(len(sources)), np.int64)
        used = number_codes(targets, sources, names, np.empty(len(names), np.int32), targets, sources)
    _sort(targets, work.targets.shape[1], used, orders[0], edges[0])
    _sort(sources, 1, used, orders[1], edges[1])
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
    dim, n = work.to_query.shape[2], work.targets.shape[3]
    for row in range(start, stop):
        at = row * stride
        if side == 0:
            head, i = divmod(row, n)
            left[at : at + stride] = 0
            x, g, o = work.query, work.grad, work.mean
            lengths[row] = _set_unit(x.array, x.starts[group, head] + i * x.stride, dim, left, at + unit_at)
            left[at + width - 1] = _set_push(
                g.array, g.starts[group, head] + i * g.stride, o.array, o.starts[group, head] + i * o.stride,
                work.counts[group, head, i], width - 1, left, at,
            )  # fmt: skip
        else:
            right[at : at + stride] = 0
            x, v = work.key, work.value
            lengths[work.to_query.shape[1] + row] = _set_unit(
                x.array, x.starts[group, 0] + row * x.stride, dim, right, at + unit_at
            )
            _copy(v.array, v.starts[group, 0] + row * v.stride, width - 1, right, at)
            right[at + width - 1] = 1


@kernel(fastmath={"reassoc", "contract"})
def _set_unit(x, of, dim, rows, at):
    """A row of x as a unit vector; returns its length. Without a direction it is 0, of infinite length."""
    of, at = np.uint64(of), np.uint64(at)
    largest, check = x.dtype.type(0), x.dtype.type(0)
    for k in range(np.uint64(dim)):
        largest = max(largest, abs(x[of + k]))
        check += x[of + k] * x.dtype.type(0)  # NaN as soon as an entry is not finite
    if not (largest > 0 and check == 0):
        return x.dtype.type(np.inf)
    # Scaled first, so that squares neither overflow nor vanish.
    square = x.dtype.type(0)
    for k in range(np.uint64(dim)):
        rows[at + k] = x[of + k] / largest
        square += rows[at + k] * rows[at + k]
    norm = np.sqrt(square)
    for k in range(np.uint64(dim)):
        rows[at + k] /= norm
    return largest * norm


@kernel(fastmath={"reassoc", "contract"})
def _set_push(grad, of_grad, mean, of_mean, count, width, rows, at):
    """g_i/C_i; returns −g_i·out_i/C_i. An output that is not finite pulls on nothing."""
    of_grad, of_mean, at = np.uint64(of_grad), np.uint64(of_mean), np.uint64(at)
    met, level = grad.dtype.type(max(count, 1)), grad.dtype.type(0)
    for k in range(np.uint64(width)):
        pull, out = grad[of_grad + k] / met, mean[of_mean + k]
        rows[at + k] = pull
        level -= pull * (out if abs(out) < np.inf else grad.dtype.type(0))
    return level


@kernel
def _copy(x, of, width, rows, at):
    of, at = np.uint64(of), np.uint64(at)
    for k in range(np.uint64(width)):
        rows[at + k] = x[of + k]


@kernel
def _finish(work, group, side, start, stop, left, right, lengths):
    """From the gradient of unit vectors to that of the vectors, for rows [start, stop) of one side."""
    _, _, unit_at, _, sum_at, stride = work.layout
    for row in range(start, stop):
        at = row * stride
        if side == 0:
            scale = left.dtype.type(work.constant) / lengths[row]
            _set_gradient(left, at + unit_at, at + sum_at, scale, work.to_query[group, row])
        else:
            scale = left.dtype.type(work.constant) / lengths[work.to_query.shape[1] + row]
            _set_gradient(right, at + unit_at, at + sum_at, scale, work.to_key[group, row])


@kernel(fastmath={"reassoc", "contract"})
def _set_gradient(rows, unit, turning, scale, grad):
    """Only what turns a vector counts."""
    unit, turning, along = np.uint64(unit), np.uint64(turning), rows.dtype.type(0)
    for k in range(np.uint64(len(grad))):
        along += rows[turning + k] * rows[unit + k]
    for k in range(np.uint64(len(grad))):
        grad[k] = (rows[turning + k] - along * rows[unit + k]) * scale
