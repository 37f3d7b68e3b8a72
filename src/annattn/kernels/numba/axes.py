"""Codes of rows from the signed axes they are nearest to after a rotation: the `CrossPolytope` family."""

import numpy as np

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.projections import (
    GAP,
    UNIT,
    aligned,
    dot,
    line_up,
    project_four,
    scale_of,
    set_bounds,
    set_upright,
    set_upright_bounds,
    spread_of,
)
from annattn.lsh import NO_BUCKET

__all__ = ["LANES", "hash_axes", "rotate_rows"]

LANES = 64  # rows rotated at a time
_TILE = 512  # rows projected at a time
_MANY = 1024  # projections per row from which a tile has a quarter of those


@kernel
def hash_axes(start, stop, rows, matrices, hashes, codes):
    """Write the codes of rows [start, stop), a tile at a time; codes are (heads, tables, n), numbered through heads.

    Matrices are (functions, axes, dim).
    """
    functions, axes, width = matrices.shape
    vectors = matrices.reshape(functions * axes, width)
    lines, dim = -(-len(vectors) // 4) * 4, -(-width // 4) * 4
    padded = np.zeros((lines, dim), np.float32)
    spread = spread_of(width, line_up(vectors, padded))
    tile = _TILE if lines <= _MANY else _TILE // 4
    stride = tile + GAP
    upright, product = aligned(dim * stride), aligned(lines * stride)
    upright[width * stride :] = 0
    bounds = np.empty(tile, np.float32)
    flat, flat_rows = padded.reshape(-1), rows.reshape(-1)
    for first in range(start, stop, tile):
        count = min(tile, stop - first)
        set_upright(flat_rows, first * width, count, width, upright, stride)
        set_upright_bounds(upright, width, stride, count, spread, bounds)
        for line in range(0, lines, 4):
            project_four(product, line * stride, flat, line * dim, dim, upright, 0, stride, count)
        _pack_axes(product.reshape(lines, stride)[:, :count], first, rows, vectors, axes, bounds, hashes, codes)


@kernel
def _pack_axes(product, first, rows, matrices, axes, bounds, hashes, codes):
    """The nearest signed axis of each function's `axes` projections, the columns of `product`, is its digit."""
    tables, count = codes.shape[1], product.shape[1]
    exact = np.empty(axes)
    largest, second = np.empty(count, product.dtype), np.empty(count, product.dtype)
    winner, code = np.empty(count, np.int32), np.empty(count, np.int64)
    for table in range(tables):
        code[:] = 0
        place = np.int64(1)
        for h in range(hashes):
            function = table * hashes + h
            largest[:], second[:], winner[:] = -1, -1, 0
            for k in range(axes):
                _challenge(product[function * axes + k], k, largest, second, winner)
            for r in range(count):
                # Both the largest and the second may be off.
                if not (largest[r] - second[r] > 2 * bounds[r]):
                    row = rows[first + r]
                    scale = scale_of(row)
                    for k in range(axes):
                        exact[k] = dot(row, matrices[function * axes + k], scale)
                    winner[r] = _digit(exact)
                code[r] += place * winner[r]
            place *= 2 * axes
        _put(code, rows, first, table, bounds, codes)


@kernel
def _challenge(line, axis, largest, second, winner):
    """Let each row's coordinate on one more axis try for its largest absolute value; the first axis wins a tie."""
    zero = line.dtype.type(0)
    for r in range(len(line)):
        size = abs(line[r])
        wins = size > largest[r]
        runner_up = max(min(size, largest[r]), second[r])
        name = np.int32(2 * axis) + np.int32(line[r] < zero)
        second[r] = runner_up
        winner[r] = name if wins else winner[r]
        largest[r] = size if wins else largest[r]


@kernel
def _digit(row):
    """2 · axis + [negative] of the coordinate of largest absolute value, the first one of a tie."""
    best = 0
    for k in range(len(row)):
        if abs(row[k]) > abs(row[best]):
            best = k
    return np.int32(2 * best + (1 if row[best] < 0 else 0))


@kernel
def _put(code, rows, first, table, bounds, codes):
    """Write the codes of one table; a row that is not finite has no bucket."""
    n = codes.shape[2]
    for r in range(len(code)):
        head, place = divmod(first + r, n)
        lost = bounds[r] == np.inf and scale_of(rows[first + r]) < 0
        codes[head, table, place] = NO_BUCKET if lost else code[r]


@kernel
def rotate_rows(start, stop, rows, signs, hashes, codes):
    """Write the codes of rows [start, stop): per function three rounds of signs and a Hadamard transform.

    Signs are (functions, 3, axes).
    """
    tables, axes, dim = codes.shape[1], signs.shape[2], rows.shape[1]
    stages = 0
    while (1 << stages) < axes:
        stages += 1
    # Every stage adds a rounding of at most u times the length, which each of the three rounds scales by √axes; one
    # more rounding is that of float64 rows to float32.
    spread = np.float32(2.02 * (3 * max(stages, 1) + 1) * UNIT * axes**1.5)
    exact = np.empty(axes)
    upright, rotated = np.empty((axes, LANES), np.float32), np.empty((axes, LANES), np.float32)
    largest, second = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    winner, code, bounds = np.empty(LANES, np.int32), np.empty(LANES, np.int64), np.empty(LANES, np.float32)
    for first in range(start, stop, LANES):
        count = min(LANES, stop - first)
        upright[:] = 0
        for r in range(count):
            for k in range(dim):
                upright[k, r] = rows[first + r, k]
        set_bounds(rows, first, spread, bounds[:count])
        for table in range(tables):
            code[:] = 0
            place = np.int64(1)
            for h in range(hashes):
                mine = signs[table * hashes + h]
                _rotate(upright, mine, rotated)
                largest[:], second[:], winner[:] = -1, -1, 0
                for k in range(axes):
                    _challenge(rotated[k], k, largest, second, winner)
                for r in range(count):
                    if not (largest[r] - second[r] > bounds[r]):
                        _rotate_exactly(rows[first + r], scale_of(rows[first + r]), mine, exact)
                        winner[r] = _digit(exact)
                    code[r] += place * winner[r]
                place *= 2 * axes
            _put(code[:count], rows, first, table, bounds, codes)


@kernel
def _rotate(rows, signs, rotated):
    """Three rounds of signs and a Hadamard transform of columns of (axes, rows)."""
    axes, count = rows.shape
    for turn in range(3):
        for k in range(axes):
            sign, of, to = signs[turn, k], rows[k] if turn == 0 else rotated[k], rotated[k]
            for r in range(count):
                to[r] = of[r] * sign
        step = 1
        while step < axes:
            for block in range(0, axes, 2 * step):
                for k in range(block, block + step):
                    low, high = rotated[k], rotated[k + step]
                    for r in range(count):
                        even, odd = low[r], high[r]
                        low[r] = even + odd
                        high[r] = even - odd
            step *= 2


@kernel
def _rotate_exactly(row, scale, signs, exact):
    """The same for one row in float64, in the order of operations of `CrossPolytope.evaluate`."""
    axes = len(exact)
    for k in range(axes):
        exact[k] = np.float64(row[k]) / scale if k < len(row) else 0.0
    for turn in range(3):
        for k in range(axes):
            exact[k] *= signs[turn, k]
        step = 1
        while step < axes:
            for block in range(0, axes, 2 * step):
                for k in range(block, block + step):
                    even, odd = exact[k], exact[k + step]
                    exact[k] = even + odd
                    exact[k + step] = even - odd
            step *= 2
