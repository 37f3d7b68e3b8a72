"""Random transformers on integers: everything is exact, so two ways of running one must agree bit for bit."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from annattn.compiler import Attention, Head, Layer, LowRank, Transformer

__all__ = ["PRIME", "integer_linear", "integer_rows", "integer_transformer"]

PRIME = 31


def integer_rows(n: int, width: int, seed: int) -> Tensor:
    """Input rows: whole numbers from 0 to 30.

    >>> integer_rows(2, 3, seed=0).shape
    torch.Size([2, 3])
    """
    return torch.from_numpy(np.random.default_rng(seed).integers(0, PRIME, (n, width)).astype(np.float64))


def integer_transformer(attention: Attention, *, layers: int, heads: int, width: int, seed: int) -> Transformer:
    """L layers of H heads of this width, with random element-wise functions modulo 31; rows are H·width wide.

    Queries and keys take few values, so that many match, and are centred, so that hyperplanes separate them. A layer
    adds the heads' averages, rounded down to 1/64, to each row. Sums of small integers are exact and each average is
    one division, so the rounding is the same everywhere.

    >>> from annattn.compiler import ExactMatch
    >>> model = integer_transformer(ExactMatch(), layers=2, heads=2, width=3, seed=0)
    >>> model(integer_rows(5, 6, seed=1)).shape
    torch.Size([5, 6])
    """
    rng = np.random.default_rng(seed)
    rows = heads * width
    classes = PRIME if isinstance(attention, LowRank) else 7
    made = []
    for _ in range(layers):
        each = []
        for _ in range(heads):
            query, key = _class(rng, rows, width, classes), _class(rng, rows, width, classes)
            each.append(Head(query, key, integer_linear(rng, rows, width), width, width))
        made.append(Layer(each, attention, update=_update, width=rows))
    return Transformer(made)


def _update(x: Tensor, reads: list[Tensor]) -> Tensor:
    return (x + torch.floor(64 * torch.cat(reads, dim=1))) % PRIME


def integer_linear(rng: np.random.Generator, rows: int, width: int) -> Callable[[Tensor], Tensor]:
    """A random affine map of rows modulo 31.

    >>> integer_linear(np.random.default_rng(0), 2, 3)(integer_rows(1, 2, seed=0)).shape
    torch.Size([1, 3])
    """
    matrix = torch.from_numpy(rng.integers(0, PRIME, (rows, width)).astype(np.float64))
    shift = torch.from_numpy(rng.integers(0, PRIME, width).astype(np.float64))
    return lambda x: (x @ matrix + shift) % PRIME


def _class(rng: np.random.Generator, rows: int, width: int, classes: int) -> Callable[[Tensor], Tensor]:
    """The class of a row, a number below `classes`, as a vector of whole numbers around zero."""
    to_class, spelled = integer_linear(rng, rows, 1), np.random.default_rng(classes * width)
    vectors = torch.from_numpy(spelled.integers(0, PRIME, (classes, width)).astype(np.float64)) - PRIME // 2
    return lambda x: vectors[(to_class(x)[:, 0] % classes).long()]
