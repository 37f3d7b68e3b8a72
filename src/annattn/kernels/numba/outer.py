"""Sums over the pairs of a bucket without the pairs: aᵢᵀ (Σ_j b_j c_jᵀ) for every target i, one bucket after another.

The outer product of a bucket stays in the nearest cache while its members stream by. What belongs to
a row lies side by side: a_i or b_j, padded with zeros to whole panels of ROWS entries, then its vector c and its sum,
each in whole lines of 64 bytes. Buckets of few pairs take them one by one.
"""

import numpy as np
from numba import types

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.simd import I64, data_of, intrinsic, load, loop, multiply_add, splat, store, zero

__all__ = ["LINE", "ROWS", "add_turns", "sort_by_bucket"]

ROWS = 6  # rows of a panel; with two vectors of columns it fills the 16 registers of a processor
LINE = 64  # bytes of a panel's columns: two vectors
_STREAM = 64  # sources that go into the outer product at a time, so that they stay in the nearest cache


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
def _dot(a, b):
    total = a.dtype.type(0)
    for w in range(len(a)):
        total += a[w] * b[w]
    return total


@kernel(fastmath={"contract"})
def _add_multiple(out, factor, c):
    for k in range(len(c)):
        out[k] += factor * c[k]


@kernel
def sort_by_bucket(codes, table, order, edges):
    """Rows (share, n) by bucket, then by place in time: those of bucket b are order[edges[b]:edges[b + 1]].

    Row i of head h is number h·n + i. Rows with a negative code are left out.
    """
    share, n, _ = codes.shape
    edges[:] = 0
    for head in range(share):
        for row in range(n):
            code = codes[head, row, table]
            if code >= 0:
                edges[code + 1] += 1
    free = np.empty(len(edges), np.int64)
    free[0] = 0
    for bucket in range(1, len(edges)):
        edges[bucket] += edges[bucket - 1]
        free[bucket] = edges[bucket]
    for row in range(n):
        for head in range(share):
            code = codes[head, row, table]
            if code >= 0:
                order[free[code]] = head * n + row
                free[code] += 1


@kernel
def _sees(target, source, horizon, direction):
    """Whether target sees source, given as numbers of rows: a query the keys up to its own place plus `horizon`.

    direction is 1 when targets are queries, -1 when they are keys, 0 when everything is seen; horizon is (queries of a
    head, keys minus queries).
    """
    if direction == 0:
        return True
    n, shift = horizon
    if direction > 0:
        return source <= target % n + shift
    return target <= source % n + shift


@kernel
def add_turns(left, right, layout, orders, edges, horizon, causal, buckets, lines):
    """Both sums, of queries `left` and of keys `right`, for a range of buckets and of lines: see `_add_turn`.

    Those of a bucket follow one another, so that the second finds its rows in the cache.
    """
    outer = np.empty(left.shape[1] * layout[2], left.dtype)
    for bucket in range(buckets[0], buckets[1]):
        queries = orders[0][edges[0][bucket] : edges[0][bucket + 1]]
        keys = orders[1][edges[1][bucket] : edges[1][bucket + 1]]
        if len(queries) == 0 or len(keys) == 0:
            continue
        _add_turn(left, right, layout, queries, keys, horizon, 1 if causal else 0, lines, outer)
        if causal:
            _add_turn(right, left, layout, keys[::-1], queries[::-1], horizon, -1, lines, outer)
        else:
            _add_turn(right, left, layout, keys, queries, horizon, 0, lines, outer)


@kernel
def _add_turn(targets, sources, layout, mine, theirs, horizon, direction, lines, outer):
    """Sum of i += Σ_j (a_i·b_j) c_j for the targets i in `mine` and the sources j in `theirs` that i sees.

    A row begins with a_i or b_j; layout is (its length, where c_j begins, the length of c_j, where the sum begins).
    Lists are in the order in which targets see ever more sources.
    """
    width, unit_at, dim, sum_at = layout
    stride = targets.shape[1]
    flat_targets, flat_sources = targets.reshape(-1), sources.reshape(-1)
    per_line = LINE // targets.itemsize
    first_column, last_column = lines[0] * per_line, lines[1] * per_line
    places = np.empty(max(_STREAM, ROWS), np.int64)
    # A pair costs about eight times what its multiply-adds would in a panel.
    by_pairs = 8 * len(mine) * len(theirs) * (width + dim) < (len(mine) + len(theirs)) * width * dim
    step = len(mine) if by_pairs or direction == 0 else ROWS
    whole = 0  # sources in the outer product: all targets of a step see them, and what only some see goes pair by pair
    if not by_pairs:
        outer[: width * dim] = 0
    for first in range(0, len(mine), step):
        here = mine[first : first + step]
        if not by_pairs:
            done = whole
            while whole < len(theirs) and _sees(here[0], theirs[whole], horizon, direction):
                whole += 1
            for start in range(done, whole, _STREAM):
                count = min(_STREAM, whole - start)
                for p in range(count):
                    places[p] = theirs[start + p] * stride
                for column in range(first_column, last_column, per_line):
                    for w in range(0, width, ROWS):
                        _add_outer(outer, w * dim + column, dim, flat_sources, places, w, unit_at + column, count)
            for start in range(0, len(here), ROWS):
                count = min(ROWS, len(here) - start)
                for r in range(ROWS):
                    places[r] = here[min(start + r, len(here) - 1)] * stride
                for column in range(first_column, last_column, per_line):
                    _add_products(flat_targets, places, sum_at + column, count, outer, column, dim, width)
        end = whole
        for row in here:
            while end < len(theirs) and _sees(row, theirs[end], horizon, direction):
                end += 1
            into = targets[row, sum_at + first_column : sum_at + last_column]
            for other in theirs[whole:end]:
                factor = _dot(targets[row, :width], sources[other, :width])
                _add_multiple(into, factor, sources[other, unit_at + first_column : unit_at + last_column])
