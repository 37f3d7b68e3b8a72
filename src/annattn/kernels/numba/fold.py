"""Letting tokens into the buckets of tables that live on, few or many at a time; and what room that will take."""

import numpy as np

from annattn.kernels.numba.bucket_store import (
    COUNTS,
    DIRECT,
    DONE,
    ENTRIES,
    LIST_ROOM,
    LISTS,
    LOST,
    ONLY_ROWS,
    PLACES,
    RECORD,
    ROW_ROOM,
    SUMS,
    VALUE_ROOM,
    VALUES,
    VALUES_FULL,
    VALUES_USED,
    array_of,
    expect_bucket,
    expect_place,
    expect_value,
    home,
    put,
)
from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.rows import add_four_rows, add_row, copy_row
from annattn.kernels.tables import LIST, MOST_LISTED, ROW, SINGLE
from annattn.lsh import NO_BUCKET

__all__ = ["fold", "forecast"]

_FAR, _NEAR = 16, 8  # how many buckets ahead to look for one, and to load it
_SOON = 16  # how many members ahead to load one, of those that are sorted

_MANY = 64  # tokens from which on it may be worth sorting them by bucket

_INT32, _INT64, _FLOAT64 = np.empty(1, np.int32), np.empty(1, np.int64), np.empty(1, np.float64)


