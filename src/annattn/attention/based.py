"""Based: the Taylor series of exp to its second term, as a feature map."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from annattn.attention import reference
from annattn.attention.features import FeatureMap
from annattn.attention.low_rank import low_rank_attention
from annattn.attention.mechanism import Attend, Mechanism, SeededConfig

__all__ = ["MECHANISM", "BasedConfig", "BasedFeatures", "based_weights"]


@dataclass(frozen=True)
class BasedFeatures(FeatureMap):
    """[1, x/d^¼, vec(x xᵀ)/√(2d)], so that w_ij = 1 + s + s²/2 with s = ⟨q_i, k_j⟩/√d: at least ½.

    >>> BasedFeatures().query(torch.ones(1, 4)).shape
    torch.Size([1, 21])
    """

    def query(self, x: Tensor) -> Tensor:
        """See `FeatureMap`."""
        dim = max(x.shape[-1], 1)
        squares = (x[..., :, None] * x[..., None, :]).flatten(-2) / (2 * dim) ** 0.5
        return torch.cat([torch.ones_like(x[..., :1]), x / dim**0.25, squares], dim=-1)

    def key(self, x: Tensor) -> Tensor:
        """See `FeatureMap`."""
        return self.query(x)


def based_weights(query: Tensor, key: Tensor, seen: Tensor, *, features: BasedFeatures) -> Tensor:
    """w_ij ∝ 1 + s + s²/2 over the keys seen.

    >>> based_weights(torch.tensor([[2.0]]), torch.tensor([[1.0], [0.0]]), torch.ones(1, 2), features=BasedFeatures())
    tensor([[0.8333, 0.1667]], dtype=torch.float64)
    """
    scores = query.double() @ key.double().T / query.shape[1] ** 0.5
    return reference.normalised(torch.where(seen.bool(), 1 + scores + scores**2 / 2, 0.0))


@dataclass(frozen=True)
class BasedConfig(SeededConfig):
    """`low_rank_attention` with `BasedFeatures` of queries and keys of `feature_dim` numbers.

    Heads that are wider are first projected to that many by learned maps: there are 1 + d' + d'² features.

    >>> BasedConfig()
    BasedConfig(feature_dim=16, seed=0)
    """

    feature_dim: int = 16
    seed: int = 0

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        if head_dim <= self.feature_dim:
            return _attend
        return _Projected(head_dim, self.feature_dim, self.layer_seed(layer, seed))


class _Projected(nn.Module):
    def __init__(self, head_dim: int, feature_dim: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shape = feature_dim, head_dim
        self.query, self.key = (nn.Parameter(torch.randn(shape, generator=generator) / head_dim**0.5) for _ in range(2))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
        return _attend(q @ self.query.T, k @ self.key.T, v, is_causal, mask)


def _attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
    return low_rank_attention(q, k, v, features=BasedFeatures(), is_causal=is_causal, key_mask=mask)


MECHANISM = Mechanism(low_rank_attention, based_weights, BasedConfig, lambda dim: {"features": BasedFeatures()})
