"""Rows as directions: scaled so that no square overflows or vanishes."""

import torch
from torch import Tensor

__all__ = ["directions_and_lengths", "rescale_huge", "unit_rows"]


def unit_rows(x: Tensor) -> Tensor:
    """Rows scaled to length 1, in any dtype and at any length; rows of zeros stay. Differentiable.

    >>> unit_rows(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    wide = x.float() if x.dtype.itemsize < 4 else x
    largest = wide.detach().abs().amax(-1, keepdim=True) if x.shape[-1] else wide.new_ones(1)
    return torch.nn.functional.normalize(wide / torch.where(largest > 0, largest, 1), dim=-1).to(x.dtype)


def directions_and_lengths(x: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows and their lengths (..., 1); a row of zeros, NaN or infinity has direction 0 and infinite length.

    >>> directions_and_lengths(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))[1].flatten()
    tensor([5., inf])
    """
    largest = x.abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_ones(*x.shape[:-1], 1)
    usable = (largest > 0) & largest.isfinite()
    largest = torch.where(usable, largest, 1)
    scaled = torch.where(usable, x / largest, 0)
    norm = torch.where(usable, scaled.norm(dim=-1, keepdim=True), 1)
    return scaled / norm, torch.where(usable, largest * norm, torch.inf)


def rescale_huge(rows: Tensor) -> Tensor:
    """Rows in float64; those with huge entries are scaled down, so that no product overflows. Directions stay.

    >>> rescale_huge(torch.tensor([[1e200, -1e200]], dtype=torch.float64))
    tensor([[ 1., -1.]], dtype=torch.float64)
    """
    rows = rows.double()
    largest = rows.abs().amax(-1, keepdim=True)
    return torch.where((largest > 1e100) & largest.isfinite(), rows / largest, rows)
