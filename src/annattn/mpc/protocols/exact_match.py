"""ExactMatchAttention: the paper's Definition "EM Attention" as a protocol (Theorem "MPC simulates EMA")."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.mpc.model import Words, real_words, whole, word_reals
from annattn.mpc.protocols.collisions import CollisionAttention, as_reals

__all__ = ["ExactMatchAttention"]


class ExactMatchAttention(CollisionAttention):
    """Every query gets the mean of the values whose keys equal it, or zeros: sort + 2·depth + 3 rounds.

    -0.0 equals 0.0 and NaN equals nothing. The input is `encode(query, key, value)`, the output float64.

    >>> from annattn.mpc import run
    >>> attention = ExactMatchAttention(n=3, memory_words=40, dim=1, value_dim=1)
    >>> run(attention, attention.encode([[1], [2], [3]], [[1], [1], [2]], [[10], [20], [30]])).output.ravel()
    array([15., 30.,  0.])
    """

    def __init__(self, n: int, memory_words: int, dim: int = 1, value_dim: int = 1, seed: int = 0) -> None:
        n, memory_words = self._require(n, memory_words, dim=dim, value_dim=value_dim)
        dim, value_dim = int(dim), int(value_dim)
        self.bucket_words, self.value_dim, self.tables, self.row_words = dim, value_dim, 1, 2 * dim + value_dim
        self._build(n, memory_words, seed)

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether one token's records fit into a machine and all records can be sorted."""
        dim, values = (whole(name, parameters.get(name, 1)) for name in ("dim", "value_dim"))
        return cls._enough(n, memory_words, dim, values, 1, 2 * dim + values)

    def encode(self, query: ArrayLike, key: ArrayLike, value: ArrayLike) -> Words:
        """Queries, keys and values as the protocol's input."""
        dim = self.bucket_words
        parts = [as_reals("query", query, self.n, dim), as_reals("key", key, self.n, dim)]
        return real_words(np.hstack([*parts, as_reals("value", value, self.n, self.value_dim)]))

    def _buckets(self, rows: Words) -> tuple[Words, Words, NDArray[np.bool_], NDArray[np.bool_]]:
        dim = self.bucket_words
        # Adding 0.0 turns -0.0 into 0.0 and changes nothing else, so equal numbers have equal bit patterns.
        query, key = word_reals(rows[:, :dim]) + 0.0, word_reals(rows[:, dim : 2 * dim]) + 0.0
        present = [np.asarray(~np.isnan(part)).all(axis=1) for part in (query, key)]
        return real_words(query)[:, None], real_words(key)[:, None], np.asarray(present[0]), np.asarray(present[1])

    def sample(self, rng: np.random.Generator) -> Words:
        """Small integers, so that many match."""
        query, key = rng.integers(0, 3, (2, self.n, self.bucket_words)).astype(float)
        return self.encode(query, key, rng.standard_normal((self.n, self.value_dim)))

    def oracle(self, words: Words) -> NDArray[np.float64]:
        """The Definition, one query at a time."""
        dim = self.bucket_words
        query, key, value = np.split(word_reals(words), [dim, 2 * dim], axis=1)
        out = np.zeros((self.n, self.value_dim))
        for i in range(self.n):
            near = (query[i] == key).all(axis=1)
            if near.any():
                out[i] = value[near].mean(axis=0)
        return out
