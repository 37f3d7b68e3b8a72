"""The gradient for queries and keys on a CPU when all pairs weigh the same: see `gradient` for what is summed.

With a_i = (g_i/C_i, −g_i·out_i/C_i) and b_j = (v_j, 1), query i gets Σ_j (a_i·b_j) k̂_j and key j Σ_i (b_j·a_i) q̂_i: one
kernel, `add_turns`, with the roles exchanged. Tables follow one another and the buckets of a table share nothing, so
results are the same to the bit for any number of threads.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.interface import GradientInputs, Order
from annattn.kernels.numba import memory
from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.numbering import slots_of
from annattn.kernels.numba.outer import LINE, ROWS, add_turns, sort_by_bucket
from annattn.kernels.numba.threads import Run, run_groups

__all__ = ["constant_gradient"]

_ROWS = 2048  # rows prepared or finished in one piece
_PIECES = 16  # runs of buckets a table is cut into; a bucket larger than a run is cut by columns as well


def constant_gradient(inputs: GradientInputs) -> tuple[Tensor, Tensor]:
    """The gradients of `bucket_mean` for queries and keys when w(x) is a constant; in the dtype of `grad`."""
    query, key, value, grad, out, count = (
        inputs.query, inputs.key, inputs.value, inputs.grad, inputs.out, inputs.count,
    )  # fmt: skip
    query_codes, key_codes, buckets, constant = (
        inputs.query_codes, inputs.key_codes, inputs.buckets, inputs.slope.constant,
    )  # fmt: skip
    assert query_codes is not None
    assert key_codes is not None
    is_causal = inputs.order == Order.CAUSAL
    dtype = grad.dtype
    grad_query, grad_key = memory.empty(*query.shape, dtype=dtype), memory.empty(*key.shape, dtype=dtype)
    if not query.numel() or not key.numel():
        return grad_query.zero_(), grad_key.zero_()
    heads, share, _ = heads_and_shares(query, key)
    n, m, tables = query.shape[2], key.shape[2], query_codes.shape[-1]
    groups = query.shape[0] * heads
    targets = query_codes.contiguous().numpy().reshape(groups, share, n, tables)
    sources = key_codes.contiguous().numpy().reshape(groups, 1, m, tables)
    counts = count.contiguous().numpy().reshape(groups, share, n)
    queries, keys, values, grads, means = (memory.flat(x.to(dtype)) for x in (query, key, value, grad, out))
    to_query, to_key = grad_query.numpy().reshape(groups, share * n, -1), grad_key.numpy().reshape(groups, m, -1)

    dim, width = query.shape[-1], value.shape[-1]
    layout = _Layout.of(dim, width, dtype)

    def one_group(group: int, run: Run) -> None:
        b, h = divmod(group, heads)
        codes = slots_of(targets[group], sources[group], buckets, run)
        left, right = layout.rows(share * n, dtype), layout.rows(m, dtype)
        lengths = memory.empty(share * n + m, dtype=dtype).numpy()

        def prepare_queries(head: int, start: int, stop: int) -> None:
            here, of = slice(head * n + start, head * n + stop), (b, h * share + head)
            _set_units(*_part(queries, of, start), dim, left[here], layout.for_kernel, lengths[here])
            _set_pushes(
                *_part(grads, of, start), *_part(means, of, start), counts[group, head, start:stop], width, left[here]
            )

        def prepare_keys(_: int, start: int, stop: int) -> None:
            here, length = right[start:stop], lengths[share * n + start : share * n + stop]
            _set_units(*_part(keys, (b, h), start), dim, here, layout.for_kernel, length)
            _set_values(*_part(values, (b, h), start), width, here)

        def finish_queries(_: int, start: int, stop: int) -> None:
            here = slice(start, stop)
            _finish(left[here], layout.for_kernel, lengths[here], constant, to_query[group, here])

        def finish_keys(_: int, start: int, stop: int) -> None:
            here, length = right[start:stop], lengths[share * n + start : share * n + stop]
            _finish(here, layout.for_kernel, length, constant, to_key[group, start:stop])

        _in_rows(run, share, n, prepare_queries)
        _in_rows(run, 1, m, prepare_keys)
        for table in range(tables):
            _add_table(run, codes, table, left, right, layout, (n, m - n), is_causal=is_causal)
        _in_rows(run, 1, share * n, finish_queries)
        _in_rows(run, 1, m, finish_keys)

    run_groups(one_group, groups, "gradient", dtype)
    return grad_query, grad_key


@dataclass(frozen=True)
class _Layout:
    """Where the parts of a row begin: a_i or b_j in front, then the unit vector, then its gradient while it adds up."""

    width: int
    unit_at: int
    dim: int
    sum_at: int
    stride: int

    @classmethod
    def of(cls, dim: int, width: int, dtype: torch.dtype) -> "_Layout":
        per_line = LINE // dtype.itemsize
        width, dim = -(-(width + 1) // ROWS) * ROWS, -(-dim // per_line) * per_line
        unit_at = -(-width // per_line) * per_line
        return cls(width, unit_at, dim, unit_at + dim, unit_at + 2 * dim)

    @property
    def for_kernel(self) -> tuple[int, int, int, int]:
        return self.width, self.unit_at, self.dim, self.sum_at

    def rows(self, count: int, dtype: torch.dtype) -> np.ndarray:
        """Room for this many rows, each at the beginning of a line of the cache."""
        per_line = LINE // dtype.itemsize
        room = memory.empty(count * self.stride + per_line, dtype=dtype).numpy()
        skipped = -room.ctypes.data % LINE // room.itemsize
        return room[skipped : skipped + count * self.stride].reshape(count, self.stride)


def _part(flat, of: tuple[int, int], start: int) -> tuple[np.ndarray, int]:
    """A flat array from row `start` of a head on, and the stride of its rows."""
    array, starts, stride = flat
    return array[starts[of] + start * stride :], stride


def _in_rows(run: Run, heads: int, n: int, work) -> None:
    parts = -(-n // _ROWS)

    def one(piece: int) -> None:
        head, part = divmod(piece, parts)
        work(head, part * _ROWS, min((part + 1) * _ROWS, n))

    run(one, heads * parts)


def _add_table(run: Run, codes, table: int, left, right, layout: _Layout, horizon, *, is_causal: bool) -> None:
    """Add one table to both sides."""
    *sides, slots = codes
    orders = np.empty(len(left), np.int64), np.empty(len(right), np.int64)
    edges = np.empty((2, slots + 1), np.int64)
    run(lambda side: sort_by_bucket(sides[side], table, orders[side], edges[side]), 2)
    cuts = _cuts(edges.sum(0), layout.dim * left.itemsize // LINE)

    def one(piece: int) -> None:
        add_turns(left, right, layout.for_kernel, orders, edges, horizon, is_causal, *cuts[piece])

    run(one, len(cuts))


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


@kernel(fastmath={"reassoc", "contract"})
def _set_units(x, stride, dim, rows, layout, length):
    """Rows of x as unit vectors and lengths, all else of a row 0; without a direction it is 0, of infinite length."""
    unit_at = layout[1]
    for row in range(len(rows)):
        here, into = x[row * stride : row * stride + dim], rows[row, unit_at : unit_at + dim]
        rows[row, :unit_at] = 0
        rows[row, unit_at + dim :] = 0
        largest, check = x.dtype.type(0), x.dtype.type(0)
        for k in range(dim):
            largest = max(largest, abs(here[k]))
            check += here[k] * 0  # NaN as soon as an entry is not finite
        if not (largest > 0 and check == 0):
            into[:] = 0
            length[row] = np.inf
            continue
        # Scaled first, so that squares neither overflow nor vanish.
        square = x.dtype.type(0)
        for k in range(dim):
            into[k] = here[k] / largest
            square += into[k] * into[k]
        norm = np.sqrt(square)
        for k in range(dim):
            into[k] /= norm
        length[row] = largest * norm


@kernel(fastmath={"reassoc", "contract"})
def _set_pushes(grad, grad_stride, mean, mean_stride, count, width, rows):
    """g_i/C_i and −g_i·out_i/C_i; an output that is not finite pulls on nothing."""
    for row in range(len(rows)):
        pull, out, into = grad[row * grad_stride :], mean[row * mean_stride :], rows[row]
        met = grad.dtype.type(max(count[row], 1))
        level = grad.dtype.type(0)
        for k in range(width):
            into[k] = pull[k] / met
            level -= into[k] * (out[k] if np.isfinite(out[k]) else 0)
        into[width] = level


@kernel
def _set_values(value, stride, width, rows):
    """v_j and 1."""
    for row in range(len(rows)):
        rows[row, :width] = value[row * stride : row * stride + width]
        rows[row, width] = 1


@kernel(fastmath={"reassoc", "contract"})
def _finish(rows, layout, length, constant, grad):
    """From the unit vector to the vector: only what turns it counts."""
    _, unit_at, _, sum_at = layout
    dim = grad.shape[1]
    for row in range(len(grad)):
        unit, turning, into = rows[row, unit_at : unit_at + dim], rows[row, sum_at : sum_at + dim], grad[row]
        along = grad.dtype.type(0)
        for k in range(dim):
            along += turning[k] * unit[k]
        scale = grad.dtype.type(constant) / length[row]
        for k in range(dim):
            into[k] = (turning[k] - along * unit[k]) * scale
