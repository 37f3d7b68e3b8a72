"""Rows of flat arrays, by where they begin.

A view of a row would be counted, and given up again, each time: that costs more than the row. And a signed index could
be negative, which Numba would look at in every step; so places are unsigned in here, and LLVM vectorises the loops.
"""

import numpy as np

from annattn.kernels.numba.compiled import kernel

__all__ = ["add_four_rows", "add_row", "copy_row", "divide_row", "is_finite_row", "set_row", "set_to_sum"]

_U = np.uint64


@kernel(inlined=True)
def add_row(target, at, source, begin, width):
    """target[at + k] += source[begin + k] for k below `width`."""
    at, begin = _U(at), _U(begin)
    for k in range(_U(width)):
        target[at + k] += source[begin + k]


@kernel(inlined=True)
def add_four_rows(target, at, source, first, second, third, fourth, width):
    """`add_row` of four rows one after the other, with the same roundings; the target is loaded and stored once."""
    at, first, second, third, fourth = _U(at), _U(first), _U(second), _U(third), _U(fourth)
    for k in range(_U(width)):
        total = target[at + k] + source[first + k]
        total = total + source[second + k]
        total = total + source[third + k]
        target[at + k] = total + source[fourth + k]


@kernel(inlined=True)
def copy_row(target, at, source, begin, width):
    """target[at + k] = source[begin + k] for k below `width`."""
    at, begin = _U(at), _U(begin)
    for k in range(_U(width)):
        target[at + k] = source[begin + k]


@kernel(inlined=True)
def set_to_sum(target, at, source, first, second, width):
    """target[at + k] = source[first + k] + source[second + k]."""
    at, first, second = _U(at), _U(first), _U(second)
    for k in range(_U(width)):
        target[at + k] = source[first + k] + source[second + k]


@kernel(inlined=True)
def set_row(target, at, number, width):
    """target[at + k] = number."""
    at = _U(at)
    for k in range(_U(width)):
        target[at + k] = number


@kernel(inlined=True)
def divide_row(target, at, divisor, width):
    """target[at + k] /= divisor."""
    at, divisor = _U(at), target.dtype.type(divisor)
    for k in range(_U(width)):
        target[at + k] /= divisor


@kernel(fastmath={"reassoc"}, inlined=True)
def is_finite_row(x, at, width):
    """Whether all of x[at + k] are finite: 0 times another number is NaN."""
    at, nothing = _U(at), x.dtype.type(0)
    total = nothing
    for k in range(_U(width)):
        total += x[at + k] * nothing
    return total == nothing
