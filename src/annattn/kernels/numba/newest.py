"""Newest members of buckets on a CPU, their mean, and its gradients.

Positions have their tables apart in memory, as codes do. Whole groups of heads run on several threads, or tables, rows
or columns of one; each sum is added up in the same order whoever does it.
"""

import numpy as np
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.interface import NOT_FOUND
from annattn.kernels.numba import memory
from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.numbering import number_codes, room_for, set_codes
from annattn.kernels.numba.rows import add_row, divide_row, is_finite_row, set_row
from annattn.kernels.numba.threads import pieces_of, run_pieces
from annattn.kernels.overflow import mean_in_range, sum_in_range

__all__ = ["by_group", "newest", "newest_mean", "newest_value_gradient"]

_LARGEST = 2**63 - 1
_COLUMNS = 16  # columns that are worth a thread of their own


def newest(target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
    """Per table the newest source in a causal target's bucket: see `Backend.newest`."""
    heads, share, _ = heads_and_shares(target_codes, source_codes)
    batch, all_heads, n, tables = target_codes.shape
    m, groups = source_codes.shape[2], batch * heads
    found = memory.empty(batch, all_heads, tables, n)
    if not target_codes.numel() or not source_codes.numel():
        return found.fill_(NOT_FOUND).transpose(2, 3)
    targets = target_codes.transpose(2, 3).contiguous().numpy().reshape(groups, share, tables, n)
    sources = source_codes.transpose(2, 3).contiguous().numpy().reshape(groups, 1, tables, m)
    into, lost = found.numpy().reshape(targets.shape), np.zeros(2, np.bool_)
    # Up to this many buckets a table is indexed by the code itself.
    slots = buckets if 0 < buckets <= 4 * (share * n + m) + 256 else 0
    pieces, parts = pieces_of(groups, tables * (share * n + m) * 4, tables)
    edges, seams = groups * np.arange(pieces + 1) // pieces, tables * np.arange(parts + 1) // parts

    def one(piece: int) -> None:
        run, part = divmod(piece, parts)
        _find_newest(
            targets, sources, slots, buckets or _LARGEST, edges[run], edges[run + 1], seams[part], seams[part + 1],
            into, lost,
        )  # fmt: skip

    run_pieces(one, pieces * parts, "newest")
    if lost[1]:
        memory.require_below(buckets, "hash code", targets, sources)
    return found.transpose(2, 3)


def newest_mean(value: Tensor, newest: Tensor) -> Tensor:
    """The mean over tables of the values at the positions found: see `Backend.newest_mean`."""
    mean, is_finite = _newest_mean(value, newest)
    if is_finite:
        return mean
    return mean_in_range(mean, lambda value: _newest_mean(value, newest)[0], value, newest.shape[-1])


def _newest_mean(value: Tensor, newest: Tensor) -> tuple[Tensor, bool]:
    width, spilled = value.shape[-1], np.zeros(1, np.bool_)
    mean = memory.empty(*newest.shape[:3], width, dtype=value.dtype)
    if not mean.numel() or not value.numel():
        return mean.zero_(), True
    found = by_group(value, newest)
    flat, starts, stride = memory.flat(value)
    starts, into = starts.reshape(-1), mean.numpy().reshape(-1)
    groups, share, tables, n = found.shape
    pieces, parts = pieces_of(groups, share * n * tables * width, share * n)
    edges, seams = groups * np.arange(pieces + 1) // pieces, share * n * np.arange(parts + 1) // parts

    def one(piece: int) -> None:
        run, part = divmod(piece, parts)
        _mean(
            flat, starts, stride, found, edges[run], edges[run + 1], seams[part], seams[part + 1], width, into, spilled
        )

    run_pieces(one, pieces * parts, "newest mean", value.dtype)
    return mean, not spilled[0]


def newest_value_gradient(value: Tensor, newest: Tensor, grad: Tensor) -> Tensor:
    """The gradient of `newest_mean` for the values: see `Backend.newest_value_gradient`."""
    grad_value = _newest_value_gradient(value, newest, grad)
    if memory.is_finite(grad_value):
        return grad_value
    return sum_in_range(grad_value, lambda grad: _newest_value_gradient(value, newest, grad), grad, newest[0].numel())


def _newest_value_gradient(value: Tensor, newest: Tensor, grad: Tensor) -> Tensor:
    width = value.shape[-1]
    grad_value = memory.empty(*value.shape, dtype=grad.dtype)
    if not grad.numel() or not value.numel():
        return grad_value.zero_()
    found = by_group(value, newest)
    flat, starts, stride = memory.flat(grad)
    groups, share, tables, n = found.shape
    starts, into = starts.reshape(groups, share), grad_value.numpy().reshape(-1)
    pieces, parts = pieces_of(groups, share * n * tables * width, width // _COLUMNS)
    edges, seams = groups * np.arange(pieces + 1) // pieces, width * np.arange(parts + 1) // parts

    def one(piece: int) -> None:
        run, part = divmod(piece, parts)
        columns = seams[part], seams[part + 1]
        _scatter(flat, starts, stride, found, edges[run], edges[run + 1], columns, width, value.shape[2], into)

    run_pieces(one, pieces * parts, "newest value gradient", grad.dtype)
    return grad_value


def by_group(value: Tensor, newest: Tensor) -> np.ndarray:
    """Positions (groups, share, tables, queries) in values of one group each, checked."""
    heads, share, _ = heads_and_shares(newest, value)
    batch, _, n, tables = newest.shape
    found = newest.transpose(2, 3).contiguous().numpy().reshape(batch * heads, share, tables, n)
    memory.require_below(value.shape[2], "position of a key", found)
    return found


@kernel
def _find_newest(targets, sources, slots, limit, first_group, last_group, first_table, last_table, found, lost):
    """Write, for some tables of some groups, which source entered a target's bucket last before it read."""
    _, share, _, n = targets.shape
    m = sources.shape[3]
    wide_targets, wide_sources = np.empty(share * n, np.int64), np.empty(m, np.int64)
    names = np.empty(1 if slots > 0 else room_for(m), np.int64)
    numbers = np.empty(len(names), np.int32)
    held = np.full(slots if slots > 0 else m, NOT_FOUND, np.int64)
    horizon = m - n
    for group in range(first_group, last_group):
        for table in range(first_table, last_table):
            set_codes(targets[group, :, table], False, limit, wide_targets, lost)
            set_codes(sources[group, :, table], False, limit, wide_sources, lost)
            if slots == 0:
                number_codes(wide_targets, wide_sources, names, numbers, wide_targets, wide_sources)
            entered = 0
            for at in range(n):
                while entered <= min(at + horizon, m - 1):
                    if wide_sources[entered] >= 0:
                        held[wide_sources[entered]] = entered
                    entered += 1
                for head in range(share):
                    code = wide_targets[at * share + head]
                    found[group, head, table, at] = held[code] if code >= 0 else NOT_FOUND
            for j in range(entered):
                if wide_sources[j] >= 0:
                    held[wide_sources[j]] = NOT_FOUND


@kernel
def _mean(value, starts, stride, found, first_group, last_group, first, last, width, mean, spilled):
    """Rows [first, last) of groups: head by head, the mean of the values at their positions."""
    _, share, tables, n = found.shape
    finite = True
    for group in range(first_group, last_group):
        positions, start = found[group].reshape(-1), starts[group]
        for row in range(first, last):
            head, i = divmod(row, n)
            into, hits = (group * share * n + row) * width, 0
            set_row(mean, into, 0, width)
            for table in range(tables):
                at = positions[(head * tables + table) * n + i]
                if at >= 0:
                    hits += 1
                    add_row(mean, into, value, start + at * stride, width)
            if hits > 1:
                divide_row(mean, into, hits, width)
            finite &= is_finite_row(mean, into, width)
    if not finite:
        spilled[0] = True


@kernel
def _scatter(grad, starts, stride, found, first_group, last_group, columns, width, m, into):
    """Some columns of what values of groups get: each its share of the gradient of every row that read it."""
    _, share, tables, n = found.shape
    first, last = columns
    part = np.empty(last - first, grad.dtype)
    for group in range(first_group, last_group):
        for j in range(m):
            set_row(into, (group * m + j) * width + first, 0, last - first)
        for head in range(share):
            positions = found[group, head].reshape(-1)
            for i in range(n):
                hits = 0
                for table in range(tables):
                    hits += positions[table * n + i] >= 0
                if hits == 0:
                    continue
                set_row(part, 0, 0, last - first)
                add_row(part, 0, grad, starts[group, head] + i * stride + first, last - first)
                if hits > 1:
                    divide_row(part, 0, hits, last - first)
                for table in range(tables):
                    at = positions[table * n + i]
                    if at >= 0:
                        add_row(into, (group * m + at) * width + first, part, 0, last - first)
