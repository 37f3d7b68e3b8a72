"""The family of one function, x ↦ x: its buckets are the classes of equal rows."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.lsh.family import HashFamily, Sensitivity

__all__ = ["Identity"]


@dataclass(frozen=True)
class Identity(HashFamily):
    """h(x) = x: equal rows, equal codes, of any dtype; with it ANNA is Exact-Match Attention (r = 0, c → ∞).

    −0.0 equals 0.0 and NaN equals nothing. A row is too wide for one code, so compare codes by `Hasher.joint_codes`.

    >>> hasher = Identity(2).sample(tables=1, hashes=1)
    >>> q, k = hasher.joint_codes(torch.tensor([[0.0, 1.0]]), torch.tensor([[-0.0, 1.0], [0.5, 1.0]]))
    >>> (q == k).tolist()
    [[True], [False]]
    """

    @property
    def values(self) -> None:
        """As many as there are rows."""
        return None

    @property
    def digits_per_hash(self) -> int:
        """One per coordinate."""
        return self.dim

    def collision_probability(self, distance: float) -> float:
        """1 at distance 0, else 0.

        >>> Identity(3).collision_probability(0.0), Identity(3).collision_probability(1e-9)
        (1.0, 0.0)
        """
        if not distance >= 0:
            raise InputError("distance", given=distance, expected="a number of at least 0")
        return float(distance == 0)

    def sensitivity(self, radius: float, approximation: float) -> Sensitivity:
        """Far pairs are those more than c·r apart, and of these none is equal, even for r = 0.

        >>> Identity(3).sensitivity(0.0, 2.0).p2
        0.0
        """
        return replace(super().sensitivity(radius, approximation), p2=0.0)

    def draw(self, random: np.random.RandomState, functions: int) -> tuple[np.ndarray, ...]:
        """Nothing to draw but the number of copies."""
        return (np.empty((functions, 0)),)

    def evaluate(self, parameters: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        """Each coordinate as an integer: itself, or the bit pattern of its float64 value."""
        digits = (rows.double() + 0.0).view(torch.int64) if rows.is_floating_point() else rows.long()
        return digits.repeat(1, len(parameters[0]))

    def hashable(self, rows: Tensor) -> Tensor:
        """All rows but those with NaN: infinity equals infinity."""
        return ~torch.isnan(rows).any(-1)

    @property
    def accepted(self) -> str:
        """What `accepts` accepts, in words."""
        return "a real dtype of at most 64 bits, not uint64"

    def accepts(self, dtype: torch.dtype) -> bool:
        """Everything that is exact as float64 or int64."""
        return not dtype.is_complex and dtype is not torch.uint64
