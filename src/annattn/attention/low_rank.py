"""Low-rank attention: the paper's Definition of attention by feature maps Q', K' of rank r ≪ N."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from annattn.attention.features import FeatureMap
from annattn.attention.inputs import accumulator, attention_call, check_inputs, grouped, ungrouped
from annattn.attention.mechanism import Attend, AttentionConfig, Mechanism, SeededConfig
from annattn.attention.shapes import KeyMask, Outputs, Values

__all__ = ["MECHANISM", "FeaturesConfig", "LowRankConfig", "low_rank_attention", "low_rank_weights"]

_BLOCK = 128  # causal: pairs inside a block are multiplied out, earlier ones come from the running r × m matrix


@attention_call
def low_rank_attention(
    query_features: Float[Tensor, "batch heads queries rank"],
    key_features: Float[Tensor, "batch key_heads keys rank"],
    value: Values,
    *,
    features: FeatureMap | None = None,
    is_causal: bool = False,
    key_mask: KeyMask | None = None,
) -> Outputs:
    """Q'(X) (K'(X)ᵀ V(X)), the r × m matrix in parentheses first: linear in n, and nothing is normalised.

    With `features`, the first two arguments are queries and keys, Q' and K' are their features, and the output is
    divided by the sum of the weights: zero where a query sees no key.

    >>> import annattn as aa
    >>> ones = torch.ones(1, 1, 3, 1)
    >>> aa.low_rank_attention(ones, ones, torch.arange(3.0).reshape(1, 1, 3, 1), is_causal=True).flatten()
    tensor([0., 1., 3.])
    """
    check_inputs(query_features, key_features, value, key_mask, is_causal=is_causal)
    if features is not None:
        return _by_features(query_features, key_features, value, features, is_causal, key_mask)
    if key_mask is not None:
        hidden = ~key_mask[:, None, :, None]
        key_features, value = key_features.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
    dtype = torch.promote_types(accumulator(query_features.dtype), accumulator(value.dtype))
    heads = key_features.shape[1]
    query, key, values = (grouped(x.to(dtype), heads) for x in (query_features, key_features, value))
    out = _causal(query, key, values) if is_causal else query @ (key.mT @ values)
    return ungrouped(out, query_features).to(value.dtype)


def _by_features(
    query: Tensor, key: Tensor, value: Tensor, features: FeatureMap, is_causal: bool, key_mask: Tensor | None
) -> Tensor:
    if key_mask is not None:
        # Not the features alone: those of NaN would spoil the gradient.
        key = key.masked_fill(~key_mask[:, None, :, None], 0)
    wide = torch.promote_types(accumulator(query.dtype), accumulator(value.dtype))
    values = torch.cat([value.to(wide), value.new_ones(*value.shape[:3], 1, dtype=wide)], dim=-1)
    summed = low_rank_attention(
        features.query(query.to(wide)), features.key(key.to(wide)), values, is_causal=is_causal, key_mask=key_mask
    )
    total = summed[..., -1:] + features.offset
    return (summed[..., :-1] / torch.where(total == 0, 1, total)).to(value.dtype)


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    queries, keys = query.shape[2], key.shape[2]
    offset = keys - queries
    state = key.mT[..., :0] @ value[..., :0, :]
    parts, filled = [query[:, :, :0] @ state], 0
    for first in range(0, queries, _BLOCK):
        last = min(first + _BLOCK, queries)
        seen, end = (min(max(edge + offset, 0), keys) for edge in (first, last))
        state = state + key[..., filled:seen, :].mT @ value[..., filled:seen, :]
        filled = seen
        block = query[..., first:last, :]
        i, j = torch.arange(first, last, device=key.device)[:, None], torch.arange(seen, end, device=key.device)
        near = (block @ key[..., seen:end, :].mT) * (j <= i + offset)
        parts.append(block @ state + near @ value[..., seen:end, :])
    return torch.cat(parts, dim=2)


def low_rank_weights(query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
    """Q'(X) K'(X)ᵀ, which the Definition does not normalise.

    >>> low_rank_weights(torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]]), torch.ones(1, 2))
    tensor([[2., 3.]], dtype=torch.float64)
    """
    return query.double() @ key.double().T * seen


class FeaturesConfig(SeededConfig):
    """`low_rank_attention` with features that are drawn at random, for each layer anew."""

    @abstractmethod
    def features(self, head_dim: int, seed: int) -> FeatureMap:
        """The features of heads of this width."""

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        features = self.features(head_dim, self.layer_seed(layer, seed))
        return lambda q, k, v, is_causal, mask: low_rank_attention(
            q, k, v, features=features, is_causal=is_causal, key_mask=mask
        )


@dataclass(frozen=True)
class LowRankConfig(AttentionConfig):
    """`low_rank_attention` with the features elu(x) + 1 of queries and keys, divided by the sum of the weights.

    >>> LowRankConfig()
    LowRankConfig()
    """

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        return _linear_attention


def _linear_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
    query, key = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    summed = low_rank_attention(query, key, values, is_causal=is_causal, key_mask=mask)
    return summed[..., :-1] / summed[..., -1:].clamp(min=1e-6)


MECHANISM = Mechanism(low_rank_attention, low_rank_weights, LowRankConfig, lambda dim: {})
