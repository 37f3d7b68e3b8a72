"""Sums that leave the range of their dtype where the answer does not: done again with smaller values.

The smaller values are the same ones times a power of two, which rounds nothing. A backend does so only after it met a
number that is not finite, so nobody else pays for it.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from annattn.kernels.interface import GradientInputs

__all__ = ["gradient_in_range", "mean_in_range", "sum_in_range"]


def sum_in_range(found: Tensor, add: Callable[[Tensor], Tensor], value: Tensor, terms: int) -> Tensor:
    """`found` = add(value), a sum of at most so many terms, with what is not finite in it done again.

    >>> value = torch.tensor([3e38, 3e38, -3e38])
    >>> add = lambda value: value[0] + value[1] + value[2]
    >>> add(value), sum_in_range(add(value), add, value, terms=3)
    (tensor(inf), tensor(3.0000e+38))
    """
    scale = _scale(terms)
    return torch.where(found.isfinite(), found, add(value * scale) / scale)


def mean_in_range(found: Tensor, mean: Callable[[Tensor], Tensor], value: Tensor, terms: int) -> Tensor:
    """The same for a mean, which is no larger than the largest value, whatever was rounded on the way.

    >>> value = torch.tensor([3e38, 3e38])
    >>> mean = lambda value: value.sum() / 2
    >>> mean(value), mean_in_range(mean(value), mean, value, terms=2)
    (tensor(inf), tensor(3.0000e+38))
    """
    scale = _scale(terms)
    smaller = mean(value * scale)
    largest = torch.finfo(value.dtype).max
    again = torch.where(smaller.isfinite(), (smaller / scale).clamp(-largest, largest), smaller)
    return torch.where(found.isfinite(), found, again)


def gradient_in_range(
    found: tuple[Tensor, Tensor],
    gradient: Callable[[GradientInputs], tuple[Tensor, Tensor]],
    inputs: GradientInputs,
) -> tuple[Tensor, Tensor]:
    """The same for the gradients of queries and keys, in which a gradient meets the values and the output."""
    where = inputs.query_codes if inputs.newest is None else inputs.newest
    scale = _scale(inputs.value.numel() * (0 if where is None else where[0].numel()))
    smaller = replace(inputs, value=inputs.value * scale, out=inputs.out * scale, grad=inputs.grad * scale)
    query, key = (
        torch.where(first.isfinite(), first, again / scale / scale)
        for first, again in zip(found, gradient(smaller), strict=True)
    )
    return query, key


def _scale(terms: int) -> float:
    """A power of two by which that many of the largest numbers have a sum within the range."""
    return 2.0 ** -(max(terms, 1).bit_length() + 1)
