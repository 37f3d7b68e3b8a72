"""Low-rank attention: the paper's Definition of attention by feature maps Q', K' of rank r ≪ N."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annattn.attention.inputs import accumulator, check_inputs, grouped, ungrouped

__all__ = ["low_rank_attention"]

_BLOCK = 128  # causal: pairs inside a block are multiplied out, earlier ones come from the running r × m matrix


def low_rank_attention(
    query_features: Float[Tensor, "batch heads queries rank"],
    key_features: Float[Tensor, "batch key_heads keys rank"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    *,
    is_causal: bool = False,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Q'(X) (K'(X)ᵀ V(X)), the r × m matrix in parentheses first: linear in n, and nothing is normalised.

    >>> import annattn as aa
    >>> ones = torch.ones(1, 1, 3, 1)
    >>> aa.low_rank_attention(ones, ones, torch.arange(3.0).reshape(1, 1, 3, 1), is_causal=True).flatten()
    tensor([0., 1., 3.])
    """
    check_inputs(query_features, key_features, value, key_mask)
    if key_mask is not None:
        hidden = ~key_mask[:, None, :, None]
        key_features, value = key_features.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
    dtype = torch.promote_types(accumulator(query_features.dtype), accumulator(value.dtype))
    heads = key_features.shape[1]
    query, key, values = (grouped(x.to(dtype), heads) for x in (query_features, key_features, value))
    out = _causal(query, key, values) if is_causal else query @ (key.mT @ values)
    return ungrouped(out, query_features).to(value.dtype)


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    queries, keys = query.shape[2], key.shape[2]
    offset = keys - queries
    state = key.mT[..., :0] @ value[..., :0, :]
    parts, filled = [query.new_zeros(*query.shape[:2], 0, value.shape[-1])], 0
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
