"""Sums over the pairs of a bucket, pair by pair or without the pairs: aᵢᵀ (Σ_j b_j c_jᵀ) for every target i.

What belongs to a row lies side by side: a_i or b_j, padded with zeros to whole panels of ROWS entries, then its vector
c and its sum, each in whole lines of 64 bytes. The outer product of a large bucket stays in the nearest cache while its
members stream by; its two loops are LLVM IR written by hand, which keeps twelve sums in registers: forward and backward
of 65,536 tokens of one head (dim 64, 8 tables of 8 hashes, two threads) take 166 ms, and 581 with plain loops.
"""

import numpy as np
from numba import types

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.simd import I64, data_of, intrinsic, load, loop, multiply_add, splat, store, zero

__all__ = ["LINE", "ROWS", "add_turns"]

ROWS = 6  # rows of a panel; with two vectors of columns it fills the 16 registers of a processor
LINE = 64  # bytes of a panel's columns: two vectors
_STREAM = 64  # sources that go into the outer product at a time, so that they stay in the nearest cache
_PAIR = 350  # what a pair costs beyond its multiply-adds, in those; and by how much one in a panel is cheaper:
_PANEL = 0.75

_U = np.uint64


def _lanes(dtype):
    return LINE * 4 // dtype.bitwidth


