"""Buckets of one head in flat arrays, which grow with use: the compiled half of `NumbaTables`.

Values are stored once. A bucket is the number of its only member, a list of a few, or a row with the float64 sum of
many. Of each table the buckets that occur are found by open addressing, or by the code itself once that takes less.

A head is one line of int64: where its arrays lie, how long they are, and how much of them is used. So one compiled call
sees all heads. A kernel that finds an array full says which, and goes on where it stopped after Python has seen to it.
"""

import numpy as np
from numba import carray, types  # pyright: ignore[reportPrivateImportUsage]
from numba.extending import intrinsic

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.rows import add_row, set_row
from annattn.kernels.numba.simd import prefetch
from annattn.kernels.tables import LIST, MOST_LISTED, ROW, SINGLE

__all__ = [
    "BAD_CODE", "COUNTS", "DIRECT", "DONE", "ENTRIES", "FIELDS", "FREE_LIST", "KEYS", "LISTS", "LISTS_FULL",
    "LISTS_USED", "LIST_ROOM", "LOST", "MAP_FULL", "ONLY_ROWS", "PLACES", "RECORD", "ROWS_FULL", "ROWS_USED",
    "ROW_ROOM", "SUMS", "TAKEN", "VALUES", "VALUES_FULL", "VALUES_USED", "VALUE_ROOM", "array_of", "expect_bucket",
    "expect_place", "expect_value", "find", "home", "insert", "merge_head", "only_rows", "put",
    "rehash",
]  # fmt: skip

# The fields of a head: addresses, …
ENTRIES, KEYS, TAKEN, VALUES, LISTS, SUMS, COUNTS = range(7)
# … sizes, …
PLACES, DIRECT, VALUE_ROOM, VALUES_USED, LIST_ROOM, LISTS_USED, FREE_LIST, ROW_ROOM, ROWS_USED = range(7, 16)
# … and flags.
ONLY_ROWS, LOST = 16, 17
FIELDS = 18

RECORD = 1 + MOST_LISTED  # a list: how many members, and which

# Why a kernel stopped.
DONE, VALUES_FULL, LISTS_FULL, ROWS_FULL, MAP_FULL, BAD_CODE = range(6)

_MIX = np.uint64(0x9E3779B97F4A7C15)
_INT32, _INT64, _FLOAT64 = np.empty(1, np.int32), np.empty(1, np.int64), np.empty(1, np.float64)


@intrinsic
def _pointer(typing, address, like):
    """An address as a pointer to what the array `like` holds."""
    pointer = types.CPointer(like.dtype)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(address, like), generate


@kernel(inlined=True)
def array_of(head, field, size, like):
    """The array of a head that a field says the address of, with numbers of the kind of `like`."""
    return carray(_pointer(head[field], like), (size,))  # pyright: ignore[reportCallIssue]


@kernel(inlined=True)
def find(entries, keys, base, places, direct, code):
    """Where a bucket of the table that begins at `base` stands, or would stand."""
    at = home(places, direct, code)
    if direct:
        return base + at
    while entries[base + at] != 0 and keys[base + at] != code:
        at = (at + 1) & (places - 1)
    return base + at


@kernel(inlined=True)
def home(places, direct, code):
    """Where in its table a bucket stands, or begins to be looked for."""
    return code if direct else np.int64((np.uint64(code) * _MIX) >> np.uint64(32)) & (places - 1)


@kernel(inlined=True)
def expect_place(head, table, code):
    """Begin to load what says where a bucket is."""
    places, direct = head[PLACES], head[DIRECT] != 0
    if code >= 0:
        at = table * places + home(places, direct, code)
        prefetch(array_of(head, ENTRIES, at + 1, _INT32), at)
        if not direct:
            prefetch(array_of(head, KEYS, at + 1, _INT64), at)


@kernel(inlined=True)
def expect_bucket(head, entry, width, values):
    """Begin to load the row of a bucket, its list, or its only member unless there are no `values`."""
    kind, at = entry & 3, np.int64(entry >> 2)
    if kind == ROW:
        sums = array_of(head, SUMS, 0, _FLOAT64)
        for k in range(at * width, at * width + width, 8):
            prefetch(sums, k)
        prefetch(array_of(head, COUNTS, 0, _INT64), at)
    elif kind == LIST:
        prefetch(array_of(head, LISTS, 0, _INT32), at * RECORD)
    elif kind == SINGLE and len(values):
        expect_value(values, at * width, width)


