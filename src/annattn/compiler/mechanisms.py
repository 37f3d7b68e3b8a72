"""The attention of one layer, ready to be called: exact match, ANNA with drawn hash functions, or low rank."""

from dataclasses import dataclass

from torch import Tensor

from annattn.attention import anna_attention, exact_match_attention, low_rank_attention
from annattn.lsh import Hasher

__all__ = ["Anna", "Attention", "ExactMatch", "LowRank"]


@dataclass(frozen=True)
class ExactMatch:
    """The paper's Definition "EM Attention".

    >>> rows = torch.tensor([[1.0], [2.0]])
    >>> ExactMatch()(rows, rows, rows)
    tensor([[1.], [2.]])
    """

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The mean of the values whose keys equal the query."""
        return exact_match_attention(query[None, None], key[None, None], value[None, None])[0, 0]


@dataclass(frozen=True)
class Anna:
    """The paper's Definition "ANN Attention", by Algorithm 1 with these hash functions.

    >>> import annattn as aa
    >>> rows = torch.tensor([[1.0], [-2.0]])
    >>> Anna(aa.lsh.Hyperplane(1).sample(tables=2, hashes=3))(rows, rows, rows)
    tensor([[ 1.], [-2.]])
    """

    hasher: Hasher

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Sum over sum of the values in the query's buckets."""
        return anna_attention(query[None, None], key[None, None], value[None, None], self.hasher, gradient="none")[0, 0]


@dataclass(frozen=True)
class LowRank:
    """The paper's Definition of low-rank attention: Q'(X) (K'(X)ᵀ V(X)).

    >>> rows = torch.tensor([[1.0], [2.0]])
    >>> LowRank()(rows, rows, rows)
    tensor([[ 5.], [10.]])
    """

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Queries times the sum of k_j v_jᵀ."""
        return low_rank_attention(query[None, None], key[None, None], value[None, None])[0, 0]


Attention = ExactMatch | Anna | LowRank
"""What a layer can attend with."""
