"""Tensors as the flat arrays that compiled kernels work on, and memory for their results."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["empty", "flat"]

_NUMPY = {torch.int64: np.int64, torch.float32: np.float32, torch.float64: np.float64}


def flat(x: Tensor) -> tuple[np.ndarray, Callable[[int, int], int], int]:
    """The storage of a 4-axis tensor as one flat array, where the rows of a head start in it, and a row's stride.

    >>> array, start, stride = flat(torch.zeros(2, 3, 5, 4)[:, :, 1:])
    >>> start(1, 2), stride
    (104, 4)
    """
    x = x.detach()
    if x.stride(-1) != 1:
        x = x.contiguous()
    if x.is_contiguous() and x.numel():  # nothing but a short cut: a decode step is shorter than what follows
        _, heads, n, width = x.shape
        return x.view(-1).numpy(), lambda b, h: (b * heads + h) * n * width, width
    strides, offset = x.stride(), x.storage_offset()
    if not x.numel():
        return x.new_empty(1).numpy(), lambda b, h: 0, strides[2]
    size = offset + sum((length - 1) * stride for length, stride in zip(x.shape, strides, strict=True)) + 1
    array = x.as_strided((size,), (1,), 0).numpy()
    return array, lambda b, h: offset + b * strides[0] + h * strides[1], strides[2]


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Like torch.empty, but by NumPy, which asks for huge pages: touching small ones can cost more than the sums.

    >>> empty(2, 3).shape
    torch.Size([2, 3])
    """
    return torch.from_numpy(np.empty(shape, _NUMPY[dtype]))
