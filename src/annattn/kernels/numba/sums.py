"""Sums over buckets on a CPU: work follows the occupancy of the buckets.

A bucket with one member is the index of that member, and only a bucket with several has a row for their sum. Tables are
worked through a few at a time, so that their rows stay in a near cache, and rows of the inputs in strips.

All that runs on several threads is whole groups of heads, or columns of one; each sum is added up in the same order
whoever does it. So results are the same to the bit for any number of threads.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from annattn.kernels.interface import SumInputs
from annattn.kernels.numba import memory
from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.dense import DenseTables
from annattn.kernels.numba.numbering import number_codes, room_for, set_codes
from annattn.kernels.numba.rows import add_row, copy_row, divide_row, is_finite_row, set_row, set_to_sum
from annattn.kernels.numba.threads import pieces_of, run_pieces
from annattn.kernels.overflow import mean_in_range, sum_in_range

__all__ = ["bucket_sums", "divide_rows"]

_TABLES = 2**20  # bytes of rows that tables worked on together may have
_STRIP = 128  # rows of the inputs worked on together
_COLUMNS = 16  # columns that are worth a thread of their own
_CROWDED = 2  # members per bucket, on average, from which all threads work on a single group at the same time
_FULL = 32  # the same for a few groups one after the other, if nothing is causal
_FEW = 3
_FLUSH = 1024  # members after which a float32 sum is added to a float64 one, so that it does not drift

_LARGEST = 2**63 - 1
_EMPTY = -1  # a bucket without members; one member is its index, and several are _SEVERAL minus the number of their row
_SEVERAL = -2


class Sums(NamedTuple):
    """What the kernel works on: `groups` key heads of batch rows, each with the heads that share it."""

    targets: np.ndarray  # codes (groups, share, tables, n)
    sources: np.ndarray  # codes (groups, share, tables, m)
    value: np.ndarray  # flat; row j of head h of group g begins at starts[g, h] + j · stride
    starts: np.ndarray
    stride: int
    width: int
    buckets: int  # codes are below it, and index a table; 0 if they must be numbered first
    limit: int  # no code may be as large
    together: int  # tables worked on together
    order: int
    out: np.ndarray  # flat, of (groups, share, n, width)
    counts: np.ndarray  # (groups, share, n)
    divide: bool
    lost: np.ndarray  # [0]: whether a row without a bucket was met; [1]: a code that there cannot be
    spilled: np.ndarray  # set if a result is not finite


def bucket_sums(inputs: SumInputs, lost: np.ndarray, *, divide: bool, again: bool = True) -> tuple[Tensor, Tensor]:
    """Sums, or means if `divide`, and counts: see `Backend`. Sets lost[0] if a row without a bucket is met.

    Kernels set lost[1] if they meet a code that there cannot be. What is not finite is done `again` with smaller
    values.
    """
    spilled = np.zeros(1, np.bool_)
    target_codes, source_codes, value, buckets = inputs.target_codes, inputs.source_codes, inputs.value, inputs.buckets
    batch, all_targets, n, tables = target_codes.shape
    _, all_sources, m, width = value.shape
    heads = min(all_targets, all_sources)
    share, share_sources = all_targets // max(heads, 1), all_sources // max(heads, 1)
    groups = batch * heads
    if not target_codes.numel() or not source_codes.numel():
        lost[0] = True  # for all that is known: nobody looked
        return value.new_zeros(*target_codes.shape[:3], width), target_codes.new_zeros(target_codes.shape[:3])
    out = memory.empty(*target_codes.shape[:3], width, dtype=value.dtype)
    count = memory.empty(*target_codes.shape[:3])
    targets = target_codes.transpose(2, 3).contiguous().numpy().reshape(groups, share, tables, n)
    sources = source_codes.transpose(2, 3).contiguous().numpy().reshape(groups, share_sources, tables, m)
    flat, starts, stride = memory.flat(value)
    starts = starts.reshape(groups, share_sources)
    crowded = buckets > 0 and (_CROWDED if groups == 1 else _FULL) * buckets <= m
    if crowded and (groups == 1 or (groups <= _FEW and inputs.order == 0)):
        totals, counts = out.numpy().reshape(groups, -1), count.numpy().reshape(groups, share, n)
        step = 1 if inputs.one_table_at_a_time else tables
        for group in range(groups):
            for first in range(0, tables, step):
                dense = DenseTables(
                    targets[group], sources[group], buckets, first, step, flat, starts[group], stride, width,
                    divide and first + step == tables, lost, spilled,
                )  # fmt: skip
                dense.add(int(inputs.order), totals[group], counts[group])
        if lost[1]:
            memory.require_below(buckets, "hash code", targets, sources)
        return (_in_range(inputs, lost, divide, out) if again and spilled[0] else out), count
    # Up to this many buckets a table is indexed by the code itself: its emptying must not outweigh the rows.
    direct = 0 < buckets <= 4 * (share * n + share_sources * m) + 256
    rows = min(share_sources * m // 2 + 1, buckets) if direct else share_sources * m // 2 + 1
    together = (
        1 if inputs.one_table_at_a_time else max(1, min(tables, _TABLES // (rows * max(width, 1) * value.itemsize)))
    )
    work = Sums(
        targets, sources, flat, starts, stride, width, buckets if direct else 0, buckets or _LARGEST, together,
        int(inputs.order), out.numpy().reshape(-1), count.numpy().reshape(groups, share, n), divide, lost, spilled,
    )  # fmt: skip
    # As many pieces as there are threads for: runs of groups, or columns of each group when groups are few.
    pieces, columns = pieces_of(groups, tables * (n * share + m * share_sources) * width, width // _COLUMNS)
    edges = groups * np.arange(pieces + 1) // pieces
    seams = width * np.arange(columns + 1) // columns // 8 * 8
    seams[-1] = width

    def one(piece: int) -> None:
        run, part = divmod(piece, columns)
        _add_groups(work, edges[run], edges[run + 1], seams[part], seams[part + 1])

    run_pieces(one, pieces * columns, "sums", value.dtype)
    if lost[1]:
        memory.require_below(buckets, "hash code", targets, sources)
    return (_in_range(inputs, lost, divide, out) if again and spilled[0] else out), count


def _in_range(inputs: SumInputs, lost: np.ndarray, divide: bool, found: Tensor) -> Tensor:
    def add(value: Tensor) -> Tensor:
        return bucket_sums(replace(inputs, value=value), lost, divide=divide, again=False)[0]

    in_range = mean_in_range if divide else sum_in_range
    return in_range(found, add, inputs.value, inputs.source_codes[0].numel())


def divide_rows(rows: Tensor, counts: Tensor) -> Tensor:
    """Rows divided by their counts: see `Backend.divide_rows`."""
    batch, heads, n, width = rows.shape
    out = memory.empty(*rows.shape, dtype=rows.dtype)
    if not out.numel():
        return out
    flat, starts, stride = memory.flat(rows)
    starts, numbers, into = starts.reshape(-1), counts.contiguous().numpy().reshape(-1), out.numpy().reshape(-1)
    pieces, _ = pieces_of(batch * heads, n * width, 1)
    edges = batch * heads * np.arange(pieces + 1) // pieces
    run_pieces(
        lambda piece: _divide(flat, starts, stride, n, width, edges[piece], edges[piece + 1], numbers, into),
        pieces, "divide", rows.dtype,
    )  # fmt: skip
    return out


@kernel
def _divide(flat, starts, stride, n, width, first_head, last_head, counts, out):
    for head in range(first_head, last_head):
        for i in range(n):
            row = head * n + i
            copy_row(out, row * width, flat, starts[head] + i * stride, width)
            divide_row(out, row * width, max(counts[row], 1), width)


@kernel
def _add_groups(work, first_group, last_group, first, last):
    """Columns [first, last) of the sums of groups [first_group, last_group).

    Heads that share a table are interleaved, so that rows are numbered in order of time; mirrored, from the end.
    """
    _, share_targets, all_tables, n = work.targets.shape
    _, share_sources, _, m = work.sources.shape
    n_targets, n_sources = share_targets * n, share_sources * m
    value, out, width, together = work.value, work.out, last - first, work.together
    direct = work.buckets > 0
    slots = work.buckets if direct else n_sources
    most = min(n_sources // 2 + 1, slots)
    # Per bucket nothing, where its only member lies, or which row has the sum of several; per row the sum, how many
    # it has, and, for long ones, where what was in it at the last flush is kept.
    held = np.full(together * slots, _EMPTY, np.int64)
    rows = np.empty(together * most * width, value.dtype)
    members = np.empty(together * most, np.int64)
    flushed = np.empty(together * most, np.int64)
    exact = np.empty(together * (n_sources // _FLUSH) * width, np.float64)
    targets, sources = np.empty((together, n_targets), np.int32), np.empty((together, n_sources), np.int32)
    wide_targets, wide_sources = np.empty(n_targets, np.int64), np.empty(n_sources, np.int64)
    names = np.empty(1 if direct else room_for(n_sources), np.int64)
    numbers = np.empty(len(names), np.int32)
    of_source, of_target = np.empty(n_sources, np.int64), np.empty(n_targets, np.int64)
    counted, used = np.empty(n_targets, np.int64), np.empty(together, np.int64)
    reverse = work.order < 0
    # A target sees the sources up to its own place plus this; without an order all sources come first.
    horizon = m - n if work.order > 0 else 0
    fills = -(-m // _STRIP) if work.order == 0 else 0
    steps = fills + -(-n // _STRIP)
    for group in range(first_group, last_group):
        _set_places(work, group, first, reverse, of_source, of_target)
        counted[:] = 0
        for i in range(n_targets):
            set_row(out, of_target[i], 0, width)
        for table in range(0, all_tables, together):
            chosen = min(together, all_tables - table)
            for t in range(chosen):
                set_codes(work.targets[group, :, table + t], reverse, work.limit, wide_targets, work.lost)
                set_codes(work.sources[group, :, table + t], reverse, work.limit, wide_sources, work.lost)
                if direct:
                    targets[t], sources[t] = wide_targets, wide_sources
                else:
                    number_codes(wide_targets, wide_sources, names, numbers, targets[t], sources[t])
            used[:] = 0
            long = 0
            for step in range(steps):
                # Sources [begin, end) go into their buckets, and targets at places [place, stop) read theirs.
                place, stop = (step - fills) * _STRIP, min((step - fills + 1) * _STRIP, n)
                begin, end = min(max(place + horizon, 0), m) if step > fills else 0, min(max(stop + horizon, 0), m)
                if step < fills:
                    begin, end, place, stop = step * _STRIP, min((step + 1) * _STRIP, m), 0, 0
                elif fills > 0:
                    begin, end = 0, 0
                if fills > 0 and step == fills:
                    for t in range(chosen):
                        _settle(t * most, used[t], width, rows, flushed, exact)
                for t in range(chosen):
                    j = begin * share_sources
                    for at in range(place, max(stop, place + 1)):
                        limit = end * share_sources
                        if at < stop:
                            limit = min(limit, (at + horizon + 1) * share_sources)
                        while j < limit:
                            code = sources[t, j]
                            if code >= 0:
                                code += t * slots
                                old = held[code]
                                if old == _EMPTY:
                                    held[code] = of_source[j]
                                elif old >= 0:
                                    row = t * most + used[t]
                                    used[t] += 1
                                    held[code] = _SEVERAL - row
                                    members[row] = 2
                                    flushed[row] = -1
                                    set_to_sum(rows, row * width, value, old, of_source[j], width)
                                else:
                                    row = _SEVERAL - old
                                    members[row] += 1
                                    add_row(rows, row * width, value, of_source[j], width)
                                    if members[row] % _FLUSH == 0:
                                        if flushed[row] < 0:
                                            flushed[row] = long
                                            set_row(exact, long * width, 0, width)
                                            long += 1
                                        add_row(exact, flushed[row] * width, rows, row * width, width)
                                        set_row(rows, row * width, 0, width)
                            j += 1
                        if at < stop:
                            for i in range(at * share_targets, (at + 1) * share_targets):
                                code = targets[t, i]
                                if code >= 0:
                                    found = held[t * slots + code]
                                    if found >= 0:
                                        add_row(out, of_target[i], value, found, width)
                                        counted[i] += 1
                                    elif found != _EMPTY:
                                        row = _SEVERAL - found
                                        if flushed[row] >= 0:
                                            add_row(out, of_target[i], exact, flushed[row] * width, width)
                                        add_row(out, of_target[i], rows, row * width, width)
                                        counted[i] += members[row]
            for t in range(chosen):
                for j in range(n_sources):
                    if sources[t, j] >= 0:
                        held[t * slots + sources[t, j]] = _EMPTY
        _finish(work, group, first, width, reverse, of_target, counted)


@kernel
def _set_places(work, group, first, reverse, of_source, of_target):
    """Where the values of sources, and the sums of targets, begin."""
    _, share_targets, _, n = work.targets.shape
    _, share_sources, _, m = work.sources.shape
    for head in range(share_sources):
        for at in range(m):
            j = m - 1 - at if reverse else at
            of_source[at * share_sources + head] = work.starts[group, head] + first + j * work.stride
    for head in range(share_targets):
        for at in range(n):
            i = n - 1 - at if reverse else at
            of_target[at * share_targets + head] = ((group * share_targets + head) * n + i) * work.width + first


@kernel
def _settle(first_row, used, width, rows, flushed, exact):
    """Join long sums with what came after their last flush: from now on one row is all there is to read."""
    for row in range(first_row, first_row + used):
        if flushed[row] >= 0:
            add_row(rows, row * width, exact, flushed[row] * width, width)
            flushed[row] = -1


@kernel
def _finish(work, group, first, width, reverse, of_target, counted):
    """Write the counts, divide by them if told, and look whether all is finite."""
    _, share, _, n = work.targets.shape
    finite = True
    for head in range(share):
        for at in range(n):
            met = counted[at * share + head]
            if first == 0:
                work.counts[group, head, n - 1 - at if reverse else at] = met
            if work.divide:
                divide_row(work.out, of_target[at * share + head], max(met, 1), width)
            finite &= is_finite_row(work.out, of_target[at * share + head], width)
    if not finite:
        work.spilled[0] = True
