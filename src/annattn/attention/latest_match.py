"""Latest-match attention: beyond the paper, and a mechanism of its own, since it does not meet its Definition."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from annattn.attention import reference
from annattn.attention.inputs import accumulator, attention_call, check_hasher, check_inputs, hash_inputs
from annattn.attention.mechanism import Attend, Causal, Gradient, Mechanism, TrainableConfig
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.kernels import nan_where_unknown, newest, newest_attention
from annattn.lsh import Hasher

__all__ = ["MECHANISM", "LatestMatchConfig", "latest_match_attention", "latest_match_weights"]


@attention_call
def latest_match_attention(
    query: Queries, key: Keys, value: Values, hasher: Hasher, *,
    key_mask: KeyMask | None = None, gradient: Gradient = "linear",
) -> Outputs:  # fmt: skip
    """Causal: each bucket holds its newest value, and a query gets the mean over the tables in which it hits one.

    Keys, masks, gradients and non-finite rows are treated as by `anna_attention`; a query that hits nothing gets zeros.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=4, hashes=8, seed=0)
    >>> x = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]]])
    >>> aa.latest_match_attention(x, x, torch.arange(4.0).reshape(1, 1, 4, 1), hasher).flatten()
    tensor([0., 1., 2., 3.])
    """
    check_inputs(query, key, value, key_mask)
    check_hasher(hasher, key)
    query_codes, key_codes = hash_inputs(hasher, query, key, key_mask)
    positions = newest(query_codes, key_codes, hasher.dense_buckets)
    out = newest_attention(query, key, value.to(accumulator(value.dtype)), positions, hasher, gradient)
    return nan_where_unknown(out, query_codes, key_codes).to(value.dtype)


def latest_match_weights(query: Tensor, key: Tensor, seen: Tensor, *, hasher: Hasher) -> Tensor:
    """In every table all weight on the last seen key of the query's bucket; the mean over the tables with one.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=2, hashes=1)
    >>> query, key = torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]])
    >>> latest_match_weights(query, key, reference.visible(1, 2), hasher=hasher)
    tensor([[0., 1.]], dtype=torch.float64)
    """
    g_query, g_key = reference.hash_tuples(query, hasher), reference.hash_tuples(key, hasher)
    hits = torch.zeros(len(query), len(key), dtype=torch.int64)
    for i in range(len(query)):
        for u in range(hasher.tables):
            met = [j for j in range(len(key)) if seen[i, j] and g_query[i][u] == g_key[j][u]]
            if met:
                hits[i, met[-1]] += 1
    return reference.normalised(hits)


@dataclass(frozen=True)
class LatestMatchConfig(TrainableConfig):
    """`latest_match_attention`: beyond the paper, causal, each bucket keeps its newest value.

    >>> LatestMatchConfig().causal
    'always'
    """

    causal: ClassVar[Causal] = "always"

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        hasher, gradient = self.hasher(head_dim, layer, seed), self.gradient
        return lambda q, k, v, is_causal, mask: latest_match_attention(
            q, k, v, hasher, key_mask=mask, gradient=gradient
        )


MECHANISM = Mechanism(latest_match_attention, latest_match_weights, LatestMatchConfig, LatestMatchConfig.options)
