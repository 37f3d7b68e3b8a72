"""PolySketchFormer: the polynomial kernel ⟨q, k⟩⁴ by random sketches of degree 2, squared so that none is negative."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from annattn.attention.features import FeatureMap
from annattn.attention.low_rank import FeaturesConfig, low_rank_attention
from annattn.attention.mechanism import Mechanism
from annattn.checks import keep_counts
from annattn.seeds import check_seed

__all__ = ["MECHANISM", "PolySketchConfig", "PolySketchFeatures", "polysketch_weights"]


@dataclass(frozen=True)
class PolySketchFeatures(FeatureMap):
    """p(x) ⊗ p(x) with p(x) = (x'S₁ ∘ x'S₂)/√r and x' = LayerNorm(x)/d^¼, so that w_ij = ⟨p(q_i), p(k_j)⟩².

    S₁ and S₂ are Gaussian d × r matrices, for which E⟨p(q), p(k)⟩ = ⟨q', k'⟩². The denominator is 1 + Σ_j w_ij. The
    paper of this mechanism also learns sketches, as small networks; these here are random.

    >>> PolySketchFeatures(dim=4, rank=3).key(torch.ones(1, 4)).shape
    torch.Size([1, 9])
    """

    offset: ClassVar[float] = 1.0
    dim: int
    rank: int = 32
    seed: int = 0
    sketches: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        keep_counts(self, "dim", "rank")
        generator = torch.Generator().manual_seed(check_seed(self.seed))
        drawn = torch.randn(2, self.dim, self.rank, generator=generator, dtype=torch.float64, device="cpu")
        object.__setattr__(self, "sketches", drawn)

    def query(self, x: Tensor) -> Tensor:
        """See `FeatureMap`."""
        x = layer_norm(x, (self.dim,)) / self.dim**0.25
        left, right = self.sketches.to(x)
        p = (x @ left) * (x @ right) / self.rank**0.5
        return (p[..., :, None] * p[..., None, :]).flatten(-2)

    def key(self, x: Tensor) -> Tensor:
        """See `FeatureMap`."""
        return self.query(x)


def polysketch_weights(query: Tensor, key: Tensor, seen: Tensor, *, features: PolySketchFeatures) -> Tensor:
    """w_ij / (1 + Σ_j' w_ij'), pair by pair.

    >>> x = torch.tensor([[1.0, 1.0]])  # which LayerNorm makes zero
    >>> polysketch_weights(x, x, torch.ones(1, 1), features=PolySketchFeatures(2, rank=3))
    tensor([[0.]], dtype=torch.float64)
    """

    def sketch(x: Tensor) -> Tensor:
        x = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() / features.dim**0.25
        return (features.sketches[0].T @ x) * (features.sketches[1].T @ x) / features.rank**0.5

    scores = torch.zeros(len(query), len(key), dtype=torch.float64)
    for i, q in enumerate(query.double()):
        for j, k in enumerate(key.double()):
            scores[i, j] = (sketch(q) @ sketch(k)) ** 2
    scores = torch.where(seen.bool(), scores, 0.0)
    return scores / (1 + scores.sum(1, keepdim=True))


@dataclass(frozen=True)
class PolySketchConfig(FeaturesConfig):
    """`low_rank_attention` with `PolySketchFeatures` of rank r = `rank`; there are r² features.

    >>> PolySketchConfig(rank=16)
    PolySketchConfig(rank=16, seed=0)
    """

    drawn: ClassVar[tuple[str, ...]] = ("rank",)
    rank: int = 32
    seed: int = 0

    def features(self, head_dim: int, seed: int) -> PolySketchFeatures:
        """See `FeaturesConfig`."""
        return PolySketchFeatures(head_dim, self.rank, seed)


MECHANISM = Mechanism(
    low_rank_attention, polysketch_weights, PolySketchConfig, lambda dim: {"features": PolySketchFeatures(dim, rank=4)}
)
