"""Random hyperplanes (Charikar 2002): the sign of a random projection."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from annattn.lsh.family import HashFamily, unit_angle
from annattn.lsh.rows import dot_in_order, products_and_errors, rescale_huge

__all__ = ["Hyperplane"]

_POLE = 1e-6


@dataclass(frozen=True)
class Hyperplane(HashFamily):
    """h(x) = [a·x ≥ 0] with a Gaussian: one bit per hash, blind to the length of x.

    Distances are between unit vectors, so at most 2.

    >>> round(Hyperplane(64).collision_probability(2**0.5), 12)
    0.5
    """

    @property
    def values(self) -> int:
        """One bit."""
        return 2

    def collision_probability(self, distance: float) -> float:
        """1 − θ/π, with θ the angle between unit vectors at this distance.

        >>> Hyperplane(3).collision_probability(2.0)
        0.0
        """
        return 1 - unit_angle(distance) / math.pi

    def log_slope(self, cosine: Tensor) -> Tensor:
        """1 / (√(1 − x²) · (π − arccos x)) at cosine x, with x kept off ±1, where it has a pole.

        >>> Hyperplane(3).log_slope(torch.zeros(1))
        tensor([0.6366])
        """
        safe = cosine.clamp(-1 + _POLE, 1 - _POLE)
        return 1 / (torch.sqrt(1 - safe**2) * (math.pi - torch.acos(safe)))

    def _log_values(self, cosine: Tensor) -> Tensor:
        # At −1 the probability is zero; a logarithm of about −14 stands for that, as everywhere near it.
        angle = torch.acos(cosine.clamp(-1 + _POLE, 1))
        return torch.log1p(-angle / math.pi)

    @property
    def linear_slope(self) -> float:
        """½, below `log_slope` everywhere (the lower bound of YOSO attention)."""
        return 0.5

    def draw(self, random: np.random.RandomState, functions: int) -> tuple[np.ndarray, ...]:
        """Normals of the hyperplanes, (functions, dim)."""
        return (random.standard_normal((functions, self.dim)).astype(np.float32),)

    def evaluate(self, parameters: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        """On which side of each hyperplane a row lies; on it counts as the positive side."""
        (normals,) = parameters
        rows = rescale_huge(rows)
        products, errors = products_and_errors(rows, normals)
        at, function = torch.nonzero((products.abs() <= errors) & (errors > 0), as_tuple=True)
        products[at, function] = dot_in_order(rows[at], normals[function])
        return (products >= 0).to(torch.int64)
