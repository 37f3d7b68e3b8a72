"""Exact-Match Attention: Definition "EM Attention", ANNA with r = 0 and c → ∞."""

from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from annattn.attention.inputs import accumulator, check_inputs
from annattn.errors import InputError
from annattn.kernels import IGNORED, average, equal_rows

__all__ = ["exact_match_attention"]


def exact_match_attention(
    query: Shaped[Tensor, "batch heads queries dim"],
    key: Shaped[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    *,
    is_causal: bool = False,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """The mean of the values whose keys equal the query, zero where none does.

    Queries and keys may be of any real dtype, integers and bool included, and are compared exactly: −0.0 equals 0.0,
    infinity equals infinity, NaN equals nothing.

    >>> import annattn as aa
    >>> x = torch.tensor([3, 1, 3]).reshape(1, 1, 3, 1)
    >>> aa.exact_match_attention(x, x, torch.tensor([2.0, 5.0, 4.0]).reshape(1, 1, 3, 1)).flatten()
    tensor([3., 5., 3.])
    """
    check_inputs(query, key, value, key_mask)
    if query.dtype != key.dtype:
        raise InputError("key", given=key.dtype, expected=f"the query's {query.dtype}", hint="cast one of them")
    if query.shape[-1] == 0:  # rows without coordinates are all equal
        query, key = query.new_zeros(*query.shape[:3], 1), key.new_zeros(*key.shape[:3], 1)
    query_codes, key_codes = equal_rows(query, key)
    if key_mask is not None:
        key_codes = key_codes.masked_fill(~key_mask[:, None, :, None], IGNORED)
    out, _ = average(query_codes, key_codes, value.to(accumulator(value.dtype)), int(is_causal), 0, True)
    return out.to(value.dtype)
