"""Latest-match attention: beyond the paper, and a mechanism of its own, since it does not meet its Definition."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annattn.attention.anna import Gradient, bucket_hint, hash_inputs, wanted_slope
from annattn.attention.inputs import accumulator, check_hasher, check_inputs
from annattn.kernels import latest, latest_mean, spoiled
from annattn.lsh import Hasher

__all__ = ["latest_match_attention"]


def latest_match_attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    hasher: Hasher,
    *,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    gradient: Gradient = "linear",
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Causal: each bucket holds its newest value, and a query gets the mean over the tables in which it hits one.

    Keys, masks, gradients and non-finite rows are treated as by `anna_attention`; a query that hits nothing gets zeros.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=4, hashes=8, seed=0)
    >>> x = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]]])
    >>> aa.latest_match_attention(x, x, torch.arange(4.0).reshape(1, 1, 4, 1), hasher).flatten()
    tensor([0., 1., 2., 3.])
    """
    check_inputs(query, key, value, key_mask)
    check_hasher(hasher, query)
    query_codes, key_codes = hash_inputs(hasher, query, key, key_mask)
    newest = latest(query_codes, key_codes, bucket_hint(hasher))
    slope = wanted_slope(hasher, gradient, query, key)
    out = latest_mean(query, key, value.to(accumulator(value.dtype)), newest, slope)
    return out.masked_fill(spoiled(query_codes, key_codes, 1)[..., None], torch.nan).to(value.dtype)
