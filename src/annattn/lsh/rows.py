"""Rows as directions: scaled so that no square overflows or vanishes."""

import torch
from torch import Tensor

__all__ = ["directions_and_lengths", "dot_in_order", "products_and_errors", "rescale_huge", "unit_rows"]


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


def products_and_errors(rows: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Float64 products (n, functions), and by how much each may differ from `dot_in_order`.

    A matrix product adds up in an order that depends on its sizes, so a row alone and the same row in a batch may give
    numbers that differ in their last bits. What those bits decide must be asked of `dot_in_order`.

    >>> products_and_errors(torch.ones(1, 2), torch.ones(3, 2))[0]
    tensor([[2., 2., 2.]], dtype=torch.float64)
    """
    rows, vectors = rows.double(), vectors.double()
    lengths = rows.norm(dim=-1)[:, None] * vectors.norm(dim=-1)
    return rows @ vectors.T, 2.1 * rows.shape[-1] * 2.0**-53 * lengths


def dot_in_order(rows: Tensor, vectors: Tensor) -> Tensor:
    """The dot products of pairs of rows (..., dim) in float64, coordinate after coordinate: the same in any batch.

    >>> dot_in_order(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([11.], dtype=torch.float64)
    """
    total = torch.zeros(rows.shape[:-1], dtype=torch.float64, device=rows.device)
    for x, y in zip(rows.double().unbind(-1), vectors.double().unbind(-1), strict=True):
        # Two steps, which no compiler joins to one with another rounding.
        term = x * y
        total = total + term
    return total
