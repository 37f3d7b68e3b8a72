"""Performer (FAVOR+): positive random features whose expected product is exp⟨q, k⟩."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from annattn.attention import reference
from annattn.attention.features import FeatureMap
from annattn.attention.low_rank import FeaturesConfig, low_rank_attention
from annattn.attention.mechanism import Mechanism
from annattn.checks import keep_counts, keep_number
from annattn.seeds import check_seed

__all__ = ["MECHANISM", "PerformerConfig", "PerformerFeatures", "performer_weights"]

_LARGEST_POWER = 40.0  # key features stay below e^40, so that their products and sums stay inside float32


@dataclass(frozen=True)
class PerformerFeatures(FeatureMap):
    """φ_t(x) = exp(⟨w_t, x'⟩ − ‖x'‖²/2) + ε with x' = x/d^¼, for `count` orthogonal Gaussian directions w_t.

    E⟨φ(q), φ(k)⟩/count = exp(⟨q, k⟩/√d) but for ε. A query's features are divided by the largest of them, which its
    normalisation undoes. Those of keys need no such stabiliser: ⟨w, x⟩ − ‖x‖²/2 is at most ‖w‖²/2, whatever x is. So
    nothing is a maximum over all keys, through which the future would reach the past.

    >>> PerformerFeatures(dim=4, count=8).key(torch.zeros(1, 4)).shape
    torch.Size([1, 8])
    """

    dim: int
    count: int = 256
    seed: int = 0
    epsilon: float = 1e-4
    directions: Tensor = field(init=False, repr=False, compare=False)
    shift: float = field(init=False, repr=False, compare=False)
    """Key features are multiplied by e^-shift, which no output knows: only the range of the numbers."""

    def __post_init__(self) -> None:
        keep_counts(self, "dim", "count")
        keep_number(self, "epsilon", "a number of at least 0", low=0)
        directions = _orthogonal_directions(self.count, self.dim, check_seed(self.seed))
        object.__setattr__(self, "directions", directions)
        largest = float(directions.square().sum(1).max()) / 2
        object.__setattr__(self, "shift", max(0.0, largest - _LARGEST_POWER))

    def query(self, x: Tensor) -> Tensor:
        """See `FeatureMap`."""
        return torch.exp(self._powers(x) - self.largest_power(x)) + self.epsilon

    def largest_power(self, x: Tensor) -> Tensor:
        """The logarithm of what a query's features were divided by, (..., 1)."""
        # Not detached: ε is added after the division, so the output does depend on it.
        return self._powers(x).amax(-1, keepdim=True)

    def key(self, x: Tensor) -> Tensor:
        """See `FeatureMap`."""
        return torch.exp(self._powers(x) - self.shift) + self.epsilon * math.exp(-self.shift)

    def _powers(self, x: Tensor) -> Tensor:
        x = (x / self.dim**0.25).contiguous()  # products of other layouts are rounded in another way
        return x @ self.directions.to(x).T - x.square().sum(-1, keepdim=True) / 2


def _orthogonal_directions(count: int, dim: int, seed: int) -> Tensor:
    """Rows distributed as Gaussian ones, at right angles to each other in groups of `dim`."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(-(-count // dim)):
        gaussian = torch.randn(dim, dim, generator=generator, dtype=torch.float64, device="cpu")
        orthogonal, upper = torch.linalg.qr(gaussian)
        blocks.append(orthogonal.T * upper.diagonal().sign()[:, None])
    lengths = torch.randn(count, dim, generator=generator, dtype=torch.float64, device="cpu").norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:count] * lengths


def performer_weights(query: Tensor, key: Tensor, seen: Tensor, *, features: PerformerFeatures) -> Tensor:
    """w_ij ∝ Σ_t φ_t(q_i) φ_t(k_j) over the keys seen, φ(q_i) divided by its largest entry before ε is added.

    >>> x = torch.zeros(1, 4)
    >>> performer_weights(x, torch.zeros(2, 4), torch.ones(1, 2), features=PerformerFeatures(4, 8))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    scores = torch.zeros(len(query), len(key), dtype=torch.float64)
    for i, q in enumerate(query.double() / features.dim**0.25):
        of_query = torch.exp(features.directions @ q - q @ q / 2)
        of_query = of_query / of_query.max() + features.epsilon
        for j, k in enumerate(key.double() / features.dim**0.25):
            scores[i, j] = of_query @ (torch.exp(features.directions @ k - k @ k / 2) + features.epsilon)
    return reference.normalised(torch.where(seen.bool(), scores, 0.0))


@dataclass(frozen=True)
class PerformerConfig(FeaturesConfig):
    """`low_rank_attention` with `count` `PerformerFeatures`.

    >>> PerformerConfig(count=64)
    PerformerConfig(count=64, seed=0)
    """

    drawn: ClassVar[tuple[str, ...]] = ("count",)
    count: int = 256
    seed: int = 0

    def features(self, head_dim: int, seed: int) -> PerformerFeatures:
        """See `FeaturesConfig`."""
        return PerformerFeatures(head_dim, self.count, seed)


MECHANISM = Mechanism(
    low_rank_attention, performer_weights, PerformerConfig, lambda dim: {"features": PerformerFeatures(dim, count=7)}
)
