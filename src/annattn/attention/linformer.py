"""Linformer: softmax attention over a few learned mixtures of the keys."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from annattn.attention.inputs import accumulator, attention_call, check_inputs, nothing
from annattn.attention.mechanism import Attend, Causal, Mechanism, SeededConfig
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.attention.softmax import fused_softmax
from annattn.errors import InputError

__all__ = ["MECHANISM", "LinformerConfig", "linformer_attention", "linformer_weights"]


@attention_call
def linformer_attention(
    query: Queries, key: Keys, value: Values, *,
    key_map: Float[Tensor, "mixtures length"], value_map: Float[Tensor, "mixtures length"],
    is_causal: bool = False, key_mask: KeyMask | None = None,
) -> Outputs:  # fmt: skip
    """softmax(Q (E K)ᵀ / √d) (F V) for learned E = `key_map` and F = `value_map`; of n keys, their first n columns.

    Every mixture reads all keys, so there is no causal form, and a causal call is refused. A masked key is left out of
    every mixture: its row of keys and of values counts as zero.

    >>> import annattn as aa
    >>> x, mean = torch.zeros(1, 1, 2, 4), torch.full((1, 2), 0.5)
    >>> value = torch.tensor([[[[1.0], [3.0]]]])
    >>> aa.attention.linformer_attention(x, x, value, key_map=mean, value_map=mean).flatten()
    tensor([2., 2.])
    """
    check_inputs(query, key, value, key_mask, is_causal=is_causal)
    if is_causal:
        raise InputError("is_causal", given=True, expected="False: each of Linformer's mixtures reads every key")
    if key_mask is not None:
        key, value = (x.masked_fill(~key_mask[:, None, :, None], 0) for x in (key, value))
    n, wide = key.shape[2], accumulator(value.dtype)
    for name, matrix in (("key_map", key_map), ("value_map", value_map)):
        if not isinstance(matrix, Tensor) or matrix.device != key.device:
            given = f"device {matrix.device}" if isinstance(matrix, Tensor) else type(matrix).__name__
            raise InputError(name, given=given, expected=f"a tensor on the key's device {key.device}")
        if matrix.ndim != 2 or matrix.shape[1] < n or matrix.shape[0] != key_map.shape[0]:
            raise InputError(
                name,
                given=f"shape {tuple(matrix.shape)}",
                expected=f"({key_map.shape[0]}, at least the {n} keys)",
                hint="Linformer has a largest length",
            )
    keys = key_map[:, :n].to(wide) @ key.to(wide)
    values = value_map[:, :n].to(wide) @ value.to(wide)
    if query.shape[1] == 0:
        return nothing(query, key, value)
    out = fused_softmax(query.to(wide), keys, values)
    return out.to(value.dtype)


def linformer_weights(query: Tensor, key: Tensor, seen: Tensor, *, key_map: Tensor, value_map: Tensor) -> Tensor:
    """softmax(q_i (E K)ᵀ / √d) F: over the keys seen: weights that may be negative and need not sum to 1.

    >>> mean = torch.full((1, 2), 0.5)
    >>> linformer_weights(torch.ones(1, 4), torch.ones(2, 4), torch.ones(1, 2), key_map=mean, value_map=mean)
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    n, live = len(key), seen.bool().any(0)
    mixed = key_map[:, :n][:, live].double() @ key[live].double()
    scores = torch.exp(query.double() @ mixed.T / math.sqrt(max(query.shape[1], 1)))
    return scores / scores.sum(1, keepdim=True) @ (value_map[:, :n].double() * live)


@dataclass(frozen=True)
class LinformerConfig(SeededConfig):
    """`linformer_attention` with `mixtures` learned mixtures, shared by all heads, of at most `length` keys.

    >>> LinformerConfig(length=512).largest_length
    512
    """

    causal: ClassVar[Causal] = "never"
    length: int = 512
    mixtures: int = 256
    seed: int = 0

    @property
    def largest_length(self) -> int:
        """The columns of the learned maps."""
        return self.length

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        return _Linformer(self.length, self.mixtures, self.layer_seed(layer, seed))


class _Linformer(nn.Module):
    def __init__(self, length: int, mixtures: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.key_map, self.value_map = (
            nn.Parameter(torch.randn(mixtures, length, generator=generator) / mixtures**0.5) for _ in range(2)
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
        return linformer_attention(q, k, v, key_map=self.key_map, value_map=self.value_map, key_mask=mask)


def _options(dim: int) -> dict[str, Tensor]:
    maps = torch.randn(2, 4, 160, generator=torch.Generator().manual_seed(dim), dtype=torch.float64, device="cpu")
    return {"key_map": maps[0], "value_map": maps[1]}


MECHANISM = Mechanism(linformer_attention, linformer_weights, LinformerConfig, _options)
