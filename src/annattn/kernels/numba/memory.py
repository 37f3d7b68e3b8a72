"""Tensors as the flat arrays that compiled kernels work on, and memory for their results."""

import math
import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.kernels.numba.rows import is_finite_row
from annattn.lsh import IGNORED

__all__ = ["KEPT", "empty", "empty_array", "flat", "is_finite", "require_below"]

KEPT = 2**27  # bytes of memory given up that are kept for the next call, at most
_WORTH_KEEPING = 2**20  # bytes; the C library sees to smaller ones

_NUMPY = {torch.int64: np.int64, torch.float32: np.float32, torch.float64: np.float64}


def flat(x: Tensor) -> tuple[np.ndarray, np.ndarray, int]:
    """The storage of a 4-axis tensor as one flat array, where the rows of each head start in it, and a row's stride.

    >>> array, starts, stride = flat(torch.zeros(2, 3, 5, 4)[:, :, 1:])
    >>> int(starts[1, 2]), stride
    (104, 4)
    """
    x = x.detach()
    if x.stride(-1) != 1:
        x = x.contiguous()
    batch, heads, n, _ = x.shape
    strides, offset = x.stride(), int(x.storage_offset())
    if not x.numel():
        return x.new_empty(1).numpy(), np.zeros((batch, heads), np.int64), strides[2]
    size = offset + (batch - 1) * strides[0] + (heads - 1) * strides[1] + (n - 1) * strides[2] + x.shape[3]
    starts = offset + np.add.outer(np.arange(batch) * strides[0], np.arange(heads) * strides[1])
    return x.as_strided((size,), (1,), 0).numpy(), starts, strides[2]


def require_below(limit: int, what: str, *arrays: np.ndarray) -> None:
    """Raise InputError unless these integers are IGNORED, NO_BUCKET, or from 0 to below a limit; 0 stands for none.

    Compiled kernels index by them unchecked.

    >>> require_below(4, "hash code", np.array([0, 3, -1]))
    """
    for array in arrays:
        # By NumPy, which takes less than a hundredth of the time that is spent on the codes, and starts no threads.
        if array.size and ((limit and array.max() >= limit) or array.min() < IGNORED):
            wrong = array.max() if limit and array.max() >= limit else array.min()
            raise InputError(
                what, given=int(wrong), expected=f"{IGNORED} to {limit - 1:,}" if limit else f"at least {IGNORED}"
            )


def is_finite(x: Tensor) -> bool:
    """Whether all numbers of a contiguous tensor are finite. Unlike torch's answer it wakes no threads.

    >>> is_finite(torch.ones(2, 3)), is_finite(torch.tensor([1.0, torch.inf]))
    (True, False)
    """
    return bool(is_finite_row(x.numpy().reshape(-1), 0, x.numel()))


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Like torch.empty, but large ones use memory again that an earlier one has given up, up to a bound.

    The first touch of fresh pages can cost more than the sums. NumPy asks for huge ones, which cost less.

    >>> empty(2, 3).shape
    torch.Size([2, 3])
    """
    return torch.from_numpy(empty_array(shape, _NUMPY[dtype]))


def empty_array(shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
    """The same as an array. Whatever looks at its memory must hold this very array, as a tensor made of it does.

    >>> empty_array((2, 3), np.int64).shape
    (2, 3)
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < _WORTH_KEEPING:
        return np.empty(shape, kind)
    block = _taken(size) or _Block(np.empty(size, np.uint8))
    array = block.room.view(kind).reshape(shape)
    # When the array goes, nobody looks at the memory any more.
    weakref.finalize(array, _give_back, block).atexit = False
    return array


class _Block:
    """Memory, known by its identity."""

    def __init__(self, room: np.ndarray) -> None:
        self.room = room


# Given up last stands last. Single operations on a deque are atomic, so that no lock is needed, which a finaliser that
# runs in the midst of anything could not take.
_kept: deque[_Block] = deque()


def _taken(size: int) -> _Block | None:
    for block in reversed(tuple(_kept)):
        if block.room.nbytes == size:
            try:
                _kept.remove(block)
            except ValueError:  # another thread was faster
                continue
            return block
    return None


def _give_back(block: _Block) -> None:
    if block.room.nbytes > KEPT:
        return
    _kept.append(block)
    while sum(other.room.nbytes for other in tuple(_kept)) > KEPT:
        try:
            _kept.popleft()
        except IndexError:  # another thread was faster
            return
