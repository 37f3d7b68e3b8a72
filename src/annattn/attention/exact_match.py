"""Exact-Match Attention: Definition "EM Attention", ANNA with r = 0 and c → ∞."""

from dataclasses import dataclass

from jaxtyping import Shaped
from torch import Tensor

from annattn.attention import reference
from annattn.attention.inputs import accumulator, attention_call, check_inputs
from annattn.attention.mechanism import Attend, AttentionConfig, Mechanism
from annattn.attention.shapes import KeyMask, Outputs, Values
from annattn.errors import InputError
from annattn.kernels import Order, bucket_mean, equal_rows
from annattn.lsh import IGNORED

__all__ = ["MECHANISM", "ExactMatchConfig", "exact_match_attention", "exact_match_weights"]


@attention_call
def exact_match_attention(
    query: Shaped[Tensor, "batch heads queries dim"],
    key: Shaped[Tensor, "batch key_heads keys dim"],
    value: Values,
    *,
    is_causal: bool = False,
    key_mask: KeyMask | None = None,
) -> Outputs:
    """The mean of the values whose keys equal the query, zero where none does.

    Queries and keys may be of any real dtype, integers and bool included, and are compared exactly: −0.0 equals 0.0,
    infinity equals infinity, NaN equals nothing.

    >>> import annattn as aa
    >>> x = torch.tensor([3, 1, 3]).reshape(1, 1, 3, 1)
    >>> aa.exact_match_attention(x, x, torch.tensor([2.0, 5.0, 4.0]).reshape(1, 1, 3, 1)).flatten()
    tensor([3., 5., 3.])
    """
    check_inputs(query, key, value, key_mask, is_causal=is_causal)
    if query.dtype != key.dtype:
        raise InputError("key", given=key.dtype, expected=f"the query's {query.dtype}", hint="cast one of them")
    if query.shape[-1] == 0:  # rows without coordinates are all equal
        query, key = query.new_zeros(*query.shape[:3], 1), key.new_zeros(*key.shape[:3], 1)
    query_codes, key_codes = equal_rows(query, key)
    if key_mask is not None:
        key_codes = key_codes.masked_fill(~key_mask[:, None, :, None], IGNORED)
    order = Order.CAUSAL if is_causal else Order.ALL
    out, _ = bucket_mean(query_codes, key_codes, value.to(accumulator(value.dtype)), order, 0, True)
    return out.to(value.dtype)


def exact_match_weights(query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
    """w_ij = 1/|𝒩(q_i)| where k_j = q_i.

    >>> exact_match_weights(torch.tensor([[1], [4]]), torch.tensor([[1], [2], [1]]), reference.visible(2, 3))
    tensor([[0.5000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    return reference.normalised((query[:, None] == key[None]).all(-1) * seen)


@dataclass(frozen=True)
class ExactMatchConfig(AttentionConfig):
    """`exact_match_attention`: queries and keys that are equal, bit for bit.

    >>> ExactMatchConfig()
    ExactMatchConfig()
    """

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        return lambda q, k, v, is_causal, mask: exact_match_attention(q, k, v, is_causal=is_causal, key_mask=mask)


MECHANISM = Mechanism(exact_match_attention, exact_match_weights, ExactMatchConfig, lambda dim: {})
