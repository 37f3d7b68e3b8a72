"""The rule of ANNA over all pairs, in expectation or sampled: what is trained in its place. Quadratic in n."""

from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.attention import reference
from annattn.attention.anna import anna_weights
from annattn.attention.inputs import attention_call
from annattn.attention.mechanism import Attend, ExpectedConfig, HashedConfig, Mechanism, angular
from annattn.attention.pairs import ExpectedPairs, SampledPairs, expected_pairs, sampled_pairs, with_noise
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.lsh import Hasher, HashFamily

__all__ = [
    "EXPECTED",
    "SAMPLED",
    "ExpectedCollisionConfig",
    "SampledCollisionConfig",
    "expected_collision_attention",
    "expected_collision_weights",
    "expected_mean",
    "sampled_collision_attention",
    "sampled_counts",
]


@attention_call
def expected_collision_attention(
    query: Queries, key: Keys, value: Values, *,
    family: HashFamily, hashes: int,
    is_causal: bool = False, key_mask: KeyMask | None = None,
) -> Outputs:  # fmt: skip
    """Σ_j p_ij v_j / Σ_j p_ij with p_ij = p(cosine of q_i and k_j)^z: `anna_attention` with infinitely many tables.

    By the law of large numbers the counts c_ij of ℓ tables, over ℓ, tend to p_ij. It is softmax attention with the
    logits z·log p, so it trains as softmax attention does.

    >>> import annattn as aa
    >>> x = torch.eye(2).reshape(1, 1, 2, 2)
    >>> aa.expected_collision_attention(x, x, x, family=aa.lsh.Hyperplane(2), hashes=2).squeeze()
    tensor([[0.8000, 0.2000],
            [0.2000, 0.8000]])
    """
    return expected_mean(expected_pairs(query, key, value, family, hashes, is_causal, key_mask))


def expected_mean(pairs: ExpectedPairs) -> Tensor:
    """Σ_j p_ij v_j / Σ_j p_ij over the keys seen."""
    # The lowest number, not -inf, whose derivative would be NaN in a row that sees nothing.
    weights = pairs.scores.masked_fill(~pairs.seen, torch.finfo(pairs.scores.dtype).min).softmax(-1)
    return pairs.read(weights * pairs.seen)


def expected_collision_weights(query: Tensor, key: Tensor, seen: Tensor, *, family: HashFamily, hashes: int) -> Tensor:
    """Pr[g_u(q_i) = g_u(k_j)] = p^z at the distance of the unit vectors, over its sum over the keys seen.

    >>> import annattn as aa
    >>> x = torch.eye(2)
    >>> expected_collision_weights(x, x, reference.visible(2, 2), family=aa.lsh.Hyperplane(2), hashes=2)
    tensor([[0.8000, 0.2000],
            [0.2000, 0.8000]], dtype=torch.float64)
    """
    return reference.normalised(reference.collision_probabilities(query, key, family, hashes) * seen)


@dataclass(frozen=True)
class ExpectedCollisionConfig(ExpectedConfig):
    """`expected_collision_attention`: ANNA with infinitely many tables.

    >>> ExpectedCollisionConfig(hashes=4).hashes
    4
    """

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        family = angular(self.family, head_dim)
        return lambda q, k, v, is_causal, mask: expected_collision_attention(
            q, k, v, family=family, hashes=self.hashes, is_causal=is_causal, key_mask=mask
        )


@attention_call
def sampled_collision_attention(
    query: Queries, key: Keys, value: Values, hasher: Hasher, *,
    noise: float = 1.0,
    is_causal: bool = False, key_mask: KeyMask | None = None,
) -> Outputs:  # fmt: skip
    """Σ_j ĉ_ij v_j / max(1, Σ_j ĉ_ij) with ĉ = ℓp + noise·(c − ℓp): `anna_attention` at noise 1, its average at 0.

    The maximum is where an average differs from a quotient: a query that meets less than one key on average reads
    less than one value's worth, and so has a reason to meet more.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=4, hashes=2, seed=0)
    >>> x, v = torch.eye(2).reshape(1, 1, 2, 2), torch.tensor([[[[1.0], [0.0]]]])
    >>> aa.sampled_collision_attention(x, x, v, hasher, noise=0.0).flatten()
    tensor([0.8000, 0.2000])
    >>> torch.equal(aa.sampled_collision_attention(x, x, v, hasher), aa.anna_attention(x, x, v, hasher))
    True
    """
    pairs = sampled_pairs(query, key, value, hasher, noise, is_causal, key_mask)
    used = sampled_counts(pairs, hasher.tables, noise)
    return pairs.read(used, divisor=used.sum(-1, keepdim=True).clamp(min=1))


def sampled_counts(pairs: SampledPairs, tables: int, noise: float) -> Tensor:
    """ĉ = ℓp + noise·(c − ℓp) of every pair."""
    expected = tables * pairs.expected.chances
    return with_noise(expected, pairs.counts(), noise) if noise else expected


@dataclass(frozen=True)
class SampledCollisionConfig(HashedConfig):
    """`sampled_collision_attention`, to train what `AnnaConfig` will run: at noise 1 they give the same numbers.

    >>> SampledCollisionConfig(tables=4, noise=0.5).noise
    0.5
    """

    noise: float = 1.0

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        hasher, noise = self.hasher(head_dim, layer, seed), self.noise
        return lambda q, k, v, is_causal, mask: sampled_collision_attention(
            q, k, v, hasher, noise=noise, is_causal=is_causal, key_mask=mask
        )


EXPECTED = Mechanism(
    expected_collision_attention,
    expected_collision_weights,
    ExpectedCollisionConfig,
    ExpectedConfig.options,
    by_angle=True,
)
SAMPLED = Mechanism(sampled_collision_attention, anna_weights, SampledCollisionConfig, HashedConfig.options)
