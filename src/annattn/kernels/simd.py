"""Two inner loops written as LLVM vectors, because the loop vectoriser does not find them.

LLVM turns the fixed width of eight lanes into whatever the processor has, so nothing here is bound to one.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic

__all__ = ["COLUMNS", "ROWS", "add_row", "sign_panel"]

# To a type checker an intrinsic is a function that still wants its typing context.
intrinsic: Any = _intrinsic

LANES = 8
ROWS = 4  # rows of a panel
VECTORS = 2  # vectors of columns of a panel
COLUMNS = VECTORS * LANES

_I64, _I32, _I8 = ir.IntType(64), ir.IntType(32), ir.IntType(8)
_F32 = ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)


@intrinsic
def sign_panel(typingctx, x, base, row_stride, step, row, last, columns, first, bounds):
    """Signs of rows [row, row + 4) times columns[:, first : first + 16], as bits, and which of them are in doubt.

    Entry k of row i is x[base + i · row_stride + k · step]. Both results are 64 bits, 16 for each row. A projection
    within bounds[r] of zero is in doubt: its float32 rounding may have decided its sign. Rows beyond `last` repeat it.
    """
    index = types.intp
    signature = types.UniTuple(types.uint64, 2)(x, index, index, index, index, index, columns, index, bounds)

    def generate(context, builder, signature, arguments):
        x, base, row_stride, stride, row, last, columns, first, bounds = arguments
        x = context.make_array(signature.args[0])(context, builder, x)
        columns = context.make_array(signature.args[6])(context, builder, columns)
        bounds = context.make_array(signature.args[8])(context, builder, bounds)
        column_stride = cgutils.unpack_tuple(builder, columns.strides)[0]
        depth = cgutils.unpack_tuple(builder, columns.shape)[0]
        rows = []
        for r in range(ROWS):
            at = builder.add(row, _I64(r))
            at = builder.select(builder.icmp_signed("<", at, last), at, last)
            rows.append(builder.gep(x.data, [builder.add(base, builder.mul(at, row_stride))]))
        panel = builder.gep(_bytes(builder, columns.data), [builder.mul(first, _I64(4))])
        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        fused = _declare(builder, "llvm.fmuladd.v8f32", 3)

        def step(k, sums):
            depth_row = builder.gep(panel, [builder.mul(k, column_stride)])
            vectors = [_load(builder, depth_row, v * LANES * 4) for v in range(VECTORS)]
            offset, result = builder.mul(k, stride), []
            for r in range(ROWS):
                spread = _splat(builder, builder.load(builder.gep(rows[r], [offset])))
                for v in range(VECTORS):
                    result.append(builder.call(fused, [spread, vectors[v], sums[r * VECTORS + v]]))
            return result

        sums = _loop(builder, depth, [zero] * (ROWS * VECTORS), step)
        absolute = _declare(builder, "llvm.fabs.v8f32", 1)
        signs = doubts = _I64(0)
        for r in range(ROWS):
            bound = _splat(builder, builder.load(builder.gep(bounds.data, [_I64(r)])))
            for v in range(VECTORS):
                projection, place = sums[r * VECTORS + v], _I64(LANES * (r * VECTORS + v))
                positive = builder.fcmp_ordered(">=", projection, zero)
                doubtful = builder.fcmp_ordered("<=", builder.call(absolute, [projection]), bound)
                signs = builder.or_(signs, builder.shl(_as_bits(builder, positive), place))
                doubts = builder.or_(doubts, builder.shl(_as_bits(builder, doubtful), place))
        return context.make_tuple(builder, signature.return_type, [signs, doubts])

    return signature, generate


@intrinsic
def add_row(typingctx, target, at, source, start, count):
    """target[at + k] += source[start + k] for k below `count`, in the dtype of the target; flat float arrays."""
    index = types.intp
    signature = types.void(target, index, source, index, index)

    def generate(context, builder, signature, arguments):
        target, at, source, start, count = arguments
        target = context.make_array(signature.args[0])(context, builder, target)
        source = context.make_array(signature.args[2])(context, builder, source)
        to = builder.gep(target.data, [at])
        of = builder.gep(source.data, [start])
        own, other = (context.get_value_type(array.dtype) for array in (signature.args[0], signature.args[2]))

        sizes = [array.dtype.bitwidth // 8 for array in (signature.args[0], signature.args[2])]

        def add(own, other, k):
            there = builder.bitcast(builder.gep(to, [k]), own.as_pointer())
            here = builder.bitcast(builder.gep(of, [k]), other.as_pointer())
            now, more = builder.load(there, align=sizes[0]), builder.load(here, align=sizes[1])
            if sizes[0] != sizes[1]:
                more = builder.fpext(more, own) if sizes[0] > sizes[1] else builder.fptrunc(more, own)
            builder.store(builder.fadd(now, more), there, align=sizes[0])

        whole = builder.lshr(count, _I64(3))

        def eight(k, _):
            add(ir.VectorType(own, LANES), ir.VectorType(other, LANES), builder.shl(k, _I64(3)))
            return []

        def one(k, _):
            add(own, other, builder.add(builder.shl(whole, _I64(3)), k))
            return []

        _loop(builder, whole, [], eight)
        _loop(builder, builder.and_(count, _I64(LANES - 1)), [], one)
        return context.get_dummy_value()

    return signature, generate


def _loop(builder, count, start, step):
    """Run `step(k, values) -> values` for k below `count`, carrying values that start as `start`."""
    before = builder.block
    body, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_signed(">", count, _I64(0)), body, after)
    builder.position_at_end(body)
    k = builder.phi(_I64)
    k.add_incoming(_I64(0), before)
    carried = []
    for value in start:
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        carried.append(phi)
    computed = step(k, carried)
    following = builder.add(k, _I64(1))
    last = builder.block
    k.add_incoming(following, last)
    for phi, value in zip(carried, computed, strict=True):
        phi.add_incoming(value, last)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)
    results = []
    for value, final in zip(start, computed, strict=True):
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        phi.add_incoming(final, last)
        results.append(phi)
    return results


def _bytes(builder, pointer):
    return builder.bitcast(pointer, _I8.as_pointer())


def _load(builder, pointer, offset):
    at = builder.bitcast(builder.gep(pointer, [_I64(offset)]), _VECTOR.as_pointer())
    return builder.load(at, align=4)


def _splat(builder, scalar):
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    single = builder.insert_element(nothing, scalar, _I32(0))
    return builder.shuffle_vector(single, nothing, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


def _as_bits(builder, lanes):
    return builder.zext(builder.bitcast(lanes, _I8), _I64)


def _declare(builder, name, arguments):
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * arguments), name)
