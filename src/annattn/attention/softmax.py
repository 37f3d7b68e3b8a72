"""Softmax attention with unit-norm queries and keys: the surrogate the paper trains, "Experiments"."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annattn.attention.inputs import check_inputs, unit_rows
from annattn.errors import InputError

__all__ = ["softmax_attention"]


def softmax_attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    *,
    beta: float,
    is_causal: bool = False,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """softmax(β · Q Kᵀ) V with every query and key scaled to length 1; zero where a query sees no key.

    Quadratic in n; computed by torch's fused scaled_dot_product_attention. `dropout` is the share of weights set to
    zero at random, by torch's generator, while the others grow by 1/(1 - dropout): for training only.

    >>> import annattn as aa
    >>> x = torch.eye(2).reshape(1, 1, 2, 2)
    >>> aa.softmax_attention(x, 5 * x, x, beta=100.0).round().squeeze()
    tensor([[1., 0.],
            [0., 1.]])
    """
    check_inputs(query, key, value, key_mask)
    if not math.isfinite(beta):
        raise InputError("beta", given=beta, expected="a finite number")
    if not 0 <= dropout < 1:
        raise InputError("dropout", given=dropout, expected="at least 0 and below 1")
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dtype != value.dtype:
            raise InputError(name, given=tensor.dtype, expected=f"the value's {value.dtype}")
    queries, keys = query.shape[2], key.shape[2]
    if keys == 0 or queries == 0:
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    query, key = unit_rows(query), unit_rows(key)
    seen = None
    if key_mask is not None:
        # A masked key must not matter even when it is NaN, which a weight of zero alone would not ensure.
        hidden = ~key_mask[:, None, :, None]
        key, value = key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
        seen = key_mask[:, None, None, :]
    if is_causal and (seen is not None or queries != keys):
        causal = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        seen = causal if seen is None else seen & causal
    if beta <= 0:
        # With such a scale and a causal mask torch's fused kernel gives NaN.
        query, beta = beta * query, 1.0
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=seen,
        dropout_p=dropout,
        is_causal=is_causal and seen is None,
        scale=beta,
        enable_gqa=True,
    )
    if seen is None:
        return out
    return out.masked_fill(~seen.any(-1, keepdim=True), 0)
