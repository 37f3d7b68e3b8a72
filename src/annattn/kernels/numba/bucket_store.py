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
from annattn.kernels.tables import LIST, MOST_LISTED, ROW, SINGLE
from annattn.lsh import NO_BUCKET

__all__ = [
    "BAD_CODE", "COUNTS", "DIRECT", "ENTRIES", "FIELDS", "FREE_LIST", "KEYS", "LISTS", "LISTS_FULL", "LISTS_USED",
    "LIST_ROOM", "LOST", "MAP_FULL", "ONLY_ROWS", "PLACES", "RECORD", "ROWS_FULL", "ROWS_USED", "ROW_ROOM", "SUMS",
    "TAKEN", "VALUES", "VALUES_FULL", "VALUES_USED", "VALUE_ROOM", "fold", "insert", "merge_head", "only_rows", "read",
    "rehash", "step",
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


@kernel
def _array(head, field, size, like):
    return carray(_pointer(head[field], like), (size,))  # pyright: ignore[reportCallIssue]


@kernel
def _find(entries, keys, base, places, direct, code):
    """Where a bucket of the table that begins at `base` stands, or would stand."""
    if direct:
        return base + code
    at = np.int64((np.uint64(code) * _MIX) >> np.uint64(32)) & (places - 1)
    while entries[base + at] != 0 and keys[base + at] != code:
        at = (at + 1) & (places - 1)
    return base + at


@kernel
def _put(head, table, code, number, source, begin, width, newest, listed, values):
    """Let one value, source[begin:], enter a bucket; `number` is its place among the values if those are kept."""
    places, direct, tables_end = head[PLACES], head[DIRECT] != 0, (table + 1) * head[PLACES]
    entries, keys = _array(head, ENTRIES, tables_end, _INT32), _array(head, KEYS, tables_end, _INT64)
    slot = _find(entries, keys, table * places, places, direct, code)
    entry = entries[slot]
    kind, at = entry & 3, entry >> 2
    if entry == 0:
        taken = _array(head, TAKEN, table + 1, _INT32)
        if not direct and 4 * (taken[table] + 1) > 3 * places:
            return MAP_FULL
        if head[ONLY_ROWS] == 0:
            entries[slot] = 4 * number + SINGLE
        else:
            if head[ROWS_USED] == head[ROW_ROOM]:
                return ROWS_FULL
            row = _new_row(head, width)
            add_row(_array(head, SUMS, head[ROW_ROOM] * width, _FLOAT64), row * width, source, begin, width)
            _array(head, COUNTS, head[ROW_ROOM], _INT64)[row] = 1
            entries[slot] = 4 * row + ROW
        if not direct:
            keys[slot] = code
        taken[table] += 1
        return DONE
    if kind == ROW:
        sums = _array(head, SUMS, head[ROW_ROOM] * width, _FLOAT64)
        if newest:
            set_row(sums, np.int64(at) * width, 0.0, width)
        else:
            _array(head, COUNTS, head[ROW_ROOM], _INT64)[at] += 1
        add_row(sums, np.int64(at) * width, source, begin, width)
        return DONE
    if newest:
        entries[slot] = 4 * number + SINGLE
        return DONE
    if kind == SINGLE and listed:
        chosen = head[FREE_LIST]
        if chosen < 0 and head[LISTS_USED] == head[LIST_ROOM]:
            return LISTS_FULL
        lists = _array(head, LISTS, head[LIST_ROOM] * RECORD, _INT32)
        if chosen >= 0:
            head[FREE_LIST] = lists[chosen * RECORD]
        else:
            chosen = head[LISTS_USED]
            head[LISTS_USED] += 1
        lists[chosen * RECORD], lists[chosen * RECORD + 1], lists[chosen * RECORD + 2] = 2, at, number
        entries[slot] = 4 * chosen + LIST
        return DONE
    if kind == LIST:
        lists = _array(head, LISTS, head[LIST_ROOM] * RECORD, _INT32)
        size = lists[at * RECORD]
        if size < MOST_LISTED:
            lists[at * RECORD + 1 + size] = number
            lists[at * RECORD] = size + 1
            return DONE
    if head[ROWS_USED] == head[ROW_ROOM]:
        return ROWS_FULL
    row, members = _as_row(head, entry, width, values)
    add_row(_array(head, SUMS, head[ROW_ROOM] * width, _FLOAT64), row * width, source, begin, width)
    _array(head, COUNTS, head[ROW_ROOM], _INT64)[row] = members + 1
    entries[slot] = 4 * row + ROW
    return DONE


@kernel
def _copy_row(target, at, source, begin, width):
    for k in range(np.uint64(width)):
        target[np.uint64(at) + k] = source[np.uint64(begin) + k]


@kernel
def _new_row(head, width):
    row = head[ROWS_USED]
    head[ROWS_USED] += 1
    set_row(_array(head, SUMS, head[ROW_ROOM] * width, _FLOAT64), row * width, 0.0, width)
    return row


@kernel
def _as_row(head, entry, width, values):
    """A new row with the sum of a bucket's one or few members; there must be room for it. Also how many they are."""
    row, at = _new_row(head, width), np.int64(entry >> 2)
    sums = _array(head, SUMS, head[ROW_ROOM] * width, _FLOAT64)
    if entry & 3 == SINGLE:
        add_row(sums, row * width, values, at * width, width)
        return row, 1
    lists = _array(head, LISTS, head[LIST_ROOM] * RECORD, _INT32)
    size = lists[at * RECORD]
    for k in range(size):
        add_row(sums, row * width, values, np.int64(lists[at * RECORD + 1 + k]) * width, width)
    lists[at * RECORD] = head[FREE_LIST]
    head[FREE_LIST] = at
    return row, size


@kernel
def fold(heads, first, last, shape, codes, source, starts, stride, which, edges, progress):
    """Let tokens enter the buckets of heads [first, last): those in which[edges[b] : edges[b + 1]] of batch row b.

    shape = (heads per batch row, buckets, width, newest, listed). codes are (heads, tables, n), and token i of head g
    has the value source[starts[g] + i · stride:]. `progress` is where an earlier call stopped: head, table, token, and
    whether the head's values are in.
    """
    per_row, _, width, newest, listed = shape
    for g in range(max(first, progress[0]), last):
        if g != progress[0]:
            progress[:] = 0
            progress[0] = g
        head = heads[g]
        tokens = which[edges[g // per_row] : edges[g // per_row + 1]]
        if progress[3] == 0 and head[ONLY_ROWS] == 0:
            if head[VALUES_USED] + len(tokens) > head[VALUE_ROOM]:
                return VALUES_FULL
            values = _array(head, VALUES, head[VALUE_ROOM] * width, source)
            at = head[VALUES_USED] * width
            for i in tokens:
                _copy_row(values, at, source, starts[g] + i * stride, width)
                at += width
            head[VALUES_USED] += len(tokens)
        if progress[3] == 0:
            progress[3] = 1
            for i in tokens:
                if codes[g, 0, i] == NO_BUCKET:
                    head[LOST] = 1
        values = _array(head, VALUES, head[VALUE_ROOM] * width, source)
        number = head[VALUES_USED] - len(tokens)
        sums, counts = (
            _array(head, SUMS, head[ROW_ROOM] * width, _FLOAT64),
            _array(head, COUNTS, head[ROW_ROOM], _INT64),
        )
        places, only_sums = head[PLACES], head[DIRECT] != 0 and not newest
        entries = _array(head, ENTRIES, codes.shape[1] * places, _INT32)
        for table in range(progress[1], codes.shape[1]):
            for k in range(progress[2], len(tokens)):
                code = codes[g, table, tokens[k]]
                if code < 0:
                    continue
                begin = starts[g] + tokens[k] * stride
                if only_sums and entries[table * places + code] & 3 == ROW:  # what is most common, done at once
                    row = np.int64(entries[table * places + code] >> 2)
                    add_row(sums, row * width, source, begin, width)
                    counts[row] += 1
                    continue
                reason = _put(head, table, code, number + k, source, begin, width, newest, listed, values)
                if reason != DONE:
                    progress[1], progress[2] = table, k
                    return reason
            progress[2] = 0
    return DONE


@kernel
def _touch(head, found, values, width):
    """Load what these buckets hold, all at once: one after the other would wait for memory each time."""
    sums = _array(head, SUMS, head[ROW_ROOM] * width, _FLOAT64)
    lists = _array(head, LISTS, head[LIST_ROOM] * RECORD, _INT32)
    touched = 0.0
    for table in range(len(found)):
        kind, at = found[table] & 3, np.int64(found[table] >> 2)
        if kind == ROW:
            for k in range(at * width, at * width + width, 8):
                touched += sums[k]
        elif kind == LIST:
            touched += lists[at * RECORD]
        elif kind == SINGLE:
            for k in range(at * width, at * width + width, 16):
                touched += values[k]
    return touched


@kernel
def _touch_token(head, codes, token, values, width):
    """The same for the buckets of one token; a single or few members are not looked at when it comes."""
    tables, places, direct = len(codes), head[PLACES], head[DIRECT] != 0
    entries, keys = _array(head, ENTRIES, tables * places, _INT32), _array(head, KEYS, tables * places, _INT64)
    found = np.zeros(tables, np.int32)
    for table in range(tables):
        if codes[table, token] >= 0:
            entry = entries[_find(entries, keys, table * places, places, direct, codes[table, token])]
            found[table] = entry if entry & 3 != SINGLE else 0
    return _touch(head, found, values, width)


@kernel
def _add_bucket(head, entry, width, values, sums, counts, total, into):
    """Add what a bucket holds to total[into:]; returns how many that are."""
    kind, at = entry & 3, np.int64(entry >> 2)
    if kind == ROW:
        add_row(total, into, sums, at * width, width)
        return counts[at]
    if kind == SINGLE:
        add_row(total, into, values, at * width, width)
        return 1
    lists = _array(head, LISTS, head[LIST_ROOM] * RECORD, _INT32)
    size = lists[at * RECORD]
    for k in range(size):
        add_row(total, into, values, np.int64(lists[at * RECORD + 1 + k]) * width, width)
    return size


@kernel
def read(heads, first, last, shape, codes, late_codes, late_values, late, total, count, unknown):
    """What the queries of heads [first, last) find; codes are (heads, share, tables, n).

    late_codes (heads, tables, history) and late_values (flat, of (heads, history, width)) are rings of the last tokens,
    and late[b] says where that of batch row b begins and how many it holds.
    """
    per_row, buckets, width, newest, _ = shape
    _, share, tables, n = codes.shape
    history = late_codes.shape[2]
    slots, met = np.empty(tables, np.int32), np.empty(max(history, 1), np.int32)
    for g in range(first, last):
        head = heads[g]
        places, direct = head[PLACES], head[DIRECT] != 0
        entries, keys = _array(head, ENTRIES, tables * places, _INT32), _array(head, KEYS, tables * places, _INT64)
        values = _array(head, VALUES, head[VALUE_ROOM] * width, late_values)
        sums, counts = (
            _array(head, SUMS, head[ROW_ROOM] * width, _FLOAT64),
            _array(head, COUNTS, head[ROW_ROOM], _INT64),
        )
        begin, recent = late[g // per_row, 0], late[g // per_row, 1]
        lost = head[LOST] != 0
        for k in range(recent):
            lost |= late_codes[g, 0, (begin + k) % history] == NO_BUCKET
        for s in range(share):
            for i in range(n):
                into = ((g * share + s) * n + i) * width
                set_row(total, into, 0.0, width)
                found = np.int64(0)
                met[:] = 0
                for table in range(tables):
                    code = codes[g, s, table, i]
                    slots[table] = 0
                    if code < 0:
                        continue
                    if code >= buckets:
                        return BAD_CODE
                    line = late_codes[g, table]
                    answered = False
                    if newest:
                        for k in range(recent - 1, -1, -1):
                            if line[(begin + k) % history] == code:
                                met[(begin + k) % history] += 1
                                answered = True
                                break
                    else:
                        for k in range(history):  # places of nobody hold a negative code
                            met[k] += np.int32(line[k] == code)
                    if not answered:
                        slots[table] = entries[_find(entries, keys, table * places, places, direct, code)]
                touched = _touch(head, slots, values, width)
                if recent < 0:  # never, but the compiler does not know, and keeps the loads
                    total[into] = touched
                for table in range(tables):
                    if slots[table] != 0:
                        found += _add_bucket(head, slots[table], width, values, sums, counts, total, into)
                for k in range(history):
                    for _ in range(met[k]):
                        add_row(total, into, late_values, (g * history + k) * width, width)
                    found += met[k]
                count[(g * share + s) * n + i] = found
                unknown[(g * share + s) * n + i] = lost or codes[g, s, 0, i] == NO_BUCKET
    return DONE


@kernel
def rehash(head, tables, old_entries, old_keys, old_places):
    """Enter buckets found at old places, which had keys, into the head's new and empty ones."""
    places, direct = head[PLACES], head[DIRECT] != 0
    entries, keys = _array(head, ENTRIES, tables * places, _INT32), _array(head, KEYS, tables * places, _INT64)
    for table in range(tables):
        for at in range(table * old_places, (table + 1) * old_places):
            if old_entries[at] != 0:
                slot = _find(entries, keys, table * places, places, direct, old_keys[at])
                entries[slot] = old_entries[at]
                if not direct:
                    keys[slot] = old_keys[at]


@kernel
def insert(head, table, codes, kinds):
    """Enter buckets (table, code) that are what `kinds` says into places that are empty and enough."""
    places, direct = head[PLACES], head[DIRECT] != 0
    size = (table.max() + 1) * places
    entries, keys = _array(head, ENTRIES, size, _INT32), _array(head, KEYS, size, _INT64)
    taken = _array(head, TAKEN, table.max() + 1, _INT32)
    for k in range(len(codes)):
        slot = _find(entries, keys, table[k] * places, places, direct, codes[k])
        entries[slot] = kinds[k]
        if not direct:
            keys[slot] = codes[k]
        taken[table[k]] += 1


@kernel
def only_rows(head, tables, width, like):
    """Make every bucket a row; there must be room for them. Values and lists are needed no more."""
    values = _array(head, VALUES, head[VALUE_ROOM] * width, like)
    entries = _array(head, ENTRIES, tables * head[PLACES], _INT32)
    for slot in range(len(entries)):
        if entries[slot] != 0 and entries[slot] & 3 != ROW:
            row, members = _as_row(head, entries[slot], width, values)
            _array(head, COUNTS, head[ROW_ROOM], _INT64)[row] = members
            entries[slot] = 4 * row + ROW
    head[ONLY_ROWS] = 1


@kernel
def merge_head(head, other, tables, width, newest, listed, number, names, like, progress):
    """Let all buckets of another head enter this one; `number` is where its values begin among this one's.

    Codes become names[code], if there are names. `progress` is where an earlier call stopped: table, place, member.
    """
    places, direct = other[PLACES], other[DIRECT] != 0
    entries, keys = _array(other, ENTRIES, tables * places, _INT32), _array(other, KEYS, tables * places, _INT64)
    theirs = _array(other, VALUES, other[VALUE_ROOM] * width, like)
    sums, counts = (
        _array(other, SUMS, other[ROW_ROOM] * width, _FLOAT64),
        _array(other, COUNTS, other[ROW_ROOM], _INT64),
    )
    lists = _array(other, LISTS, other[LIST_ROOM] * RECORD, _INT32)
    values = _array(head, VALUES, head[VALUE_ROOM] * width, like)
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
                reason = _put(head, table, code, number + member, theirs, member * width, width, newest, listed, values)
                if reason != DONE:
                    return reason
            progress[2] = 0
        progress[1] = 0
    return DONE


@kernel
def _put_row(head, table, code, source, at, members, width, newest, values):
    """Let a row of many members enter a bucket, which then is a row."""
    places, direct, tables_end = head[PLACES], head[DIRECT] != 0, (table + 1) * head[PLACES]
    entries, keys = _array(head, ENTRIES, tables_end, _INT32), _array(head, KEYS, tables_end, _INT64)
    slot = _find(entries, keys, table * places, places, direct, code)
    entry = entries[slot]
    taken = _array(head, TAKEN, table + 1, _INT32)
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
        before = _array(head, COUNTS, head[ROW_ROOM], _INT64)[row]
    else:
        row, size = _as_row(head, entry, width, values)
        before = np.int64(size)
    sums = _array(head, SUMS, head[ROW_ROOM] * width, _FLOAT64)
    if newest:
        set_row(sums, row * width, 0.0, width)
        before = np.int64(0)
    add_row(sums, row * width, source, at * width, width)
    _array(head, COUNTS, head[ROW_ROOM], _INT64)[row] = before + members
    entries[slot] = 4 * row + ROW
    return DONE


@kernel
def step(
    heads, shape, kept, key_codes, query_codes, source, starts, late_codes, late_values, late, which, edges, progress,
    total, count, unknown,
):  # fmt: skip
    """One new token, and then one query, of every head: fold the token that leaves the ring, enter the new one, read.

    progress[4] says whether the ring is done, for a call that goes on from where an earlier one stopped.
    """
    per_row, buckets, width, _, _ = shape
    groups, tables, history = late_codes.shape
    if progress[4] == 0:
        for g in range(groups):
            for table in range(tables):
                if key_codes[g, table] >= buckets:
                    return BAD_CODE
        leaving = 0
        for b in range(len(late)):
            edges[b] = leaving
            if kept[b] and late[b, 1] == history:
                which[leaving] = late[b, 0]
                leaving += 1
        edges[len(late)] = leaving
        if leaving:
            touched = 0.0
            for g in range(groups):
                if edges[g // per_row] < edges[g // per_row + 1]:
                    touched += _touch_token(heads[g], late_codes[g], which[edges[g // per_row]], late_values, width)
            if late[0, 1] < 0:  # never, but the compiler does not know, and keeps the loads
                total[0] = touched
            reason = fold(heads, 0, groups, shape, late_codes, late_values, starts, width, which, edges, progress[:4])
            if reason != DONE:
                return reason
        progress[4] = 1
        for g in range(groups):
            b = g // per_row
            if not kept[b]:
                continue
            place = (late[b, 0] + late[b, 1]) % history
            for table in range(tables):
                late_codes[g, table, place] = key_codes[g, table]
            at = (g * history + place) * width
            _copy_row(late_values, at, source, g * width, width)
        for b in range(len(late)):
            if kept[b]:
                if late[b, 1] == history:
                    late[b, 0] = (late[b, 0] + 1) % history
                else:
                    late[b, 1] += 1
    return read(heads, 0, groups, shape, query_codes, late_codes, late_values, late, total, count, unknown)
