"""Pieces of LLVM for inner loops that the loop vectoriser does not find: vectors of eight float32, loops, broadcasts.

LLVM turns the fixed width into whatever the processor has, so nothing here is bound to one. Kernels that use these are
cached under the date of their own file: whoever changes this one runs `make clean`.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic

__all__ = [
    "I32",
    "I64",
    "LANES",
    "VECTOR",
    "as_bits",
    "as_bytes",
    "declare",
    "intrinsic",
    "load_vector",
    "loop",
    "splat",
]

# To a type checker an intrinsic is a function that still wants its typing context.
intrinsic: Any = _intrinsic

LANES = 8
I64, I32, I8 = ir.IntType(64), ir.IntType(32), ir.IntType(8)
F32 = ir.FloatType()
VECTOR = ir.VectorType(F32, LANES)


def loop(builder, count, start, step):
    """Run `step(k, values) -> values` for k below `count`, carrying values that start as `start`."""
    before = builder.block
    body, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_signed(">", count, I64(0)), body, after)
    builder.position_at_end(body)
    k = builder.phi(I64)
    k.add_incoming(I64(0), before)
    carried = []
    for value in start:
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        carried.append(phi)
    computed = step(k, carried)
    following = builder.add(k, I64(1))
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


def as_bytes(builder, pointer):
    """The same address, counted in bytes."""
    return builder.bitcast(pointer, I8.as_pointer())


def load_vector(builder, pointer, offset):
    """Eight numbers from `offset` bytes on."""
    at = builder.bitcast(builder.gep(pointer, [I64(offset)]), VECTOR.as_pointer())
    return builder.load(at, align=4)


def splat(builder, scalar):
    """One number in all lanes."""
    nothing = ir.Constant(VECTOR, ir.Undefined)
    single = builder.insert_element(nothing, scalar, I32(0))
    return builder.shuffle_vector(single, nothing, ir.Constant(ir.VectorType(I32, LANES), [0] * LANES))


def as_bits(builder, lanes):
    """Eight truths as the low bits of an integer."""
    return builder.zext(builder.bitcast(lanes, I8), I64)


def declare(builder, name, arguments):
    """An LLVM function of this many vectors that gives a vector."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(VECTOR, [VECTOR] * arguments), name)
