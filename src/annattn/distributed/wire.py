"""Tensors as bytes, for one exchange of several of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["pack", "row_bytes", "unpack"]

Column = tuple[int, torch.dtype]
"""How many numbers per row, and of which dtype."""


def row_bytes(columns: Sequence[Column]) -> int:
    """What a row of all columns takes.

    >>> row_bytes([(3, torch.float32), (1, torch.int64)])
    20
    """
    return sum(width * dtype.itemsize for width, dtype in columns)


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors (rows, width) one after the other, as bytes.

    >>> pack([torch.tensor([[1, 2]], dtype=torch.uint8), torch.tensor([[3]], dtype=torch.uint8)])
    tensor([1, 2, 3], dtype=torch.uint8)
    """
    return torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors])


def unpack(raw: Tensor, rows: int, columns: Sequence[Column]) -> list[Tensor]:
    """The inverse of `pack` for tensors of these many rows.

    >>> unpack(pack([torch.tensor([[1.5], [2.5]])]), 2, [(1, torch.float32)])[0].tolist()
    [[1.5], [2.5]]
    """
    parts = raw.split([rows * width * dtype.itemsize for width, dtype in columns])
    # A copy starts at an address that fits every dtype.
    return [part.clone().view(dtype).view(rows, width) for part, (width, dtype) in zip(parts, columns, strict=True)]