@intrinsic
def _add_outer(typingctx, outer, at, dim, rows, places, b_at, c_at, count):
    """outer[at + r·dim + k] += Σ_p rows[places[p] + b_at + r] · rows[places[p] + c_at + k].

    p below `count`, r below ROWS, k in a line.
    """
    index = types.intp
    signature = types.void(outer, index, index, rows, places, index, index, index)

    def generate(context, builder, signature, arguments):
        _, at, dim, _, _, b_at, c_at, count = arguments
        dtype = signature.args[0].dtype
        lanes = _lanes(dtype)
        into, rows, places = (data_of(context, builder, signature, arguments, k) for k in (0, 3, 4))
        fused = multiply_add(builder, dtype, lanes)
        b, c = builder.gep(rows, [b_at]), builder.gep(rows, [c_at])

        def source(p, sums):
            place = builder.load(builder.gep(places, [p]))
            entries, line = builder.gep(b, [place]), builder.gep(c, [place])
            vectors = [load(builder, line, dtype, lanes, v) for v in range(2)]
            factors = [splat(builder, builder.load(builder.gep(entries, [I64(r)])), lanes) for r in range(ROWS)]
            return [builder.call(fused, [factors[k // 2], vectors[k % 2], total]) for k, total in enumerate(sums)]

        sums = loop(builder, count, [zero(dtype, lanes)] * (2 * ROWS), source)
        for r in range(ROWS):
            row = builder.gep(into, [builder.add(at, builder.mul(dim, I64(r)))])
            for v in range(2):
                total = builder.fadd(load(builder, row, dtype, lanes, v), sums[2 * r + v])
                store(builder, row, total, dtype, lanes, v)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _add_products(typingctx, rows, places, sum_at, count, outer, at, dim, width):
    """rows[places[r] + sum_at + k] += Σ_w rows[places[r] + w] · outer[at + w·dim + k]: r below `count`, k in a line.

    Places from `count` up to ROWS are read, and must be sound, but nothing is written for them.
    """
    index = types.intp
    signature = types.void(rows, places, index, index, outer, index, index, index)

    def generate(context, builder, signature, arguments):
        _, _, sum_at, count, _, at, dim, width = arguments
        dtype = signature.args[0].dtype
        lanes = _lanes(dtype)
        rows, places, outer = (data_of(context, builder, signature, arguments, k) for k in (0, 1, 4))
        fused = multiply_add(builder, dtype, lanes)
        outer = builder.gep(outer, [at])
        mine = [builder.gep(rows, [builder.load(builder.gep(places, [I64(r)]))]) for r in range(ROWS)]

        def entry(w, sums):
            line = builder.gep(outer, [builder.mul(w, dim)])
            vectors = [load(builder, line, dtype, lanes, v) for v in range(2)]
            factors = [splat(builder, builder.load(builder.gep(mine[r], [w])), lanes) for r in range(ROWS)]
            return [builder.call(fused, [factors[k // 2], vectors[k % 2], total]) for k, total in enumerate(sums)]

        sums = loop(builder, width, [zero(dtype, lanes)] * (2 * ROWS), entry)
        for r in range(ROWS):
            with builder.if_then(builder.icmp_signed("<", I64(r), count)):
                line = builder.gep(mine[r], [sum_at])
                for v in range(2):
                    total = builder.fadd(load(builder, line, dtype, lanes, v), sums[2 * r + v])
                    store(builder, line, total, dtype, lanes, v)
        return context.get_dummy_value()

    return signature, generate


@kernel(fastmath={"reassoc", "contract"})
def _dot(a, i, b, j, width):
    """Σ_k a[i + k] · b[j + k] for k below `width`; places are unsigned, as in `rows`."""
    i, j, total = _U(i), _U(j), a.dtype.type(0)
    for k in range(_U(width)):
        total += a[i + k] * b[j + k]
    return total


@kernel(fastmath={"contract"})
def _add_multiple(out, i, factor, c, j, width):
    """out[i + k] += factor · c[j + k] for k below `width`."""
    i, j = _U(i), _U(j)
    for k in range(_U(width)):
        out[i + k] += factor * c[j + k]


@kernel
def add_turns(left, right, layout, queries, keys, edges, horizon, causal, buckets, columns, outer):
    """Sum of i += Σ_j (a_i·b_j) c_j, for queries i in `left` and keys j in `right`, and for keys over queries.

    For a range of buckets and of columns. The members of bucket b are queries[edges[0, b] : edges[0, b + 1]], in order
    of time, and the same of the keys. layout is (length of a_i, padded length, where c begins, its length, where the
    sum begins, length of a row). horizon is (queries of a head, keys minus queries): a query sees the keys up to its
    own place plus that.
    """
    _, padded, _, dim, _, _ = layout
    for bucket in range(buckets[0], buckets[1]):
        first_query, last_query, first_key, last_key = (
            edges[0, bucket], edges[0, bucket + 1], edges[1, bucket], edges[1, bucket + 1],
        )  # fmt: skip
        count_queries, count_keys = last_query - first_query, last_key - first_key
        pairs = count_queries * count_keys
        if pairs == 0:
            continue
        if pairs * (_PAIR + padded + 2 * dim) < 2 * _PANEL * (count_queries + count_keys) * padded * dim:
            # Slices of the lists would cost more than the pairs.
            for at in range(first_query, last_query):
                _add_pairs(left, right, layout, queries[at], keys, first_key, last_key, horizon, causal, columns)
            continue
        mine, theirs = queries[first_query:last_query], keys[first_key:last_key]
        if causal:
            _add_outers(left, right, layout, mine, theirs, horizon, 1, columns, outer)
            _add_outers(right, left, layout, theirs[::-1], mine[::-1], horizon, -1, columns, outer)
        else:
            _add_outers(left, right, layout, mine, theirs, horizon, 0, columns, outer)
            _add_outers(right, left, layout, theirs, mine, horizon, 0, columns, outer)


@kernel
def _add_pairs(left, right, layout, query, keys, first_key, last_key, horizon, causal, columns):
    """Both sums for the pairs of one query."""
    width, _, unit_at, _, sum_at, stride = layout
    first, count = columns[0], columns[1] - columns[0]
    last = query % horizon[0] + horizon[1]
    i = query * stride
    for at in range(first_key, last_key):
        key = keys[at]
        if causal and key > last:
            break
        j = key * stride
        factor = _dot(left, i, right, j, width)
        _add_multiple(left, i + sum_at + first, factor, right, j + unit_at + first, count)
        _add_multiple(right, j + sum_at + first, factor, left, i + unit_at + first, count)


@kernel
def _sees(target, source, horizon, direction):
    """Whether target sees source, given as numbers of rows: a query the keys up to its own place plus `horizon`.

    direction is 1 when targets are queries, -1 when they are keys, 0 when everything is seen.
    """
    if direction == 0:
        return True
    n, shift = horizon
    if direction > 0:
        return source <= target % n + shift
    return target <= source % n + shift


@kernel
def _add_outers(targets, sources, layout, mine, theirs, horizon, direction, columns, outer):
    """One of the two sums, for targets in `mine` and sources in `theirs`, by the outer product of the sources.

    Lists are in the order in which targets see ever more sources.
    """
    width, padded, unit_at, dim, sum_at, stride = layout
    per_line = LINE // targets.itemsize
    places = np.empty(max(_STREAM, ROWS), np.int64)
    step = len(mine) if direction == 0 else ROWS
    whole = 0  # sources in the outer product: all targets of a step see them, and what only some see goes pair by pair
    outer[: padded * dim] = 0
    for first in range(0, len(mine), step):
        here = mine[first : first + step]
        done = whole
        while whole < len(theirs) and _sees(here[0], theirs[whole], horizon, direction):
            whole += 1
        for start in range(done, whole, _STREAM):
            count = min(_STREAM, whole - start)
            for p in range(count):
                places[p] = theirs[start + p] * stride
            for column in range(columns[0], columns[1], per_line):
                for w in range(0, padded, ROWS):
                    _add_outer(outer, w * dim + column, dim, sources, places, w, unit_at + column, count)
        for start in range(0, len(here), ROWS):
            count = min(ROWS, len(here) - start)
            for r in range(ROWS):
                places[r] = here[min(start + r, len(here) - 1)] * stride
            for column in range(columns[0], columns[1], per_line):
                _add_products(targets, places, sum_at + column, count, outer, column, dim, padded)
        end = whole
        for row in here:
            while end < len(theirs) and _sees(row, theirs[end], horizon, direction):
                end += 1
            for other in theirs[whole:end]:
                i, j = row * stride, other * stride
                factor = _dot(targets, i, sources, j, width)
                _add_multiple(
                    targets, i + sum_at + columns[0], factor, sources, j + unit_at + columns[0], columns[1] - columns[0]
                )