@kernel(inlined=True)
def expect_value(values, begin, width):
    """Begin to load values[begin : begin + width]."""
    for k in range(begin, begin + width, 64 // values.itemsize):
        prefetch(values, k)


@kernel
def put(head, table, code, number, source, begin, width, newest, listed, values):
    """Let one value, source[begin:], enter a bucket; `number` is its place among the values if those are kept."""
    places, direct, tables_end = head[PLACES], head[DIRECT] != 0, (table + 1) * head[PLACES]
    entries, keys = array_of(head, ENTRIES, tables_end, _INT32), array_of(head, KEYS, tables_end, _INT64)
    slot = find(entries, keys, table * places, places, direct, code)
    entry = entries[slot]
    kind, at = entry & 3, entry >> 2
    if entry == 0:
        taken = array_of(head, TAKEN, table + 1, _INT32)
        if not direct and 4 * (taken[table] + 1) > 3 * places:
            return MAP_FULL
        if head[ONLY_ROWS] == 0:
            entries[slot] = 4 * number + SINGLE
        else:
            if head[ROWS_USED] == head[ROW_ROOM]:
                return ROWS_FULL
            row = _new_row(head, width)
            add_row(array_of(head, SUMS, head[ROW_ROOM] * width, _FLOAT64), row * width, source, begin, width)
            array_of(head, COUNTS, head[ROW_ROOM], _INT64)[row] = 1
            entries[slot] = 4 * row + ROW
        if not direct:
            keys[slot] = code
        taken[table] += 1
        return DONE
    if kind == ROW:
        sums = array_of(head, SUMS, head[ROW_ROOM] * width, _FLOAT64)
        if newest:
            set_row(sums, np.int64(at) * width, 0.0, width)
        else:
            array_of(head, COUNTS, head[ROW_ROOM], _INT64)[at] += 1
        add_row(sums, np.int64(at) * width, source, begin, width)
        return DONE
    if newest:
        entries[slot] = 4 * number + SINGLE
        return DONE
    if kind == SINGLE and listed:
        chosen = head[FREE_LIST]
        if chosen < 0 and head[LISTS_USED] == head[LIST_ROOM]:
            return LISTS_FULL
        lists = array_of(head, LISTS, head[LIST_ROOM] * RECORD, _INT32)
        if chosen >= 0:
            head[FREE_LIST] = lists[chosen * RECORD]
        else:
            chosen = head[LISTS_USED]
            head[LISTS_USED] += 1
        lists[chosen * RECORD], lists[chosen * RECORD + 1], lists[chosen * RECORD + 2] = 2, at, number
        entries[slot] = 4 * chosen + LIST
        return DONE
    if kind == LIST:
        lists = array_of(head, LISTS, head[LIST_ROOM] * RECORD, _INT32)
        size = lists[at * RECORD]
        if size < MOST_LISTED:
            lists[at * RECORD + 1 + size] = number
            lists[at * RECORD] = size + 1
            return DONE
    if head[ROWS_USED] == head[ROW_ROOM]:
        return ROWS_FULL
    row, members = _as_row(head, entry, width, values)
    add_row(array_of(head, SUMS, head[ROW_ROOM] * width, _FLOAT64), row * width, source, begin, width)
    array_of(head, COUNTS, head[ROW_ROOM], _INT64)[row] = members + 1
    entries[slot] = 4 * row + ROW
    return DONE


@kernel
def _new_row(head, width):
    row = head[ROWS_USED]
    head[ROWS_USED] += 1
    set_row(array_of(head, SUMS, head[ROW_ROOM] * width, _FLOAT64), row * width, 0.0, width)
    return row


@kernel
def _as_row(head, entry, width, values):
    """A new row with the sum of a bucket's one or few members; there must be room for it. Also how many they are."""
    row, at = _new_row(head, width), np.int64(entry >> 2)
    sums = array_of(head, SUMS, head[ROW_ROOM] * width, _FLOAT64)
    if entry & 3 == SINGLE:
        add_row(sums, row * width, values, at * width, width)
        return row, 1
    lists = array_of(head, LISTS, head[LIST_ROOM] * RECORD, _INT32)
    size = lists[at * RECORD]
    for k in range(size):
        add_row(sums, row * width, values, np.int64(lists[at * RECORD + 1 + k]) * width, width)
    lists[at * RECORD] = head[FREE_LIST]
    head[FREE_LIST] = at
    return row, size


@kernel
def rehash(head, tables, old_entries, old_keys, old_places):
    """Enter buckets found at old places, which had keys, into the head's new and empty ones."""
    places, direct = head[PLACES], head[DIRECT] != 0
    entries, keys = (
        array_of(head, ENTRIES, tables * places, _INT32),
        array_of(head, KEYS, tables * places, _INT64),
    )
    for table in range(tables):
        for at in range(table * old_places, (table + 1) * old_places):
            if old_entries[at] != 0:
                slot = find(entries, keys, table * places, places, direct, old_keys[at])
                entries[slot] = old_entries[at]
                if not direct:
                    keys[slot] = old_keys[at]


@kernel
def insert(head, table, codes, kinds):
    """Enter buckets (table, code) that are what `kinds` says into places that are empty and enough."""
    places, direct = head[PLACES], head[DIRECT] != 0
    size = (table.max() + 1) * places
    entries, keys = array_of(head, ENTRIES, size, _INT32), array_of(head, KEYS, size, _INT64)
    taken = array_of(head, TAKEN, table.max() + 1, _INT32)
    for k in range(len(codes)):
        slot = find(entries, keys, table[k] * places, places, direct, codes[k])
        entries[slot] = kinds[k]
        if not direct:
            keys[slot] = codes[k]
        taken[table[k]] += 1


@kernel
def only_rows(head, tables, width, like):
    """Make every bucket a row; there must be room for them. Values and lists are needed no more."""
    values = array_of(head, VALUES, head[VALUE_ROOM] * width, like)
    entries = array_of(head, ENTRIES, tables * head[PLACES], _INT32)
    for slot in range(len(entries)):
        if entries[slot] != 0 and entries[slot] & 3 != ROW:
            row, members = _as_row(head, entries[slot], width, values)
            array_of(head, COUNTS, head[ROW_ROOM], _INT64)[row] = members
            entries[slot] = 4 * row + ROW
    head[ONLY_ROWS] = 1


@kernel
def merge_head(head, other, tables, width, newest, listed, number, names, like, progress):
    """Let all buckets of another head enter this one; `number` is where its values begin among this one's.

    Codes become names[code], if there are names. `progress` is where an earlier call stopped: table, place, member.
    """
    places, direct = other[PLACES], other[DIRECT] != 0
    entries, keys = (
        array_of(other, ENTRIES, tables * places, _INT32),
        array_of(other, KEYS, tables * places, _INT64),
    )
    theirs = array_of(other, VALUES, other[VALUE_ROOM] * width, like)
    sums, counts = (
        array_of(other, SUMS, other[ROW_ROOM] * width, _FLOAT64),
        array_of(other, COUNTS, other[ROW_ROOM], _INT64),
    )
    lists = array_of(other, LISTS, other[LIST_ROOM] * RECORD, _INT32)
    values = array_of(head, VALUES, head[VALUE_ROOM] * width, like)
    for table in range(progress[0], tables):
        progress[0] = table
        for place in range(progress[1], places):
            progress[1] = place
            entry = entries[table * places + place]
            if entry == 0:
                continue
            code = place if direct else keys[table * places + place]
            if len(names):
                if code >= len(names):
                    return BAD_CODE
                code = names[code]
            kind, at = entry & 3, np.int64(entry >> 2)
            if kind == ROW:
                reason = _put_row(head, table, code, sums, at, counts[at], width, newest, values)
                if reason != DONE:
                    return reason
                continue
            size = 1 if kind == SINGLE else lists[at * RECORD]
            for k in range(progress[2], size):
                progress[2] = k
                member = at if kind == SINGLE else np.int64(lists[at * RECORD + 1 + k])
                reason = put(head, table, code, number + member, theirs, member * width, width, newest, listed, values)
                if reason != DONE:
                    return reason
            progress[2] = 0
        progress[1] = 0
    return DONE


@kernel
def _put_row(head, table, code, source, at, members, width, newest, values):
    """Let a row of many members enter a bucket, which then is a row."""
    places, direct, tables_end = head[PLACES], head[DIRECT] != 0, (table + 1) * head[PLACES]
    entries, keys = array_of(head, ENTRIES, tables_end, _INT32), array_of(head, KEYS, tables_end, _INT64)
    slot = find(entries, keys, table * places, places, direct, code)
    entry = entries[slot]
    taken = array_of(head, TAKEN, table + 1, _INT32)
    if entry == 0 and not direct and 4 * (taken[table] + 1) > 3 * places:
        return MAP_FULL
    if entry & 3 != ROW and head[ROWS_USED] == head[ROW_ROOM]:
        return ROWS_FULL
    if entry == 0:
        row, before = _new_row(head, width), np.int64(0)
        taken[table] += 1
        if not direct:
            keys[slot] = code
    elif entry & 3 == ROW:
        row = np.int64(entry >> 2)
        before = array_of(head, COUNTS, head[ROW_ROOM], _INT64)[row]
    else:
        row, size = _as_row(head, entry, width, values)
        before = np.int64(size)
    sums = array_of(head, SUMS, head[ROW_ROOM] * width, _FLOAT64)
    if newest:
        set_row(sums, row * width, 0.0, width)
        before = np.int64(0)
    add_row(sums, row * width, source, at * width, width)
    array_of(head, COUNTS, head[ROW_ROOM], _INT64)[row] = before + members
    entries[slot] = 4 * row + ROW
    return DONE
