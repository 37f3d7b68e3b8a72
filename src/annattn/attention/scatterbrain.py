"""Scatterbrain: exact softmax weights on a sparse support, here a window, and Performer's estimate everywhere else."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from annattn.attention import reference
from annattn.attention.band import band_softmax
from annattn.attention.inputs import accumulator, attention_call, check_inputs
from annattn.attention.low_rank import low_rank_attention
from annattn.attention.mechanism import Attend, Mechanism, SeededConfig
from annattn.attention.partial_softmax import Partial
from annattn.attention.performer import PerformerFeatures
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.attention.sliding_window import inside_window
from annattn.checks import require_count

__all__ = ["MECHANISM", "ScatterbrainConfig", "scatterbrain_attention", "scatterbrain_weights"]


@attention_call
def scatterbrain_attention(
    query: Queries, key: Keys, value: Values, *,
    features: PerformerFeatures, window: int = 64,
    is_causal: bool = False, key_mask: KeyMask | None = None,
) -> Outputs:  # fmt: skip
    """Weights exp(⟨q, k⟩/√d) fewer than `window` places away, and ⟨φ(q), φ(k)⟩, which estimates it, elsewhere.

    The original adds the estimate over all keys and subtracts it on the support. Here far keys are summed apart, those
    before the window and those after it, so nothing is subtracted and no weight is negative.

    >>> import annattn as aa
    >>> q, k, v = torch.randn(3, 1, 1, 10, 4)
    >>> features = aa.attention.PerformerFeatures(4, count=8)
    >>> out = aa.attention.scatterbrain_attention(q, k, v, features=features, window=10)
    >>> torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    """
    check_inputs(query, key, value, key_mask, is_causal=is_causal)
    window = require_count("window", window)
    wide = torch.promote_types(accumulator(query.dtype), accumulator(value.dtype))
    if key_mask is not None:
        key = key.masked_fill(~key_mask[:, None, :, None], 0)
    rows = query.to(wide), key.to(wide), value.to(wide)
    found = band_softmax(*rows, window=window, is_causal=is_causal, key_mask=key_mask)
    n, m = query.shape[2], key.shape[2]
    keys = features.key(rows[1])
    values = torch.cat([rows[2], rows[2].new_ones(*rows[2].shape[:3], 1)], dim=-1)
    if key_mask is not None:
        keys, values = (x.masked_fill(~key_mask[:, None, :, None], 0) for x in (keys, values))
    queries = features.query(rows[0])
    scale = features.largest_power(rows[0]) + features.shift - math.log(features.count)
    # A causal sum over all but the last `window` keys ends where the window begins.
    early = (x[:, :, : max(m - window, 0)] for x in (keys, values))
    before = low_rank_attention(queries, *early, is_causal=True)
    found = found.join(_part(before, scale))
    if not is_causal:
        # The same from the other end, where the first query is aligned with key m - n.
        count = max(n - window, 0)
        late = (pad(x.flip(2), (0, 0, 0, max(count - m, 0)))[:, :, :count] for x in (keys, values))
        after = low_rank_attention(queries.flip(2), *late, is_causal=True).flip(2)
        found = found.join(_part(after, scale))
    return found.mean.to(value.dtype)


def _part(summed: Tensor, scale: Tensor) -> Partial:
    """Sums of values and of weights, both to be multiplied by e^scale."""
    total = summed[..., -1]
    safe = torch.where(total > 0, total, 1)
    log_total = torch.where(total > 0, safe.log() + scale.squeeze(-1), -torch.inf)
    return Partial(summed[..., :-1] / safe[..., None], log_total)


def scatterbrain_weights(
    query: Tensor, key: Tensor, seen: Tensor, *, features: PerformerFeatures, window: int
) -> Tensor:
    """exp(s_ij) inside the window and (1/m) Σ_t φ_t(q_i) φ_t(k_j) outside of it, normalised.

    >>> x = torch.zeros(2, 4)
    >>> scatterbrain_weights(x, x, torch.ones(2, 2), features=PerformerFeatures(4, 8, epsilon=0), window=1)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    near = inside_window(len(query), len(key), window)
    scores = torch.exp(query.double() @ key.double().T / math.sqrt(max(query.shape[1], 1)))
    for i, q in enumerate(query.double() / features.dim**0.25):
        of_query = torch.exp(features.directions @ q - q @ q / 2)
        of_query = of_query + features.epsilon * of_query.max()
        for j, k in enumerate(key.double() / features.dim**0.25):
            if not near[i, j]:
                of_key = torch.exp(features.directions @ k - k @ k / 2) + features.epsilon
                scores[i, j] = of_query @ of_key / features.count
    return reference.normalised(torch.where(seen.bool(), scores, 0.0))


@dataclass(frozen=True)
class ScatterbrainConfig(SeededConfig):
    """`scatterbrain_attention` with `count` features.

    >>> ScatterbrainConfig(window=32)
    ScatterbrainConfig(count=32, window=32, seed=0)
    """

    drawn: ClassVar[tuple[str, ...]] = ("count",)
    count: int = 32
    window: int = 64
    seed: int = 0

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        features = PerformerFeatures(head_dim, self.count, self.layer_seed(layer, seed))
        return lambda q, k, v, is_causal, mask: scatterbrain_attention(
            q, k, v, features=features, window=self.window, is_causal=is_causal, key_mask=mask
        )


MECHANISM = Mechanism(
    scatterbrain_attention,
    scatterbrain_weights,
    ScatterbrainConfig,
    lambda dim: {"features": PerformerFeatures(dim, count=7), "window": 2},
)
