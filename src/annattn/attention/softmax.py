"""Softmax attention with unit-norm queries and keys: the surrogate the paper trains, "Experiments"."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from annattn.attention import reference
from annattn.attention.inputs import accumulator, attention_call, check_inputs, nothing
from annattn.attention.mechanism import Attend, AttentionConfig, Mechanism
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.checks import require_number
from annattn.errors import InputError
from annattn.lsh.rows import unit_rows

__all__ = ["MECHANISM", "SoftmaxConfig", "fused_softmax", "softmax_attention", "softmax_weights"]

_BELOW_ONE = 1 - 2**-53
_FEW_KEYS = 16  # float32 numbers in the largest register of a CPU


@attention_call
def softmax_attention(
    query: Queries, key: Keys, value: Values, *,
    beta: float,
    is_causal: bool = False, key_mask: KeyMask | None = None, dropout: float = 0.0,
) -> Outputs:  # fmt: skip
    """softmax(β · Q Kᵀ) V with every query and key scaled to length 1; zero where a query sees no key.

    Quadratic in n; computed by torch's fused scaled_dot_product_attention. `dropout` is the share of weights set to
    zero at random, by torch's generator, while the others grow by 1/(1 - dropout): for training only.

    >>> import annattn as aa
    >>> x = torch.eye(2).reshape(1, 1, 2, 2)
    >>> aa.softmax_attention(x, 5 * x, x, beta=100.0).round().squeeze()
    tensor([[1., 0.],
            [0., 1.]])
    """
    check_inputs(query, key, value, key_mask, is_causal=is_causal)
    largest = torch.finfo(accumulator(value.dtype)).max
    require_number("beta", beta, f"a number from {-largest:.2g} to {largest:.2g}", low=-largest, high=largest)
    require_number("dropout", dropout, "at least 0 and below 1", low=0, high=_BELOW_ONE)
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dtype != value.dtype:
            raise InputError(name, given=tensor.dtype, expected=f"the value's {value.dtype}")
    queries, keys = query.shape[2], key.shape[2]
    if keys == 0 or queries == 0:
        return nothing(query, key, value)
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
    out = fused_softmax(query, key, value, seen, dropout=dropout, is_causal=is_causal and seen is None, scale=beta)
    if seen is None:
        return out
    return out.masked_fill(~seen.any(-1, keepdim=True), 0)


def fused_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor | None = None,
    *,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Torch's scaled_dot_product_attention, where its fused kernel can be relied on; matrix products elsewhere.

    On CPUs the kernel has no forward-mode derivative, and over fewer keys than a register holds, NaN is no key to it.

    >>> x = torch.full((1, 1, 1, 8), torch.nan)
    >>> bool(fused_softmax(x, x, torch.ones(1, 1, 1, 8)).isnan().all())
    True
    """
    options = {"dropout_p": dropout, "is_causal": is_causal, "scale": scale}
    options["enable_gqa"] = query.shape[1] != key.shape[1]  # with no heads, torch would divide by their number
    eager = query.device.type == "cpu" and not torch.compiler.is_compiling()
    if eager and (key.shape[2] < _FEW_KEYS or forward_ad._current_level >= 0):
        rows = [x.to(accumulator(x.dtype)) for x in (query, key, value)]
        shift = None if seen is None else rows[0].new_zeros(seen.shape).masked_fill(~seen, -torch.inf)
        return torch.ops.aten._scaled_dot_product_attention_math(*rows, shift, **options)[0].to(value.dtype)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, seen, **options)


def softmax_weights(query: Tensor, key: Tensor, seen: Tensor, *, beta: float) -> Tensor:
    """softmax(β ⟨q_i, k_j⟩) with queries and keys scaled to unit norm.

    >>> softmax_weights(torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]]), reference.visible(1, 2), beta=1.0)
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    query, key = query.double(), key.double()
    unit = [x / x.norm(dim=1, keepdim=True).clamp(min=1e-12) for x in (query, key)]
    return reference.normalised(torch.exp(beta * (unit[0] @ unit[1].T)) * seen)


@dataclass(frozen=True)
class SoftmaxConfig(AttentionConfig):
    """The paper's trainable surrogate: softmax(β ⟨q, k⟩) of unit vectors.

    `dropout` of the weights takes place in training alone, by torch's generator, as that of torch's own modules does.

    >>> SoftmaxConfig(beta=0.1)
    SoftmaxConfig(beta=0.1, dropout=0.0)
    """

    beta: float = 1.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        empty = torch.zeros(1, 1, 0, 1)
        softmax_attention(empty, empty, empty, beta=self.beta, dropout=self.dropout)

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        return _Softmax(self)


class _Softmax(torch.nn.Module):
    """A module, so that it knows whether it is being trained."""

    def __init__(self, config: SoftmaxConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
        dropout = self.config.dropout if self.training else 0.0
        q, k = q.to(v.dtype), k.to(v.dtype)
        return softmax_attention(q, k, v, beta=self.config.beta, is_causal=is_causal, key_mask=mask, dropout=dropout)


MECHANISM = Mechanism(softmax_attention, softmax_weights, SoftmaxConfig, lambda dim: {"beta": 1.0})
