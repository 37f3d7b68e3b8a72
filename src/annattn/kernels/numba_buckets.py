"""Sums and newest members of hash buckets on a CPU, piece by piece; `numba_backend` cuts the pieces.

Codes are (n, tables) arrays of one head; a negative code takes no part. Sums are kept per table in flat float arrays,
slot after slot, `width` numbers a slot. A block is a run of positions in time; `reverse` counts them from the end.
"""

import numpy as np

from annattn.kernels.compiled import kernel
from annattn.kernels.simd import add_row

__all__ = ["divide_rows", "fill", "first_lost", "newest", "number_codes", "read", "scan"]

_STRIP = 256  # rows handled table by table, so that a table and the rows stay in the nearest cache together


@kernel
def fill(codes, table, value, base, stride, width, start, stop, sums, tally):
    """Add value rows [start, stop) to the buckets of one table."""
    for row in range(start, stop):
        code = codes[row, table]
        if code >= 0:
            tally[code] += 1
            add_row(sums, code * width, value, base + row * stride, width)


@kernel
def read(codes, first_table, sums, tally, width, start, stop, total, count):
    """Add to total[start:stop] what each row finds in its buckets; with the first table, start from zero."""
    slots = tally.shape[1]
    for row in range(start, stop):
        if first_table == 0:
            count[row] = 0
            total[row * width : (row + 1) * width] = 0
        for table in range(tally.shape[0]):
            code = codes[row, first_table + table]
            if code >= 0:
                count[row] += tally[table, code]
                add_row(total, row * width, sums, (table * slots + code) * width, width)


@kernel
def scan(targets, sources, first_table, value, base, stride, width, block, horizon, reverse, sums, tally, total, count):
    """One pass in time over the positions of `block`: each source goes into its buckets, then targets read theirs.

    targets (share, n, tables) and sources (share, m, tables) have one position in time each; a target at place i reads
    when the source at place i + horizon is in, and with no source left when it is the last block.
    """
    begin, end, is_last = block
    share_targets, n, _ = targets.shape
    share_sources, m, _ = sources.shape
    slots = tally.shape[1]
    last_place = end
    if is_last:
        last_place = max(end, n + horizon)
    for strip in range(begin, last_place, _STRIP):
        strip_end = min(strip + _STRIP, last_place)
        if first_table == 0:
            for place in range(max(strip, horizon), min(strip_end, n + horizon)):
                row = n - 1 - (place - horizon) if reverse else place - horizon
                for head in range(share_targets):
                    count[head, row] = 0
                    total[(head * n + row) * width : (head * n + row + 1) * width] = 0
        for table in range(tally.shape[0]):
            for place in range(strip, strip_end):
                if place < end:
                    row = m - 1 - place if reverse else place
                    for head in range(share_sources):
                        code = sources[head, row, first_table + table]
                        if code >= 0:
                            tally[table, code] += 1
                            add_row(sums, (table * slots + code) * width, value, base[head] + row * stride, width)
                at = place - horizon
                if at >= 0 and at < n:
                    row = n - 1 - at if reverse else at
                    for head in range(share_targets):
                        code = targets[head, row, first_table + table]
                        if code >= 0:
                            count[head, row] += tally[table, code]
                            add_row(total, (head * n + row) * width, sums, (table * slots + code) * width, width)


@kernel
def divide_rows(total, count, spoiled, start, stop, width):
    """Turn sums into means; a row without a count stays zero, a spoiled one becomes NaN."""
    for row in range(start, stop):
        here = total[row * width : (row + 1) * width]
        if spoiled[row]:
            for k in range(width):
                here[k] = np.nan
        elif count[row] > 1:
            for k in range(width):
                here[k] /= count[row]


@kernel
def first_lost(codes, lost):
    """The first position whose code is `lost`, or n."""
    for row in range(codes.shape[0]):
        if codes[row, 0] == lost:
            return row
    return codes.shape[0]


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
    m = sources.shape[0]
    size = 16
    while size < 2 * m:
        size *= 2
    names = np.full(size, -1, np.int64)
    numbers = np.empty(size, np.int64)
    mask = np.uint64(size - 1)
    used = 0
    for row in range(m):
        code = sources[row, table]
        if code < 0:
            new_sources[row, table] = code
            continue
        at = (np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20) & mask
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
        at = (np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20) & mask
        while names[at] != -1 and names[at] != code:
            at = (at + np.uint64(1)) & mask
        new_targets[row, table] = numbers[at] if names[at] == code else -2
    return used
