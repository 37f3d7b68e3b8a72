"""Random inputs, and attention over all pairs in float64 on a few queries, to check fast answers before timing them."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from annattn.errors import AnnattnError
from annattn.lsh import Hasher

__all__ = [
    "CHECKED",
    "check_answer",
    "collision_counts",
    "copy_floor",
    "random_inputs",
    "sampled_queries",
    "softmax_weights",
]

CHECKED = 16
"""Queries whose outputs are checked."""

_RELATIVE, _ABSOLUTE = 1e-4, 1e-5


def random_inputs(n: int, *, heads: int, dim: int, seed: int = 0, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, normally distributed.

    >>> [tuple(x.shape) for x in random_inputs(5, heads=2, dim=8)]
    [(1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8)]
    """
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(batch, heads, n, dim, generator=generator) for _ in range(3))
    return query, key, value


def copy_floor(query: Tensor, key: Tensor, value: Tensor) -> Callable[[], Tensor]:
    """A call that copies the inputs and an array of the output's size: no attention can take less time.

    >>> query, key, value = random_inputs(5, heads=1, dim=8)
    >>> bool((copy_floor(query, key, value)() == value).all())
    True
    """
    sources = (query, key, value, value.clone())
    copies = tuple(torch.empty_like(x) for x in sources)

    def copy() -> Tensor:
        for source, target in zip(sources, copies, strict=True):
            target.copy_(source)
        return copies[-1]

    return copy


def sampled_queries(n: int) -> Tensor:
    """The queries that are checked: evenly spaced, the first among them.

    >>> sampled_queries(3)
    tensor([0, 1, 2])
    """
    return torch.arange(0, n, max(1, n // CHECKED))[:CHECKED]


def collision_counts(query: Tensor, key: Tensor, hasher: Hasher, *, is_causal: bool = False) -> Tensor:
    """ANNA's weights of the sampled queries: the number of tables in which each meets each key.

    >>> from annattn.lsh import Hyperplane
    >>> query, key, _ = random_inputs(5, heads=1, dim=8)
    >>> tuple(collision_counts(query, key, Hyperplane(8).sample(tables=2, hashes=3)).shape)
    (1, 1, 5, 5)
    """
    sample = sampled_queries(query.shape[2])
    asked, held = hasher(query[:, :, sample]), hasher(key)
    counts = torch.zeros(*asked.shape[:3], held.shape[2], dtype=torch.float64)
    # One table at a time: the pairs of all tables at once would not fit in memory at a million tokens.
    for table in range(asked.shape[-1]):
        counts += asked[..., :, None, table] == held[..., None, :, table]
    return counts.masked_fill(_future(sample, held.shape[2]), 0) if is_causal else counts


def softmax_weights(query: Tensor, key: Tensor, *, is_causal: bool = False) -> Tensor:
    """The weights of torch's softmax attention for the sampled queries.

    >>> query, key, _ = random_inputs(5, heads=1, dim=8)
    >>> tuple(softmax_weights(query, key).shape)
    (1, 1, 5, 5)
    """
    sample = sampled_queries(query.shape[2])
    scores = query[:, :, sample].double() @ key.double().mT / math.sqrt(query.shape[3])
    return (scores.masked_fill(_future(sample, key.shape[2]), -math.inf) if is_causal else scores).softmax(-1)


def check_answer(label: str, out: Tensor, weights: Tensor, value: Tensor) -> float:
    """The largest error of an answer, or an AnnattnError if it is too large: a wrong answer is not worth timing.

    `weights` belong to the sampled queries; the answer should be the mean of the values with these weights.

    >>> query, key, value = random_inputs(5, heads=1, dim=8)
    >>> check_answer("zeros", torch.zeros_like(value), softmax_weights(query, key), value)
    Traceback (most recent call last):
    annattn.errors.AnnattnError: zeros: an answer is wrong by ..., so it is not timed
    """
    # A query that meets no key reads zeros.
    expected = weights @ value.double() / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    difference = (out[:, :, sampled_queries(out.shape[2])].double() - expected).abs()
    error = difference.max().item()
    if not (difference <= _ABSOLUTE + _RELATIVE * expected.abs()).all():
        raise AnnattnError(f"{label}: an answer is wrong by {error:.1e}, so it is not timed")
    return error


def _future(sample: Tensor, keys: int) -> Tensor:
    return torch.arange(keys) > sample[:, None]
