"""Reading buckets that live on, and whole decode steps: hash, let a token in, read, divide, in one compiled call."""

import numpy as np

from annattn.kernels.numba import bucket_store as store
from annattn.kernels.numba.bucket_store import (
    BAD_CODE,
    DONE,
    RECORD,
    array_of,
    expect_bucket,
    expect_place,
    expect_value,
    find,
)
from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.few_rows import hash_few
from annattn.kernels.numba.fold import fold
from annattn.kernels.numba.rows import add_row, copy_row, set_row
from annattn.kernels.tables import LIST, ROW, SINGLE
from annattn.lsh import NO_BUCKET

__all__ = ["decode", "read", "step"]

_SOON = 4  # tables ahead whose lists are looked into

_INT32, _INT64, _FLOAT64 = np.empty(1, np.int32), np.empty(1, np.int64), np.empty(1, np.float64)
_U = np.uint64


@kernel(inlined=True)
def _meet(late_codes, at, history, code, begin, recent, newest, met, first):
    """Count the late tokens of a bucket: met[first + k] += 1; with `newest` only the last, and whether there is one."""
    if newest:
        for k in range(recent - 1, -1, -1):
            place = (begin + k) % history
            if late_codes[at + place] == code:
                met[first + place] += 1
                return True
    else:
        at, first = _U(at), _U(first)
        for k in range(_U(history)):  # places of nobody hold a negative code
            met[first + k] += np.int32(late_codes[at + k] == code)
    return False


@kernel
def read(heads, first, last, shape, codes, late_codes, late_values, late, total, count, unknown):
    """What the queries of heads [first, last) find; codes are (heads, share, tables, n).

    late_codes (heads, tables, history) and late_values (flat, of (heads, history, width)) are rings of the last tokens,
    and late[b] says where that of batch row b begins and how many it holds. While the buckets of one query are added
    up, those of the next are looked for and begin to be loaded. No views in the loops: counting them would take longer.
    """
    per_row, buckets, width, newest, _ = shape
    _, share, tables, n = codes.shape
    history, queries = late_codes.shape[2], share * n
    if queries == 0:
        return DONE
    rings = late_codes.reshape(-1)
    found, met = np.zeros(2 * tables, np.int32), np.zeros(2 * max(history, 1), np.int32)
    for row in range(first * queries - 1, last * queries):
        reading, more = row >= first * queries, row + 1 < last * queries
        g, group = max(row, 0) // queries, (row + 1 if more else row) // queries
        s, i, turn = (row + 1) // n % share, (row + 1) % n, (row + 1) % 2
        begin, recent = late[group // per_row, 0], late[group // per_row, 1]
        places, direct = heads[group, store.PLACES], heads[group, store.DIRECT] != 0
        head, following = heads[g], heads[group]
        entries, keys = (
            array_of(following, store.ENTRIES, tables * places, _INT32),
            array_of(following, store.KEYS, tables * places, _INT64),
        )
        next_values = array_of(following, store.VALUES, following[store.VALUE_ROOM] * width, late_values)
        values = array_of(head, store.VALUES, head[store.VALUE_ROOM] * width, late_values)
        sums, counts = array_of(head, store.SUMS, 0, _FLOAT64), array_of(head, store.COUNTS, 0, _INT64)
        lists = array_of(head, store.LISTS, 0, _INT32)
        into, members = row * width, np.int64(0)
        ahead, mine = turn * tables, (1 - turn) * tables
        if more:
            set_row(met, turn * history, np.int32(0), history)
        if reading:
            set_row(total, into, 0.0, width)
        for table in range(tables):
            if more:
                code, found[ahead + table] = codes[group, s, table, i], 0
                if code >= buckets:
                    return BAD_CODE
                if code >= 0 and not _meet(
                    rings, (group * tables + table) * history, history, code, begin, recent, newest, met, turn * history
                ):
                    entry = entries[find(entries, keys, table * places, places, direct, code)]
                    found[ahead + table] = entry
                    expect_bucket(following, entry, width, next_values)
            if not reading:
                continue
            if table + _SOON < tables and found[mine + table + _SOON] & 3 == LIST:
                at = np.int64(found[mine + table + _SOON] >> 2) * RECORD
                for k in range(at + 1, at + 1 + lists[at]):
                    expect_value(values, np.int64(lists[k]) * width, width)
            kind, at = found[mine + table] & 3, np.int64(found[mine + table] >> 2)
            if kind == ROW:
                add_row(total, into, sums, at * width, width)
                members += counts[at]
            elif kind == SINGLE:
                add_row(total, into, values, at * width, width)
                members += 1
            elif kind == LIST:
                for k in range(at * RECORD + 1, at * RECORD + 1 + lists[at * RECORD]):
                    add_row(total, into, values, np.int64(lists[k]) * width, width)
                members += lists[at * RECORD]
        if reading:
            for k in range(history):
                times = met[(1 - turn) * history + k]
                for _ in range(times):
                    add_row(total, into, late_values, (g * history + k) * width, width)
                members += times
            lost = heads[g, store.LOST] != 0 or codes[g, row // n % share, 0, row % n] == NO_BUCKET
            for k in range(late[g // per_row, 1]):
                lost |= late_codes[g, 0, (late[g // per_row, 0] + k) % history] == NO_BUCKET
            count[row], unknown[row] = members, lost
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
            copy_row(late_values, at, source, g * width, width)
        for b in range(len(late)):
            if kept[b]:
                if late[b, 1] == history:
                    late[b, 0] = (late[b, 0] + 1) % history
                else:
                    late[b, 1] += 1
    return read(heads, 0, groups, shape, query_codes, late_codes, late_values, late, total, count, unknown)


@kernel
def decode(
    heads, shape, kept, planes, query, key, source, starts, late_codes, late_values, late, which, edges, progress, out,
    count,
):  # fmt: skip
    """The same for rows that are not hashed yet; means are written to `out`.

    query (queries, dim) and key (heads, dim); planes is what `hash_few` hashes by.
    """
    per_row, _, width, _, _ = shape
    groups, tables, _ = late_codes.shape
    upright, normals, spread, pairs = planes
    share = len(query) // groups
    # Where the leaving tokens go comes near while the new ones are hashed.
    if late[0, 1] == late_codes.shape[2]:
        for g in range(groups):
            for table in range(tables):
                expect_place(heads[g], table, late_codes[g, table, late[g // per_row, 0]])
    key_codes, query_codes = np.empty((groups, tables), np.int64), np.empty((groups * share, tables), np.int64)
    hash_few(key, per_row, upright, normals, spread, pairs, key_codes)
    hash_few(query, per_row * share, upright, normals, spread, pairs, query_codes)
    for row in range(len(query_codes)):
        for table in range(tables):
            expect_place(heads[row // share], table, query_codes[row, table])
    total, unknown = np.empty(len(query) * width), np.empty(len(query), np.bool_)
    reason = step(
        heads, shape, kept, key_codes, query_codes.reshape(groups, share, tables, 1), source, starts, late_codes,
        late_values, late, which, edges, progress, total, count, unknown,
    )  # fmt: skip
    if reason == DONE:
        for row in range(len(query)):
            if unknown[row]:
                set_row(out, row * width, np.nan, width)
            else:
                met = np.float64(max(count[row], 1))
                for k in range(row * width, (row + 1) * width):
                    out[k] = total[k] / met
    return reason
