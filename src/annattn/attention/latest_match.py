"""Latest-match attention: beyond the paper, and a mechanism of its own, since it does not meet its Definition."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annattn.attention.anna import hash_together
from annattn.attention.inputs import accumulator, check_hasher, check_inputs, grouped, ungrouped
from annattn.kernels import latest
from annattn.lsh import Hasher

__all__ = ["latest_match_attention"]


def latest_match_attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    hasher: Hasher,
    *,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Causal: each bucket holds its newest value, and a query gets the mean over the tables in which it hits one.

    Keys, masks and non-finite rows are treated as by `anna_attention`; a query that hits nothing gets zeros.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=4, hashes=8, seed=0)
    >>> x = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]]])
    >>> aa.latest_match_attention(x, x, torch.arange(4.0).reshape(1, 1, 4, 1), hasher).flatten()
    tensor([0., 1., 2., 3.])
    """
    check_inputs(query, key, value, key_mask)
    check_hasher(hasher, query)
    query_codes, key_codes, poisoned = hash_together(hasher, query, key, key_mask, is_causal=True)
    heads = key.shape[1]
    newest = latest(grouped(query_codes, heads), grouped(key_codes, heads), hasher.buckets or 0)
    values = grouped(value.to(accumulator(value.dtype)), heads)[:, 0]
    total = values.new_zeros(*newest.shape[:3], values.shape[-1])
    if values.shape[1]:
        for position in newest.unbind(-1):
            at = position.clamp(min=0).flatten(1)[..., None].expand(-1, -1, values.shape[-1])
            found = values.gather(1, at).reshape(total.shape)
            total = total + torch.where((position >= 0)[..., None], found, 0)
    hits = (newest >= 0).sum(-1, keepdim=True)
    out = ungrouped(total / hits.clamp(min=1), query)
    return out.masked_fill(poisoned, torch.nan).to(value.dtype)
