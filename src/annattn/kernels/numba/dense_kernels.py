"""Sums over the buckets of dense tables on a CPU, piece by piece; `dense` cuts the pieces.

The rows that are added here are LLVM IR written by hand. 65,536 tokens of one head, 8 tables of 8 hashes, two threads:
with `_add_rows` as plain loops a forward call takes longer by 17 % at dim 16 and 32, by 9 at 64 and 12 at 128; with
`_add_row` and `_add_both` as plain loops a causal call takes longer by 30 % at dim 64, and the same at 16, 32 and 128.

Codes are (tables, n) arrays of one head; a negative code takes no part. Sums are kept per table in flat float arrays,
slot after slot, `width` numbers per slot. A block is a run of positions in time; `reverse` counts them from the end.
Whoever meets a row without a bucket sets lost[0], whoever meets a code that there cannot be sets lost[1], and whoever
finds a sum that is not finite spilled[0]. Codes are looked at only where no table is indexed by them, which is free.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.rows import divide_row, is_finite_row
from annattn.kernels.numba.simd import converted, data_of, in_columns, intrinsic, load, loop, store, zero
from annattn.lsh import IGNORED, NO_BUCKET

__all__ = ["Scan", "fill", "join", "read", "scan"]

_STRIP = 2048  # rows summed before they are added to the float64 sums
_U = np.uint64
_SCAN = 1024  # rows scanned table by table, so that they and a table stay in the nearer caches


@intrinsic
def _add_rows(typingctx, target, at, source, offsets, count, width, fresh):
    """target[at + k] (+)= Σ_p source[offsets[p] + k] over p below `count`, for k below `width`.

    The terms are added up in the source's dtype, in registers, and then to the target, or put in its place if `fresh`.
    """
    index = types.intp
    signature = types.void(target, index, source, offsets, index, index, types.boolean)

    def generate(context, builder, signature, arguments):
        _, at, _, _, count, width, fresh = arguments
        own, other = signature.args[0].dtype, signature.args[2].dtype
        to = builder.gep(data_of(context, builder, signature, arguments, 0), [at])
        data = data_of(context, builder, signature, arguments, 2)
        places = data_of(context, builder, signature, arguments, 3)

        def columns(start, lanes, vectors):
            def row(p, sums):
                here = builder.gep(data, [builder.add(builder.load(builder.gep(places, [p])), start)])
                return [
                    builder.fadd(total, load(builder, here, other, lanes, vector)) for vector, total in enumerate(sums)
                ]

            totals = loop(builder, count, [zero(other, lanes)] * vectors, row)
            where = builder.gep(to, [start])
            with builder.if_else(builder.trunc(fresh, ir.IntType(1))) as (put, add):
                for branch, adds in ((put, False), (add, True)):
                    with branch:
                        for vector, total in enumerate(totals):
                            total = converted(builder, total, other, own, lanes)
                            if adds:
                                total = builder.fadd(load(builder, where, own, lanes, vector), total)
                            store(builder, where, total, own, lanes, vector)

        in_columns(builder, width, columns)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _add_row(typingctx, target, at, source, start, width):
    """target[at + k] += source[start + k] for k below `width`, in the dtype of the target."""
    index = types.intp
    signature = types.void(target, index, source, index, index)

    def generate(context, builder, signature, arguments):
        _, at, _, start, width = arguments
        own, other = signature.args[0].dtype, signature.args[2].dtype
        to = builder.gep(data_of(context, builder, signature, arguments, 0), [at])
        of = builder.gep(data_of(context, builder, signature, arguments, 2), [start])

        def columns(k, lanes, vectors):
            there, here = builder.gep(to, [k]), builder.gep(of, [k])
            for vector in range(vectors):
                more = converted(builder, load(builder, here, other, lanes, vector), other, own, lanes)
                total = builder.fadd(load(builder, there, own, lanes, vector), more)
                store(builder, there, total, own, lanes, vector)

        in_columns(builder, width, columns)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _add_both(typingctx, target, at, first, second, start, width):
    """target[at + k] += first[start + k] + second[start + k] for k below `width`; all of one dtype."""
    index = types.intp
    signature = types.void(target, index, first, second, index, index)

    def generate(context, builder, signature, arguments):
        _, at, _, _, start, width = arguments
        dtype = signature.args[0].dtype
        to = builder.gep(data_of(context, builder, signature, arguments, 0), [at])
        parts = [builder.gep(data_of(context, builder, signature, arguments, k), [start]) for k in (2, 3)]

        def columns(k, lanes, vectors):
            there = builder.gep(to, [k])
            for vector in range(vectors):
                one, two = (load(builder, builder.gep(part, [k]), dtype, lanes, vector) for part in parts)
                total = builder.fadd(load(builder, there, dtype, lanes, vector), builder.fadd(one, two))
                store(builder, there, total, dtype, lanes, vector)

        in_columns(builder, width, columns)
        return context.get_dummy_value()

    return signature, generate


@kernel
def _mark(code, lost):
    """Note what a code that is no bucket's stands for."""
    if code == NO_BUCKET:
        lost[0] = True
    elif code != IGNORED:
        lost[1] = True


