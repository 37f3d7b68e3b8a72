"""Softmax over a sliding window: what most efficient mechanisms are combined with, on its own."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.attention import reference
from annattn.attention.band import band_softmax
from annattn.attention.inputs import attention_call, check_inputs
from annattn.attention.mechanism import Attend, AttentionConfig, Mechanism
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.checks import require_count

__all__ = [
    "MECHANISM",
    "SlidingWindowConfig",
    "inside_window",
    "sliding_window_attention",
    "sliding_window_weights",
]


@attention_call
def sliding_window_attention(
    query: Queries, key: Keys, value: Values, *, window: int, is_causal: bool = False, key_mask: KeyMask | None = None
) -> Outputs:
    """Softmax of ⟨q, k⟩/√d over the keys fewer than `window` places away; zero where a query sees none.

    >>> import annattn as aa
    >>> x = torch.zeros(1, 1, 3, 4)
    >>> value = torch.tensor([[[[1.0], [3.0], [7.0]]]])
    >>> aa.attention.sliding_window_attention(x, x, value, window=2, is_causal=True).flatten()
    tensor([1., 2., 5.])
    """
    check_inputs(query, key, value, key_mask, is_causal=is_causal)
    window = require_count("window", window)
    found = band_softmax(query, key, value, window=window, is_causal=is_causal, key_mask=key_mask)
    return found.mean.to(value.dtype)


def inside_window(n: int, m: int, window: int) -> Tensor:
    """Which keys are fewer than `window` places away from which queries, the last of both aligned.

    >>> inside_window(1, 3, 2)
    tensor([[False,  True,  True]])
    """
    place = torch.arange(n)[:, None] + m - n
    return (place - torch.arange(m)).abs() < window


def sliding_window_weights(query: Tensor, key: Tensor, seen: Tensor, *, window: int) -> Tensor:
    """exp(s_ij) inside the window, normalised.

    >>> x = torch.zeros(2, 4)
    >>> sliding_window_weights(x, x, torch.ones(2, 2), window=1)
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    near = seen.bool() & inside_window(len(query), len(key), window)
    scores = torch.exp(query.double() @ key.double().T / math.sqrt(max(query.shape[1], 1)))
    return reference.normalised(torch.where(near, scores, 0.0))


@dataclass(frozen=True)
class SlidingWindowConfig(AttentionConfig):
    """`sliding_window_attention`.

    >>> SlidingWindowConfig(window=32)
    SlidingWindowConfig(window=32)
    """

    window: int = 64

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        return lambda q, k, v, is_causal, mask: sliding_window_attention(
            q, k, v, window=self.window, is_causal=is_causal, key_mask=mask
        )


MECHANISM = Mechanism(sliding_window_attention, sliding_window_weights, SlidingWindowConfig, lambda dim: {"window": 3})