@kernel
def fold(heads, first, last, shape, codes, source, starts, stride, which, edges, progress):
    """Let tokens enter the buckets of heads [first, last): those in which[edges[b] : edges[b + 1]] of batch row b.

    shape = (heads per batch row, buckets, width, newest, listed). codes are (heads, tables, n), and token i of head g
    has the value source[starts[g] + i · stride:]. `progress` is where an earlier call stopped: head, table, token, and
    whether the head's values are in.
    """
    per_row, _, width, newest, listed = shape
    tables, many = codes.shape[1], len(which) >= _MANY
    order = np.empty(len(which) if many else 0, np.int32)
    ends = np.empty(len(which) + 2 if many else 0, np.int32)
    for g in range(max(first, progress[0]), last):
        if g != progress[0]:
            progress[:] = 0
            progress[0] = g
        head = heads[g]
        tokens = which[edges[g // per_row] : edges[g // per_row + 1]]
        count = len(tokens)
        if progress[3] == 0 and head[ONLY_ROWS] == 0:
            if head[VALUES_USED] + count > head[VALUE_ROOM]:
                return VALUES_FULL
            values = array_of(head, VALUES, head[VALUE_ROOM] * width, source)
            at = head[VALUES_USED] * width
            for i in tokens:
                copy_row(values, at, source, starts[g] + i * stride, width)
                at += width
            head[VALUES_USED] += count
        if progress[3] == 0:
            progress[3] = 1
            for i in tokens:
                if codes[g, 0, i] == NO_BUCKET:
                    head[LOST] = 1
        number = head[VALUES_USED] - count
        places, direct = head[PLACES], head[DIRECT] != 0
        entries = array_of(head, ENTRIES, tables * places, _INT32)
        if many and direct and count >= places:
            # Bucket by bucket, so that each is in the nearest cache while its many members come.
            for table in range(progress[1], tables):
                members = _sort(codes, g, table, tokens, order, ends, places)
                reason = _enter_sorted(
                    head, table, members, order, ends, tokens, number, source, starts[g], stride, width, newest, listed,
                    progress,
                )  # fmt: skip
                if reason != DONE:
                    progress[1] = table
                    return reason
                progress[2] = 0
            continue
        # What is to come is loaded ahead: first where a bucket is, then the bucket itself.
        far = near = progress[1] * count + progress[2]
        far_table = near_table = progress[1]
        for table in range(progress[1], tables):
            for k in range(progress[2], count):
                while far < table * count + k + _FAR and far_table < tables:
                    expect_place(head, far_table, codes[g, far_table, tokens[far - far_table * count]])
                    far += 1
                    far_table += far == (far_table + 1) * count
                while near < table * count + k + _NEAR and near_table < tables:
                    code = codes[g, near_table, tokens[near - near_table * count]]
                    if code >= 0:
                        at = near_table * places + home(places, direct, code)
                        expect_bucket(head, entries[at], width, source[:0])
                    near += 1
                    near_table += near == (near_table + 1) * count
                code = codes[g, table, tokens[k]]
                if code >= 0:
                    begin = starts[g] + tokens[k] * stride
                    reason = _enter(head, table, code, number + k, source, begin, width, newest, listed)
                    if reason != DONE:
                        progress[1], progress[2] = table, k
                        return reason
            progress[2] = 0
    return DONE


@kernel
def forecast(heads, first, last, shape, codes, which, edges, needed):
    """What heads [first, last) with a place per code will need for tokens that `fold` is to let in.

    needed[g] = (buckets, lists, rows) more than there are; with lists and values, or with rows alone.
    """
    per_row, buckets, _, _, listed = shape
    tables, most = codes.shape[1], MOST_LISTED if listed else 1
    more = np.empty(buckets, np.int32)
    for g in range(first, last):
        head, alone = heads[g], heads[g, ONLY_ROWS] != 0
        entries = array_of(head, ENTRIES, tables * buckets, _INT32)
        lists = array_of(head, LISTS, head[LIST_ROOM] * RECORD, _INT32)
        needed[g] = 0
        for table in range(tables):
            more[:] = 0
            for at in range(edges[g // per_row], edges[g // per_row + 1]):
                code = codes[g, table, which[at]]
                if code >= 0:
                    more[code] += 1
            for code in range(buckets):
                entry = entries[table * buckets + code]
                if more[code] == 0 or entry & 3 == ROW:
                    continue
                members = np.int32(entry & 3 == SINGLE) if entry & 3 != LIST else lists[(entry >> 2) * RECORD]
                needed[g, 0] += entry == 0
                if alone or members + more[code] > most:
                    needed[g, 2] += 1
                    needed[g, 1] -= members > 1
                else:
                    needed[g, 1] += members < 2 and members + more[code] > 1


@kernel(inlined=True)
def _enter(head, table, code, number, source, begin, width, newest, listed):
    """`put`, with what is most common done at once."""
    if head[DIRECT] != 0 and not newest:
        at = table * head[PLACES] + code
        entry = array_of(head, ENTRIES, at + 1, _INT32)[at]
        if entry & 3 == ROW:
            row = np.int64(entry >> 2)
            add_row(array_of(head, SUMS, head[ROW_ROOM] * width, _FLOAT64), row * width, source, begin, width)
            array_of(head, COUNTS, row + 1, _INT64)[row] += 1
            return DONE
    values = array_of(head, VALUES, head[VALUE_ROOM] * width, source)
    return put(head, table, code, number, source, begin, width, newest, listed, values)


@kernel
def _enter_sorted(
    head, table, members, order, ends, tokens, number, source, start, stride, width, newest, listed, progress
):  # fmt: skip
    """Let members that are sorted by bucket enter one table, from progress[2] on."""
    places, at = head[PLACES], progress[2]
    entries = array_of(head, ENTRIES, (table + 1) * places, _INT32)
    values = array_of(head, VALUES, head[VALUE_ROOM] * width, source)
    for code in range(places):
        slot, end = table * places + code, np.int64(ends[code])
        while at < end:
            if newest or entries[slot] & 3 != ROW:
                token = tokens[order[at]]
                begin = start + token * stride
                reason = put(head, table, code, number + order[at], source, begin, width, newest, listed, values)
                if reason != DONE:
                    progress[2] = at
                    return reason
                at += 1
                continue
            row = np.int64(entries[slot] >> 2)
            sums = array_of(head, SUMS, (row + 1) * width, _FLOAT64)
            array_of(head, COUNTS, row + 1, _INT64)[row] += end - at
            while at < end:
                for k in range(at + _SOON, min(at + _SOON + 4, members)):
                    expect_value(source, start + tokens[order[k]] * stride, width)
                if at + 4 > end:
                    add_row(sums, row * width, source, start + tokens[order[at]] * stride, width)
                    at += 1
                else:
                    add_four_rows(
                        sums, row * width, source, start + tokens[order[at]] * stride,
                        start + tokens[order[at + 1]] * stride, start + tokens[order[at + 2]] * stride,
                        start + tokens[order[at + 3]] * stride, width,
                    )  # fmt: skip
                    at += 4
    return DONE


@kernel
def _sort(codes, g, table, tokens, order, ends, places):
    """Put the numbers of the tokens that take part in order of their codes, and of time; how many they are."""
    ends[: places + 1] = 0
    for k in range(len(tokens)):
        ends[codes[g, table, tokens[k]] + 1 if codes[g, table, tokens[k]] >= 0 else places] += 1
    for code in range(1, places):
        ends[code] += ends[code - 1]
    members = 0
    for k in range(len(tokens)):
        code = codes[g, table, tokens[k]]
        if code >= 0:
            order[ends[code]] = k
            ends[code] += 1
            members += 1
    return members