@kernel
def fill(codes, first_table, tables, value, base, stride, width, start, stop, sums, tally, lost):
    """Add value rows [start, stop) to their buckets in `tables` tables from `first_table` on.

    A strip of rows is summed in the dtype of the values, then added to the float64 sums.
    """
    slots = tally.shape[1]
    small = slots <= _STRIP // 2
    part = np.zeros(slots * width if small else 1, value.dtype)
    strip_codes = np.empty((tables, _STRIP), np.int64)
    for strip in range(start, stop, _STRIP):
        rows = min(_STRIP, stop - strip)
        for row in range(rows):
            for table in range(tables):
                strip_codes[table, row] = codes[first_table + table, strip + row]
        for table in range(tables):
            home = table * slots
            for row in range(rows):
                code = strip_codes[table, row]
                if _U(code) >= _U(slots):
                    _mark(code, lost)
                else:
                    tally[table, code] += 1
                    if small:
                        _add_row(part, code * width, value, base + (strip + row) * stride, width)
                    else:
                        _add_row(sums, (home + code) * width, value, base + (strip + row) * stride, width)
            if small:
                _pour(part, sums[home * width : (home + slots) * width])


@kernel
def read(codes, first_table, sums, tally, width, start, stop, is_first, divide, total, count, lost, spilled):
    """Add to total[start:stop] what each row finds in its buckets; start from zero, and divide at the end, if told."""
    tables, slots = tally.shape
    offsets = np.empty(tables, np.int64)
    for row in range(start, stop):
        met, entries = 0, 0
        for table in range(tables):
            code = codes[first_table + table, row]
            if _U(code) >= _U(slots):
                _mark(code, lost)
            else:
                entries += tally[table, code]
                offsets[met] = (table * slots + code) * width
                met += 1
        count[row] = entries if is_first else count[row] + entries
        _add_rows(total, row * width, sums, offsets, met, width, is_first)
        if divide:
            _divide(total, count, row * width, row, width)
        if not is_finite_row(total, row * width, width):
            spilled[0] = True


class Scan(NamedTuple):
    """What one pass of `scan` works on; see there."""

    targets: np.ndarray
    sources: np.ndarray
    first_table: int
    value: np.ndarray
    bases: np.ndarray
    stride: int
    width: int
    block: tuple[int, int, bool]
    horizon: int
    reverse: bool
    is_first: bool
    divide: bool
    sums: np.ndarray
    tally: np.ndarray
    total: np.ndarray
    total_stride: int
    counts: np.ndarray
    lost: np.ndarray
    spilled: np.ndarray


@kernel
def scan(work):
    """One pass in time over the places of `block`: each source goes into its buckets, then targets read theirs.

    targets (share, tables, n) and sources (share, tables, m) have one place in time per row. The target at place i
    reads when the source at place i + horizon is in. The last block also has those whose horizon lies beyond the
    sources.
    """
    (
        targets, sources, first_table, value, bases, stride, width, block, horizon, reverse,
        is_first, divide, sums, tally, total, total_stride, count, lost, spilled,
    ) = work  # fmt: skip
    begin, end, is_last = block
    share_targets, _, n = targets.shape
    share_sources, _, m = sources.shape
    tables, slots = tally.shape
    # As in `fill`: what a strip adds is kept apart, in the dtype of the values, from what was known before it.
    small = slots <= _STRIP // 2
    known = np.empty(tables * slots * width if small else 1, value.dtype)
    recent = np.zeros(len(known), value.dtype)
    if small:
        known[:] = sums
    finish = max(end, n + horizon) if is_last else end
    for strip in range(begin, finish, _SCAN):
        strip_end = min(strip + _SCAN, finish)
        first_read, last_read = max(strip, horizon), min(strip_end, n + horizon)
        if is_first:
            for place in range(first_read, last_read):
                row = n - 1 - (place - horizon) if reverse else place - horizon
                for head in range(share_targets):
                    _clear(total, count[head], (head * n + row) * total_stride, row, width)
        for table in range(tables):
            column, home = first_table + table, table * slots
            for place in range(strip, strip_end):
                if place < end:
                    row = m - 1 - place if reverse else place
                    for head in range(share_sources):
                        code = sources[head, column, row]
                        if _U(code) >= _U(slots):
                            _mark(code, lost)
                        else:
                            tally[table, code] += 1
                            if small:
                                _add_row(recent, (home + code) * width, value, bases[head] + row * stride, width)
                            else:
                                _add_row(sums, (home + code) * width, value, bases[head] + row * stride, width)
                if place >= first_read and place < last_read:
                    row = n - 1 - (place - horizon) if reverse else place - horizon
                    for head in range(share_targets):
                        code = targets[head, column, row]
                        if _U(code) >= _U(slots):
                            _mark(code, lost)
                        else:
                            count[head, row] += tally[table, code]
                            at = (head * n + row) * total_stride
                            if small:
                                _add_both(total, at, known, recent, (home + code) * width, width)
                            else:
                                _add_row(total, at, sums, (home + code) * width, width)
        if small and (strip_end - begin) % _STRIP == 0:
            _pour(recent, sums)
            known[:] = sums
        for place in range(first_read, last_read):
            row = n - 1 - (place - horizon) if reverse else place - horizon
            for head in range(share_targets):
                at = (head * n + row) * total_stride
                if divide:
                    _divide(total, count[head], at, row, width)
                if not is_finite_row(total, at, width):
                    spilled[0] = True


@kernel
def join(total, count, more, entries, width, start, stop, divide, spilled):
    """Add the sums and counts of other tables to total[start:stop]; divide at the end, if told."""
    _add_row(total, start * width, more, start * width, (stop - start) * width)
    for row in range(start, stop):
        count[row] += entries[row]
        if divide:
            _divide(total, count, row * width, row, width)
        if not is_finite_row(total, row * width, width):
            spilled[0] = True


@kernel
def _pour(part, sums):
    """Add a part to the sums and empty it."""
    _add_row(sums, 0, part, 0, len(part))
    part[:] = 0


@kernel
def _clear(total, count, at, row, width):
    count[row] = 0
    total[at : at + width] = 0


@kernel(inlined=True)
def _divide(total, count, at, row, width):
    divide_row(total, at, max(count[row], 1), width)
