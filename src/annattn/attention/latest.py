"""The rule of latest match over all pairs, in expectation or sampled: what is trained in its place. Quadratic in n."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from annattn.attention import reference
from annattn.attention.inputs import attention_call
from annattn.attention.latest_match import latest_match_weights
from annattn.attention.mechanism import Attend, Causal, ExpectedConfig, HashedConfig, Mechanism, angular
from annattn.attention.pairs import expected_pairs, sampled_pairs, with_noise
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.lsh import Hasher, HashFamily

__all__ = [
    "EXPECTED", "SAMPLED", "ExpectedLatestConfig", "SampledLatestConfig",
    "expected_latest_attention", "expected_latest_weights", "sampled_latest_attention",
]  # fmt: skip


@attention_call
def expected_latest_attention(
    query: Queries, key: Keys, value: Values, *, family: HashFamily, hashes: int, key_mask: KeyMask | None = None
) -> Outputs:
    """Σ_j p_ij · Π_{j' > j} (1 − p_ij') · v_j: the newest value of one table's bucket, on average over its functions.

    The product is the chance that no later key meets the query, were keys to meet it independently; keys that equal one
    another do not, so this is the average of `latest_match_attention` for one table only when far keys are unlike each
    other. What is missing to 1 is the chance of an empty bucket, and gives zeros. Known elsewhere as stick-breaking.

    >>> import annattn as aa
    >>> x = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    >>> v = torch.tensor([[[[1.0], [2.0]]]])
    >>> aa.expected_latest_attention(x, x, v, family=aa.lsh.Hyperplane(2), hashes=2).flatten().round(decimals=3)
    tensor([1., 2.])
    """
    pairs = expected_pairs(query, key, value, family, hashes, True, key_mask)
    return pairs.read(latest_chances(pairs.chances))


def latest_chances(meets: Float[Tensor, "... queries keys"]) -> Float[Tensor, "... queries keys"]:
    """The chance that a key is met and no later one is, from the chances of being met.

    >>> latest_chances(torch.tensor([[0.5, 0.5, 0.0]]))
    tensor([[0.2500, 0.5000, 0.0000]])
    """
    # Kept off 1, so that the logarithm and its derivative stay finite.
    misses = torch.log1p(-meets.clamp(max=1 - torch.finfo(meets.dtype).eps))
    later_misses = misses.flip(-1).cumsum(-1).flip(-1) - misses
    return meets * later_misses.exp()


def expected_latest_weights(query: Tensor, key: Tensor, seen: Tensor, *, family: HashFamily, hashes: int) -> Tensor:
    """Pr[k_j meets q_i and no later key seen does], each key with its own independent chance.

    >>> import annattn as aa
    >>> x = torch.eye(2)
    >>> expected_latest_weights(x, x, reference.visible(2, 2), family=aa.lsh.Hyperplane(2), hashes=1)
    tensor([[0.5000, 0.5000],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    meets = reference.collision_probabilities(query, key, family, hashes) * seen
    weights = torch.zeros_like(meets)
    for i in range(len(query)):
        none_later = 1.0
        for j in reversed(range(len(key))):
            weights[i, j] = meets[i, j] * none_later
            none_later *= 1 - meets[i, j].item()
    return weights


@dataclass(frozen=True)
class ExpectedLatestConfig(ExpectedConfig):
    """`expected_latest_attention`: what `LatestMatchConfig` gives on average.

    >>> ExpectedLatestConfig(hashes=4).causal
    'always'
    """

    causal: ClassVar[Causal] = "always"

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        family = angular(self.family, head_dim)
        return lambda q, k, v, is_causal, mask: expected_latest_attention(
            q, k, v, family=family, hashes=self.hashes, key_mask=mask
        )


@attention_call
def sampled_latest_attention(
    query: Queries, key: Keys, value: Values, hasher: Hasher, *, noise: float = 1.0, key_mask: KeyMask | None = None
) -> Outputs:
    """`latest_match_attention` at noise 1, `expected_latest_attention` at 0, and its gradient at both.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=4, hashes=8, seed=0)
    >>> x = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]]])
    >>> aa.sampled_latest_attention(x, x, torch.arange(4.0).reshape(1, 1, 4, 1), hasher).flatten()
    tensor([0., 1., 2., 3.])
    """
    pairs = sampled_pairs(query, key, value, hasher, noise, True, key_mask)
    hits = pairs.newest_hits()
    sampled = hits / hits.sum(-1, keepdim=True).clamp(min=1)
    return pairs.read(with_noise(latest_chances(pairs.expected.chances), sampled, noise))


@dataclass(frozen=True)
class SampledLatestConfig(HashedConfig):
    """`sampled_latest_attention`, to train what `LatestMatchConfig` will run.

    >>> SampledLatestConfig().causal
    'always'
    """

    noise: float = 1.0
    causal: ClassVar[Causal] = "always"

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        hasher, noise = self.hasher(head_dim, layer, seed), self.noise
        return lambda q, k, v, is_causal, mask: sampled_latest_attention(q, k, v, hasher, noise=noise, key_mask=mask)


EXPECTED = Mechanism(
    expected_latest_attention, expected_latest_weights, ExpectedLatestConfig, ExpectedConfig.options, by_angle=True
)
SAMPLED = Mechanism(sampled_latest_attention, latest_match_weights, SampledLatestConfig, HashedConfig.options)
