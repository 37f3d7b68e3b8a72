"""Cross-polytope codes with structured rotations on a CPU: float32 speed, float64 answers.

As in `numba_hash`, a float32 answer stands only where its rounding error cannot have decided it: where the two largest
coordinates are too close to call, the row is rotated again in float64.
"""

import numpy as np
from llvmlite import ir
from numba import types

from annattn.kernels.compiled import kernel
from annattn.kernels.simd import I64, LANES, VECTOR, declare, intrinsic, splat

__all__ = ["cross_polytope_codes"]

_VECTORS = 2
_LANES = _VECTORS * LANES  # rows rotated side by side
_UNIT = 2.0**-24


@kernel
def cross_polytope_codes(x, base, stride, dim, signs, hashes, codes, start, stop):
    """Write codes[start:stop] (n, tables); -1 for rows that are not finite.

    Entry k of row i is x[base + i · stride + k], float32; signs are float32 (functions, 3, axes).
    """
    functions, _, axes = signs.shape
    stages = 0
    while (1 << stages) < axes:
        stages += 1
    # Every stage adds a rounding of at most u times the length, which each of the three rounds scales by √axes.
    spread = np.float32(2.02 * 3 * max(stages, 1) * _UNIT * axes**1.5)
    rows = np.empty(axes * _LANES, np.float32)
    turned = np.empty(axes * _LANES, np.float32)
    largest, second = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    winner = np.empty(_LANES, np.float32)  # 2 · axis + [negative]: exact in float32 up to 2^24
    bound, usable = np.empty(_LANES, np.float32), np.empty(_LANES, np.bool_)
    exact = np.empty(axes)
    for first in range(start, stop, _LANES):
        count = min(_LANES, stop - first)
        rows[:] = 0
        for r in range(count):
            at = base + (first + r) * stride
            square = np.float32(0)
            for k in range(dim):
                entry = x[at + k]
                rows[k * _LANES + r] = entry
                square += entry * entry
            usable[r] = True
            if square > 1e-20 and square < 1e30:
                bound[r] = spread * np.sqrt(square)
            else:
                bound[r] = np.inf
                for k in range(dim):
                    usable[r] &= np.isfinite(x[at + k])
        for function in range(functions):
            _rotate(rows, signs[function], turned)
            _two_largest(turned, axes, largest, second, winner)
            place = 1
            for _ in range(function % hashes):
                place *= 2 * axes
            for r in range(count):
                digit = np.int64(winner[r])
                if not largest[r] - second[r] > bound[r] and usable[r]:
                    digit = _digit(x, base + (first + r) * stride, dim, signs[function], exact)
                if place == 1:
                    codes[first + r, function // hashes] = 0
                codes[first + r, function // hashes] += digit * place
        for r in range(count):
            if not usable[r]:
                codes[first + r] = -1


@kernel
def _rotate(rows, signs, turned):
    """Three rounds of signs and a Hadamard transform, for all lanes at once; rows and turned are flat, lanes inner."""
    axes = signs.shape[1]
    for k in range(axes):
        _scale(turned, k * _LANES, rows, signs[0, k])
    for turn in range(3):
        if turn > 0:
            for k in range(axes):
                _scale(turned, k * _LANES, turned, signs[turn, k])
        step = 1
        while step < axes:
            for block in range(0, axes, 2 * step):
                for k in range(block, block + step):
                    _butterfly(turned, k * _LANES, (k + step) * _LANES)
            step *= 2


@kernel
def _two_largest(turned, axes, largest, second, winner):
    """The largest absolute coordinate of each lane, the next largest, and 2 · axis + [negative] of the largest.

    The first axis wins a tie.
    """
    for r in range(_LANES):
        largest[r] = -1
        second[r] = -1
        winner[r] = 0
    for k in range(axes):
        _challenge(turned, k * _LANES, largest, second, winner, np.float32(2 * k))


@intrinsic
def _scale(typingctx, target, at, source, factor):
    """target[at + r] = source[at + r] · factor for every lane r."""
    signature = types.void(target, types.intp, source, types.float32)

    def generate(context, builder, signature, arguments):
        to, of = (_vectors(context, builder, signature, arguments, k, arguments[1]) for k in (0, 2))
        factor = splat(builder, arguments[3])
        for there, here in zip(to, of, strict=True):
            builder.store(builder.fmul(builder.load(here, align=4), factor), there, align=4)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _butterfly(typingctx, target, low, high):
    """(a, b) becomes (a + b, a − b) for every lane of the two lines."""
    signature = types.void(target, types.intp, types.intp)

    def generate(context, builder, signature, arguments):
        lines = (_vectors(context, builder, signature, arguments, 0, arguments[k]) for k in (1, 2))
        for there, here in zip(*lines, strict=True):
            even, odd = builder.load(there, align=4), builder.load(here, align=4)
            builder.store(builder.fadd(even, odd), there, align=4)
            builder.store(builder.fsub(even, odd), here, align=4)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _challenge(typingctx, line, at, largest, second, winner, number):
    """Let line[at + r] try for the largest absolute value of lane r; if it wins, winner[r] = number + [negative]."""
    signature = types.void(line, types.intp, largest, second, winner, types.float32)

    def generate(context, builder, signature, arguments):
        absolute = declare(builder, "llvm.fabs.v8f32", 1)
        zero, one = (ir.Constant(VECTOR, [value] * LANES) for value in (0.0, 1.0))
        number = splat(builder, arguments[5])
        lines = _vectors(context, builder, signature, arguments, 0, arguments[1])
        held = (_vectors(context, builder, signature, arguments, k, I64(0)) for k in (2, 3, 4))
        for here, *places in zip(lines, *held, strict=True):
            entry = builder.load(here, align=4)
            size = builder.call(absolute, [entry])
            top, runner_up, name = (builder.load(place, align=4) for place in places)
            wins = builder.fcmp_ordered(">", size, top)
            beats = builder.fcmp_ordered(">", size, runner_up)
            named = builder.fadd(number, builder.select(builder.fcmp_ordered("<", entry, zero), one, zero))
            runner_up = builder.select(wins, top, builder.select(beats, size, runner_up))
            for place, value in zip(
                places,
                (builder.select(wins, size, top), runner_up, builder.select(wins, named, name)),
                strict=True,
            ):
                builder.store(value, place, align=4)
        return context.get_dummy_value()

    return signature, generate


def _vectors(context, builder, signature, arguments, k, at):
    """Pointers to the vectors of the line that starts at `at` in the k-th argument."""
    data = context.make_array(signature.args[k])(context, builder, arguments[k]).data
    return [
        builder.bitcast(builder.gep(data, [builder.add(at, I64(v * LANES))]), VECTOR.as_pointer())
        for v in range(_VECTORS)
    ]


@kernel
def _digit(x, at, dim, signs, row):
    """2 · axis + [negative] of one row by float64, in the order of operations of `CrossPolytope.evaluate`."""
    axes = len(row)
    for k in range(axes):
        row[k] = x[at + k] if k < dim else 0.0
    for turn in range(3):
        for k in range(axes):
            row[k] *= signs[turn, k]
        step = 1
        while step < axes:
            for block in range(0, axes, 2 * step):
                for k in range(block, block + step):
                    even, odd = row[k], row[k + step]
                    row[k] = even + odd
                    row[k + step] = even - odd
            step *= 2
    best = 0
    for k in range(axes):
        if abs(row[k]) > abs(row[best]):
            best = k
    return 2 * best + (1 if row[best] < 0 else 0)
