"""What a number of tables and hashes is worth, to stand beside its speed."""

import math
from dataclasses import dataclass

import torch

from annattn.lsh import Hyperplane

__all__ = ["MATCH", "Accuracy"]

MATCH = 0.99
"""The cosine of a key that should be met."""


@dataclass(frozen=True)
class Accuracy:
    """What a setting is worth when one key equals the query and n − 1 others are random.

    - share: the weight of the true match, ℓ / (ℓ + Σ c_j) with the expected number of chance meetings.
    - missed: the chance that a key at cosine 0.99 is met in no table.
    """

    share: float
    missed: float

    @staticmethod
    def of(n: int, *, dim: int, tables: int, hashes: int) -> "Accuracy":
        """The accuracy among n keys of hyperplane hashes.

        >>> blunt = Accuracy.of(4096, dim=64, tables=8, hashes=8)
        >>> sharp = Accuracy.of(4096, dim=64, tables=16, hashes=28)
        >>> round(blunt.share, 2), round(sharp.share, 2), blunt.missed < sharp.missed
        (0.05, 1.0, True)
        """
        meets = Hyperplane(dim).collision_probability(math.sqrt(2 - 2 * MATCH)) ** hashes
        if dim == 1:
            chance = 0.5  # random directions are equal or opposite
        else:
            # Random directions are at right angles up to O(1/√dim); a mean over angles, as p^z is far from linear.
            angles = torch.linspace(0, math.pi, 10_001, dtype=torch.float64)
            density = torch.sin(angles) ** (dim - 2)
            chance = float(((1 - angles / math.pi) ** hashes * density).sum() / density.sum())
        return Accuracy(1 / (1 + (n - 1) * chance), (1 - meets) ** tables)
