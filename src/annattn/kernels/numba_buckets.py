"""Sums and newest members of hash buckets on a CPU, piece by piece; `numba_backend` cuts the pieces.

Codes are (n, tables) arrays of one head; a negative code takes no part. Sums are kept per table in flat float arrays,
slot after slot, `width` numbers a slot. A block is a run of positions in time; `reverse` counts them from the end.
"""

import numpy as np
from llvmlite import ir
from numba import types

from annattn.kernels.compiled import kernel
from annattn.kernels.simd import I64, LANES, intrinsic, loop

__all__ = ["fill", "newest", "number_codes", "number_rows", "read", "scan"]

_STRIP = 256  # rows handled table by table, so that a table and the rows stay in the nearest cache together


@intrinsic
def _add_row(typingctx, target, at, source, start, count):
    """target[at + k] += source[start + k] for k below `count`, in the dtype of the target; flat float arrays."""
    index = types.intp
    signature = types.void(target, index, source, index, index)

    def generate(context, builder, signature, arguments):
        target, at, source, start, count = arguments
        target = context.make_array(signature.args[0])(context, builder, target)
        source = context.make_array(signature.args[2])(context, builder, source)
        to = builder.gep(target.data, [at])
        of = builder.gep(source.data, [start])
        own, other = (context.get_value_type(array.dtype) for array in (signature.args[0], signature.args[2]))

        sizes = [array.dtype.bitwidth // 8 for array in (signature.args[0], signature.args[2])]

        def add(own, other, k):
            there = builder.bitcast(builder.gep(to, [k]), own.as_pointer())
            here = builder.bitcast(builder.gep(of, [k]), other.as_pointer())
            now, more = builder.load(there, align=sizes[0]), builder.load(here, align=sizes[1])
            if sizes[0] != sizes[1]:
                more = builder.fpext(more, own) if sizes[0] > sizes[1] else builder.fptrunc(more, own)
            builder.store(builder.fadd(now, more), there, align=sizes[0])

        whole = builder.lshr(count, I64(3))

        def eight(k, _):
            add(ir.VectorType(own, LANES), ir.VectorType(other, LANES), builder.shl(k, I64(3)))
            return []

        def one(k, _):
            add(own, other, builder.add(builder.shl(whole, I64(3)), k))
            return []

        loop(builder, whole, [], eight)
        loop(builder, builder.and_(count, I64(LANES - 1)), [], one)
        return context.get_dummy_value()

    return signature, generate


@kernel
def fill(codes, first_table, tables, value, base, stride, width, start, stop, sums, tally):
    """Add value rows [start, stop) to their buckets in `tables` tables from `first_table` on."""
    slots = tally.shape[1]
    for strip in range(start, stop, _STRIP):
        for table in range(tables):
            for row in range(strip, min(strip + _STRIP, stop)):
                code = codes[row, first_table + table]
                if code >= 0:
                    tally[table, code] += 1
                    _add_row(sums, (table * slots + code) * width, value, base + row * stride, width)


@kernel
def read(codes, first_table, sums, tally, width, start, stop, is_first, divide, total, count):
    """Add to total[start:stop] what each row finds in its buckets; start from zero, and divide at the end, if told."""
    slots = tally.shape[1]
    for row in range(start, stop):
        if is_first:
            _clear(total, count, row, row, width)
        for table in range(tally.shape[0]):
            code = codes[row, first_table + table]
            if code >= 0:
                count[row] += tally[table, code]
                _add_row(total, row * width, sums, (table * slots + code) * width, width)
        if divide:
            _divide(total, count, row, row, width)


@kernel
def scan(
    targets, sources, first_table, value, bases, stride, width, block, horizon, reverse, is_first, divide,
    sums, tally, total, count,
):  # fmt: skip
    """One pass in time over the places of `block`: each source goes into its buckets, then targets read theirs.

    targets (share, n, tables) and sources (share, m, tables) have one place in time a row. The target at place i reads
    when the source at place i + horizon is in; in the last block also those whose horizon lies beyond the sources.
    """
    begin, end, is_last = block
    share_targets, n, _ = targets.shape
    share_sources, m, _ = sources.shape
    slots = tally.shape[1]
    finish = max(end, n + horizon) if is_last else end
    for strip in range(begin, finish, _STRIP):
        strip_end = min(strip + _STRIP, finish)
        reads = max(strip, horizon), min(strip_end, n + horizon)
        if is_first:
            for place in range(reads[0], reads[1]):
                row = n - 1 - (place - horizon) if reverse else place - horizon
                for head in range(share_targets):
                    _clear(total, count[head], head * n + row, row, width)
        for table in range(tally.shape[0]):
            home = table * slots
            for place in range(strip, strip_end):
                if place < end:
                    row = m - 1 - place if reverse else place
                    for head in range(share_sources):
                        code = sources[head, row, first_table + table]
                        if code >= 0:
                            tally[table, code] += 1
                            _add_row(sums, (home + code) * width, value, bases[head] + row * stride, width)
                if place >= reads[0] and place < reads[1]:
                    row = n - 1 - (place - horizon) if reverse else place - horizon
                    for head in range(share_targets):
                        code = targets[head, row, first_table + table]
                        if code >= 0:
                            count[head, row] += tally[table, code]
                            _add_row(total, (head * n + row) * width, sums, (home + code) * width, width)
        if divide:
            for place in range(reads[0], reads[1]):
                row = n - 1 - (place - horizon) if reverse else place - horizon
                for head in range(share_targets):
                    _divide(total, count[head], head * n + row, row, width)


@kernel
def _clear(total, count, at, row, width):
    count[row] = 0
    total[at * width : (at + 1) * width] = 0


@kernel
def _divide(total, count, at, row, width):
    here = total[at * width : (at + 1) * width]
    divisor = total.dtype.type(max(count[row], 1))
    for k in range(width):
        here[k] /= divisor


@kernel
def newest(targets, sources, table, slots, horizon, found):
    """Position of the newest source in each target's bucket, as causal attention sees it; -1 where there is none."""
    share, n, _ = targets.shape
    m = sources.shape[0]
    held = np.full(slots, -1, np.int64)
    entered = 0
    for at in range(n):
        while entered < m and entered <= at + horizon:
            code = sources[entered, table]
            if code >= 0:
                held[code] = entered
            entered += 1
        for head in range(share):
            code = targets[head, at, table]
            found[head, at, table] = held[code] if code >= 0 else -1


@kernel
def number_codes(targets, sources, table, new_targets, new_sources):
    """Number the codes of `sources` in order of appearance, exactly; targets that meet none of them get -2.

    Open addressing with the full code compared, so that no two codes ever share a number. Returns how many there are.
    """
    names = np.full(_room(sources.shape[0]), -1, np.int64)
    numbers = np.empty(len(names), np.int64)
    mask = np.uint64(len(names) - 1)
    used = 0
    for row in range(sources.shape[0]):
        code = sources[row, table]
        if code < 0:
            new_sources[row, table] = code
            continue
        at = _mixed(np.uint64(code)) & mask
        while names[at] != -1 and names[at] != code:
            at = (at + np.uint64(1)) & mask
        if names[at] == -1:
            names[at] = code
            numbers[at] = used
            used += 1
        new_sources[row, table] = numbers[at]
    for row in range(targets.shape[0]):
        code = targets[row, table]
        if code < 0:
            new_targets[row, table] = code
            continue
        at = _mixed(np.uint64(code)) & mask
        while names[at] != -1 and names[at] != code:
            at = (at + np.uint64(1)) & mask
        new_targets[row, table] = numbers[at] if names[at] == code else -2
    return used


@kernel
def number_rows(rows, usable, numbers):
    """Number equal rows (n, width) of int64 alike, in order of appearance; those not usable get -2.

    The same open addressing, with whole rows compared.
    """
    count, width = rows.shape
    holders = np.full(_room(count), -1, np.int64)
    mask = np.uint64(len(holders) - 1)
    used = 0
    for row in range(count):
        if not usable[row]:
            numbers[row] = -2
            continue
        at = np.uint64(0)
        for k in range(width):
            at = _mixed(at ^ np.uint64(rows[row, k]))
        at &= mask
        while True:
            holder = holders[at]
            if holder == -1:
                holders[at] = row
                numbers[row] = used
                used += 1
                break
            same = True
            for k in range(width):
                if rows[holder, k] != rows[row, k]:
                    same = False
                    break
            if same:
                numbers[row] = numbers[holder]
                break
            at = (at + np.uint64(1)) & mask


@kernel
def _room(entries):
    """A power of two with at least half of it free."""
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


@kernel
def _mixed(x):
    """Spread 64 bits so that the low ones depend on all (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
