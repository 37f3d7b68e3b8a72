"""Projections of rows in float32 with a rigorous bound on their rounding error, and single ones in float64.

A tile of rows stands upright, with rows innermost, so that the loops below are loops over rows, which LLVM vectorises,
at the same speed for any number of hashes.
"""

import numpy as np

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.simd import LANES, transpose_block

__all__ = [
    "GAP",
    "UNIT",
    "aligned",
    "dot",
    "line_up",
    "near_dot",
    "project_four",
    "project_one",
    "scale_of",
    "set_bounds",
    "set_upright",
    "set_upright_bounds",
    "spread_of",
]

GAP = 16  # entries between the lines of a tile: at a distance of a power of two they would push each other out
_U = np.uint64

# |float32 dot product − exact| ≤ γ ‖x‖‖a‖ with γ = k·u/(1 − k·u), u = 2^−24 and k = dim + 1 roundings, one of them that
# of float64 rows to float32; a little more covers the rounding of the bound itself.
UNIT = 2.0**-24
_SLACK = 1.01

# Outside this range float32 squares overflow or lose digits: then every answer is in doubt.
_LEAST_SQUARE, _LARGEST_SQUARE = np.float32(1e-20), np.float32(1e30)
_HUGE = 1e100  # `lsh.rows.rescale_huge` scales rows with larger entries down


@kernel
def spread_of(dim, length):
    """How far a float32 projection onto a vector of this length may be off, per unit of a row's length."""
    unit = (dim + 1) * UNIT
    return np.float32(_SLACK * unit / (1 - unit) * length)


@kernel(fastmath={"reassoc", "contract"})
def line_up(vectors, padded):
    """Copy the vectors into an array with some more zeros; the length of the longest."""
    largest = 0.0
    for line in range(vectors.shape[0]):
        square = 0.0
        for k in range(vectors.shape[1]):
            padded[line, k] = vectors[line, k]
            square += np.float64(vectors[line, k]) * np.float64(vectors[line, k])
        largest = max(largest, square)
    return np.sqrt(largest)


@kernel
def aligned(count):
    """As many float32, from the beginning of a line of the cache on: vectors across two lines cost a fifth more."""
    room = np.empty(count + 16, np.float32)
    skipped = -room.ctypes.data % 64 // 4
    return room[skipped : skipped + count]


@kernel
def set_upright(rows, begin, count, dim, upright, stride):
    """Transpose rows, block by block; what is left over at the edges number by number."""
    whole_rows, whole_columns = count // LANES * LANES, dim // LANES * LANES
    if rows.dtype == upright.dtype:
        for column in range(0, whole_columns, LANES):
            for r in range(0, whole_rows, LANES):
                transpose_block(upright, column * stride + r, stride, rows, begin + r * dim + column, dim)
    else:
        whole_rows, whole_columns = 0, 0
    for r in range(count):
        of, to = _U(begin + r * dim), _U(r)
        for k in range(_U(whole_columns if r < whole_rows else 0), _U(dim)):
            upright[to + k * _U(stride)] = rows[of + k]


@kernel(fastmath={"reassoc", "contract"})
def project_four(product, at, vectors, of, dim, rows, begin, stride, count):
    """Four lines of the product: four vectors of `dim` entries times upright rows, lines of which are `stride` apart.

    Four columns at a time, whose sixteen factors stay in registers, as far as a processor has them. Places are
    unsigned, as in `rows`.
    """
    one, two, three = _U(1), _U(2), _U(3)
    dim, stride = _U(dim), _U(stride)
    at = _U(at)
    at1, at2, at3 = at + stride, at + two * stride, at + three * stride
    for k in range(_U(0), dim, _U(4)):
        a = _U(of) + k
        a0, a1, a2, a3 = vectors[a], vectors[a + one], vectors[a + two], vectors[a + three]
        a += dim
        b0, b1, b2, b3 = vectors[a], vectors[a + one], vectors[a + two], vectors[a + three]
        a += dim
        c0, c1, c2, c3 = vectors[a], vectors[a + one], vectors[a + two], vectors[a + three]
        a += dim
        d0, d1, d2, d3 = vectors[a], vectors[a + one], vectors[a + two], vectors[a + three]
        place = _U(begin) + k * stride
        place1, place2, place3 = place + stride, place + two * stride, place + three * stride
        if k == _U(0):
            for r in range(_U(count)):
                x0, x1, x2, x3 = rows[place + r], rows[place1 + r], rows[place2 + r], rows[place3 + r]
                product[at + r] = a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                product[at1 + r] = b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                product[at2 + r] = c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
                product[at3 + r] = d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3
        else:
            for r in range(_U(count)):
                x0, x1, x2, x3 = rows[place + r], rows[place1 + r], rows[place2 + r], rows[place3 + r]
                product[at + r] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                product[at1 + r] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                product[at2 + r] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
                product[at3 + r] += d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3


@kernel(fastmath={"reassoc", "contract"})
def project_one(product, vector, dim, rows, begin, count, spread, bounds):
    """One line of the product, of rows that lie one after the other, and their bounds as in `set_bounds`."""
    dim = _U(dim)
    for r in range(_U(count)):
        at, total, square = _U(begin) + r * dim, np.float32(0), np.float32(0)
        for k in range(dim):
            x = np.float32(rows[at + k])
            total += x * vector[k]
            square += x * x
        product[r], bounds[r] = total, square
    for r in range(_U(count)):
        bounds[r] = _bound(bounds[r], spread)


@kernel(fastmath={"reassoc", "contract"})
def set_upright_bounds(upright, dim, stride, count, spread, bounds):
    """How far from zero a projection of each upright row must be for its sign to be certain; infinite if none is."""
    for r in range(_U(count)):
        bounds[r] = upright[r] * upright[r]
    for k in range(1, dim):
        at = _U(k) * _U(stride)
        for r in range(_U(count)):
            bounds[r] += upright[at + r] * upright[at + r]
    for r in range(_U(count)):
        bounds[r] = _bound(bounds[r], spread)


@kernel(fastmath={"reassoc", "contract"})
def set_bounds(rows, first, spread, bounds):
    """The same of rows that lie one after the other."""
    for r in range(len(bounds)):
        square = rows.dtype.type(0)
        for k in range(rows.shape[1]):
            square += rows[first + r, k] * rows[first + r, k]
        bounds[r] = _bound(square, spread)


@kernel(inlined=True)
def _bound(square, spread):
    certain = square > _LEAST_SQUARE and square < _LARGEST_SQUARE
    return np.float32(spread * np.sqrt(square)) if certain else np.float32(np.inf)


@kernel
def scale_of(row):
    """What to divide a row by so that no product overflows, as `rescale_huge` does; negative if it is not finite."""
    largest = 0.0
    for k in range(len(row)):
        size = abs(np.float64(row[k]))
        if not size < np.inf:
            return -1.0
        largest = max(largest, size)
    return largest if largest > _HUGE else 1.0


@kernel
def dot(row, vector, scale):
    """One projection in float64."""
    total = 0.0
    for k in range(len(row)):
        total += np.float64(row[k]) / scale * np.float64(vector[k])
    return total


@kernel(fastmath={"reassoc", "contract"})
def near_dot(row, vector):
    """One projection in float32."""
    total = np.float32(0)
    for k in range(len(row)):
        total += np.float32(row[k]) * np.float32(vector[k])
    return total
