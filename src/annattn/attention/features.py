"""What a feature map is: low-rank attention's Q' and K' as functions of queries and keys, row by row."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

__all__ = ["FeatureMap"]


class FeatureMap(ABC):
    """Weights that are inner products of features: w_ij = ⟨φ(q_i), ψ(k_j)⟩, the paper's low-rank attention.

    `low_rank_attention` takes one as `features` and divides by Σ_j w_ij + `offset`. No feature of one row may depend on
    another row: a maximum over all keys, say, would let the future into the past.
    """

    offset: ClassVar[float] = 0.0

    @abstractmethod
    def query(self, x: Tensor) -> Tensor:
        """φ of query rows (..., dim)."""

    @abstractmethod
    def key(self, x: Tensor) -> Tensor:
        """ψ of key rows (..., dim)."""
