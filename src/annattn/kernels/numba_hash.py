"""Hyperplane codes on a CPU: float32 speed, float64 answers.

Projections are computed in float32 with a rigorous bound on their rounding error; the few whose sign that error could
have decided are computed again in float64. So the codes are those of `Hyperplane.evaluate`, in any order of blocks.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from annattn.kernels.compiled import kernel
from annattn.kernels.simd import (
    I32,
    I64,
    LANES,
    VECTOR,
    as_bits,
    as_bytes,
    declare,
    intrinsic,
    load_vector,
    loop,
    splat,
)

__all__ = ["hyperplane_codes", "padded_columns"]

# |float32 dot product − exact| ≤ γ_d ‖x‖‖a‖ with γ_d = d·u/(1 − d·u), u = 2^−24; a little more covers the rounding of
# the bound itself.
_UNIT = 2.0**-24
_SLACK = 1.01

ROWS = 6  # rows of a panel; with two vectors of columns it fills the 16 registers of a processor
PER_WORD = 4  # rows whose signs fit a word
VECTORS = 2  # vectors of columns of a panel
COLUMNS = VECTORS * LANES


def padded_columns(normals: np.ndarray) -> tuple[np.ndarray, float]:
    """Normals (functions, dim) as columns (dim, functions rounded up to whole panels), and the longest norm."""
    functions, dim = normals.shape
    columns = np.zeros((dim, -(-functions // COLUMNS) * COLUMNS), np.float32)
    columns[:, :functions] = normals.T
    return columns, float(np.sqrt((normals.astype(np.float64) ** 2).sum(1).max()))


@intrinsic
def _sign_panel(typingctx, x, base, row_stride, row, last, columns, first, bounds):
    """Signs of rows [row, row + 6) times columns[:, first : first + 16], as bits, and which of them are in doubt.

    Entry k of row i is x[base + i · row_stride + k]. Two words of signs, 16 bits a row, two of doubts: a projection
    within bounds[r] of zero is in doubt, as float32 rounding may have decided its sign. Rows beyond `last` repeat it.
    """
    index = types.intp
    signature = types.UniTuple(types.uint64, 4)(x, index, index, index, index, columns, index, bounds)

    def generate(context, builder, signature, arguments):
        x, base, row_stride, row, last, columns, first, bounds = arguments
        x = context.make_array(signature.args[0])(context, builder, x)
        columns = context.make_array(signature.args[5])(context, builder, columns)
        bounds = context.make_array(signature.args[7])(context, builder, bounds)
        column_stride = cgutils.unpack_tuple(builder, columns.strides)[0]
        depth = cgutils.unpack_tuple(builder, columns.shape)[0]
        rows = []
        for r in range(ROWS):
            at = builder.add(row, I64(r))
            at = builder.select(builder.icmp_signed("<", at, last), at, last)
            rows.append(builder.gep(x.data, [builder.add(base, builder.mul(at, row_stride))]))
        panel = builder.gep(as_bytes(builder, columns.data), [builder.mul(first, I64(4))])
        zero = ir.Constant(VECTOR, [0.0] * LANES)
        fused = declare(builder, "llvm.fmuladd.v8f32", 3)

        def step(k, sums):
            depth_row = builder.gep(panel, [builder.mul(k, column_stride)])
            vectors = [load_vector(builder, depth_row, v * LANES * 4) for v in range(VECTORS)]
            result = []
            for r in range(ROWS):
                spread = splat(builder, builder.load(builder.gep(rows[r], [k])))
                for v in range(VECTORS):
                    result.append(builder.call(fused, [spread, vectors[v], sums[r * VECTORS + v]]))
            return result

        sums = loop(builder, depth, [zero] * (ROWS * VECTORS), step)
        absolute = declare(builder, "llvm.fabs.v8f32", 1)
        signs, doubts = [I64(0), I64(0)], [I64(0), I64(0)]
        for r in range(ROWS):
            word, row = divmod(r, PER_WORD)
            bound = splat(builder, builder.load(builder.gep(bounds.data, [I64(r)])))
            for v in range(VECTORS):
                projection, place = sums[r * VECTORS + v], I64(LANES * (row * VECTORS + v))
                positive = builder.fcmp_ordered(">=", projection, zero)
                doubtful = builder.fcmp_unordered("<=", builder.call(absolute, [projection]), bound)
                signs[word] = builder.or_(signs[word], builder.shl(as_bits(builder, positive), place))
                doubts[word] = builder.or_(doubts[word], builder.shl(as_bits(builder, doubtful), place))
        return context.make_tuple(builder, signature.return_type, [*signs, *doubts])

    return signature, generate


@intrinsic
def _square_norm(typingctx, source, start, count):
    """Σ source[start + k]² for k below `count`, of a flat float32 array; the order of the sum is its own."""
    signature = types.float32(source, types.intp, types.intp)

    def generate(context, builder, signature, arguments):
        source, start, count = arguments
        source = context.make_array(signature.args[0])(context, builder, source)
        of = builder.gep(source.data, [start])
        fused = declare(builder, "llvm.fmuladd.v8f32", 3)
        whole = builder.lshr(count, I64(3))

        def eight(k, sums):
            at = builder.gep(of, [builder.shl(k, I64(3))])
            entries = builder.load(builder.bitcast(at, VECTOR.as_pointer()), align=4)
            return [builder.call(fused, [entries, entries, sums[0]])]

        (lanes,) = loop(builder, whole, [ir.Constant(VECTOR, [0.0] * LANES)], eight)
        total = builder.extract_element(lanes, I32(0))
        for lane in range(1, LANES):
            total = builder.fadd(total, builder.extract_element(lanes, I32(lane)))

        def one(k, sums):
            entry = builder.load(builder.gep(of, [builder.add(builder.shl(whole, I64(3)), k)]))
            return [builder.fadd(sums[0], builder.fmul(entry, entry))]

        (total,) = loop(builder, builder.and_(count, I64(LANES - 1)), [total], one)
        return total

    return signature, generate


@kernel
def _settle(x, start, columns, column, r, signs, doubts):
    """Replace the doubtful signs of row r of a panel by those of float64 projections."""
    for j in range(COLUMNS):
        bit = np.uint64(1) << np.uint64(COLUMNS * r + j)
        if doubts & bit:
            total = 0.0
            for k in range(columns.shape[0]):
                total += np.float64(x[start + k]) * np.float64(columns[k, column + j])
            signs = signs | bit if total >= 0 else signs & ~bit
    return signs


@kernel
def _cut(words, place, length):
    """Bits [place, place + length) of a row of 64-bit words, for a length of at most 63."""
    low, shift = place >> 6, np.uint64(place & 63)
    code = words[low] >> shift
    if shift != 0:
        code |= words[low + 1] << (np.uint64(64) - shift)
    return np.int64(code & ((np.uint64(1) << np.uint64(length)) - np.uint64(1)))


@kernel
def hyperplane_codes(x, base, stride, columns, longest, tables, hashes, codes, start, stop):
    """Write codes[start:stop] (n, tables); -1 for rows that are not finite.

    Entry k of row i is x[base + i · stride + k], float32.
    """
    dim = columns.shape[0]
    functions = tables * hashes
    unit = dim * _UNIT
    spread = np.float32(_SLACK * unit / (1 - unit) * longest)
    bounds = np.empty(ROWS, np.float32)
    words = np.empty((ROWS, columns.shape[1] // 64 + 2), np.uint64)
    usable = np.empty(ROWS, np.bool_)
    for first in range(start, stop, ROWS):
        rows = min(ROWS, stop - first)
        for r in range(ROWS):
            row = base + min(first + r, stop - 1) * stride
            square = _square_norm(x, row, dim)
            usable[r] = True
            # Outside this range float32 squares overflow or lose digits: then every sign is in doubt.
            if square > 1e-20 and square < 1e35:
                bounds[r] = spread * np.sqrt(square)
            else:
                bounds[r] = np.inf
                for k in range(dim):
                    if not np.isfinite(x[row + k]):
                        usable[r] = False
        words[:] = 0
        for column in range(0, columns.shape[1], COLUMNS):
            low, high, low_doubts, high_doubts = _sign_panel(x, base, stride, first, stop - 1, columns, column, bounds)
            place, shift = column >> 6, np.uint64(column & 63)
            for above, signs, doubts in ((0, low, low_doubts), (PER_WORD, high, high_doubts)):
                if functions - column < COLUMNS:  # columns that only fill up the panel are nobody's
                    real = (np.uint64(1) << np.uint64(functions - column)) - np.uint64(1)
                    doubts &= real * np.uint64(0x1000100010001)
                if doubts != 0:
                    for r in range(min(PER_WORD, rows - above)):
                        if usable[above + r]:
                            start_of_row = base + (first + above + r) * stride
                            signs = _settle(x, start_of_row, columns, column, r, signs, doubts)
                for r in range(min(PER_WORD, ROWS - above)):
                    words[above + r, place] |= ((signs >> np.uint64(COLUMNS * r)) & np.uint64(0xFFFF)) << shift
        for r in range(rows):
            if not usable[r]:
                codes[first + r] = -1
            elif hashes == 8:
                for table in range(tables):
                    codes[first + r, table] = (words[r, table >> 3] >> np.uint64(8 * (table & 7))) & np.uint64(0xFF)
            else:
                for table in range(tables):
                    codes[first + r, table] = _cut(words[r], table * hashes, hashes)
