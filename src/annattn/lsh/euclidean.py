"""p-stable hashing (Datar, Immorlica, Indyk, Mirrokni 2004): shifted, rounded Gaussian projections."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from annattn.checks import require_number
from annattn.errors import InputError
from annattn.lsh.family import HashFamily
from annattn.lsh.rows import dot_in_order, products_and_errors

__all__ = ["Euclidean"]


@dataclass(frozen=True)
class Euclidean(HashFamily):
    """h(x) = ⌊(a·x + b) / w⌋ with a Gaussian and b uniform in [0, w): sees true distances, not only angles.

    >>> round(Euclidean(8, width=4.0).collision_probability(1.0), 4)
    0.8005
    """

    width: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        width = require_number("width", self.width, "a finite number greater than 0", low=math.ulp(0.0))
        object.__setattr__(self, "width", width)

    @property
    def values(self) -> None:
        """Any integer."""
        return None

    def collision_probability(self, distance: float) -> float:
        """1 − 2Φ(−w/t) − (2t / (√(2π)·w)) · (1 − exp(−w²/2t²)) at distance t.

        >>> Euclidean(3, width=1.0).collision_probability(0.0)
        1.0
        """
        if not distance >= 0:
            raise InputError("distance", given=distance, expected="a number of at least 0")
        if distance == 0:
            return 1.0
        if distance == math.inf:
            return 0.0
        ratio = self.width / distance
        tails = math.erfc(ratio / math.sqrt(2))
        return max(0.0, 1 - tails + math.sqrt(2 / math.pi) / ratio * math.expm1(-ratio * ratio / 2))

    def draw(self, random: np.random.RandomState, functions: int) -> tuple[np.ndarray, ...]:
        """Directions (functions, dim) and shifts (functions,)."""
        directions = random.standard_normal((functions, self.dim)).astype(np.float32)
        return directions, random.uniform(0, self.width, functions)

    def evaluate(self, parameters: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        """Number of the slab of width w that each row falls into."""
        directions, shifts = parameters
        products, errors = products_and_errors(rows, directions)
        low, high = (torch.floor((products + sign * errors + shifts) / self.width) for sign in (-1, 1))
        at, function = torch.nonzero(~(low == high), as_tuple=True)  # NaN, where numbers overflow, is in doubt too
        products[at, function] = dot_in_order(rows[at], directions[function])
        slabs = torch.floor((products + shifts) / self.width)
        # A slab number beyond 2^53 stands for its float64 value, which is all that is known of it; as bit patterns
        # such numbers stay apart where a cast to int64 would not.
        exact = slabs.abs() < 2.0**53
        return torch.where(exact, torch.where(exact, slabs, 0.0).long(), (slabs + 0.0).view(torch.int64))
