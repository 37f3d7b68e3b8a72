"""The attention of a layer, ready to be called: exact match, ANNA with its hash functions, or low rank."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
        return _one_head(exact_match_attention, query, key, value)


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
        attend = partial(anna_attention, hasher=self.hasher, gradient="none")
        return _one_head(attend, query, key, value)


@dataclass(frozen=True)
class LowRank:
    """The paper's Definition of low-rank attention: Q'(X) (K'(X)ᵀ V(X)).

    >>> rows = torch.tensor([[1.0], [2.0]])
    >>> LowRank()(rows, rows, rows)
    tensor([[ 5.], [10.]])
    """

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Queries times the sum of k_j v_jᵀ."""
        return _one_head(low_rank_attention, query, key, value)


Attention = ExactMatch | Anna | LowRank
"""Any of the three."""


def _one_head(attend: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Attention on the rows of one head, (n, dim), by a function of (batch, heads, n, dim)."""
    return attend(*(part[None, None] for part in rows))[0, 0]
