"""AnnaAttention: the paper's Algorithm for ANNA as a protocol (Theorem "MPC simulates ANNA")."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.errors import InputError
from annattn.mpc.model import Words, real_words, whole, word_reals
from annattn.mpc.protocols.collisions import CollisionAttention, as_reals

__all__ = ["AnnaAttention", "Hasher"]

Hasher = Callable[[NDArray[np.float64]], ArrayLike]


class AnnaAttention(CollisionAttention):
    """out_i = Σ_j c_ij v_j / Σ_j c_ij, where c_ij counts the tables in which query i and key j share a bucket.

    A query that meets no key gets zeros. It takes sort + 2·depth + 3 rounds. The input is `encode(query, key, value)`.
    Without a hasher, query and key are integer bucket codes (n, tables) that were computed elsewhere. With `hasher`, a
    function from rows (n, dim) to codes (n, tables) that treats each row by itself, they are real rows and every
    machine hashes its own: the theorem's shared random seeds. The paper needs O(N^(1+ε-ε'+3ρ)) machines for ℓ = N^(3ρ)
    tables; here there are 2ℓN records of value_dim + 4 words.

    A token's machine makes all of its 2ℓ records itself, so s must hold these, and less is refused. The paper's tree,
    which lifts that, is not used here: codes as input are already 2ℓ words per token, and a tree copies what a machine
    holds. For rows, `annattn.compiler.to_protocol` of a transformer with one layer has the tree and takes any s above a
    row and its sums.

    >>> from annattn.mpc import run
    >>> attention = AnnaAttention(n=2, memory_words=40, tables=2, value_dim=1)
    >>> run(attention, attention.encode([[1, 5], [2, 6]], [[1, 5], [1, 6]], [[3.0], [9.0]])).output.ravel()
    array([5., 9.])
    """

    def __init__(
        self,
        n: int,
        memory_words: int,
        tables: int = 1,
        value_dim: int = 1,
        hasher: Hasher | None = None,
        dim: int | None = None,
        seed: int = 0,
    ) -> None:
        if (hasher is None) != (dim is None):
            raise InputError("dim", given=dim, expected="the length of a row if there is a hasher, else None")
        if hasher is not None and not callable(hasher):
            raise InputError("hasher", given=repr(hasher), expected="a function of rows to codes")
        n, memory_words = self._require(n, memory_words, tables=tables, value_dim=value_dim, dim=dim)
        tables, value_dim = int(tables), int(value_dim)
        self.hasher, self.side_words = hasher, tables if dim is None else int(dim)
        self.bucket_words, self.value_dim, self.tables = 2, value_dim, tables
        self.row_words = 2 * self.side_words + value_dim
        self._build(n, memory_words, seed)

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether one token's records fit into a machine and all records can be sorted."""
        tables, values = (whole(name, parameters.get(name, 1)) for name in ("tables", "value_dim"))
        side = parameters.get("dim")
        side = tables if side is None else whole("dim", side)
        return cls._enough(n, memory_words, 2, values, tables, 2 * side + values)

    def encode(self, query: ArrayLike, key: ArrayLike, value: ArrayLike) -> Words:
        """The protocol's input: bucket codes, or real rows if there is a hasher, and values."""
        sides = []
        for name, given in (("query", query), ("key", key)):
            if self.hasher is not None:
                sides.append(real_words(as_reals(name, given, self.n, self.side_words)))
                continue
            sides.append(_codes(name, given, self.n, self.tables))
        return np.hstack([*sides, real_words(as_reals("value", value, self.n, self.value_dim))])

    def _buckets(self, rows: Words) -> tuple[Words, Words, NDArray[np.bool_], NDArray[np.bool_]]:
        side = self.side_words
        everyone = np.ones(len(rows), bool)
        return self._coded(rows[:, :side]), self._coded(rows[:, side : 2 * side]), everyone, everyone

    def _coded(self, side: Words) -> Words:
        if self.hasher is not None:
            side = _codes("hasher's codes", self.hasher(word_reals(side)), len(side), self.tables)
        table = np.broadcast_to(np.arange(self.tables, dtype=np.uint64), side.shape)
        return np.stack([table, side], axis=2)

    def sample(self, rng: np.random.Generator) -> Words:
        """Few buckets, or normal rows for a hasher."""
        value = rng.standard_normal((self.n, self.value_dim))
        shape = (2, self.n, self.side_words)
        sides = rng.standard_normal(shape) if self.hasher else rng.integers(-2, 2 + self.n // 4, shape)
        return self.encode(sides[0], sides[1], value)

    def oracle(self, words: Words) -> NDArray[np.float64]:
        """Sum over sum, one query and one table at a time."""
        query, key, value = np.split(words, [self.side_words, 2 * self.side_words], axis=1)
        if self.hasher is not None:
            query, key = (np.asarray(self.hasher(word_reals(side))) for side in (query, key))
        value = word_reals(value)
        out = np.zeros((self.n, self.value_dim))
        for i in range(self.n):
            count = (query[i] == key).sum(axis=1)
            if count.any():
                out[i] = (count[:, None] * value).sum(axis=0) / count.sum()
        return out


def _codes(name: str, codes: ArrayLike, n: int, tables: int) -> Words:
    given = np.asarray(codes)
    if given.shape != (n, tables) or given.dtype.kind not in "iu":
        expected = f"integer bucket codes of shape ({n}, {tables})"
        raise InputError(name, given=f"{given.dtype} of shape {given.shape}", expected=expected)
    if given.dtype == np.uint64 and given.size and int(given.max()) >= 2**63:
        raise InputError(name, given=int(given.max()), expected="bucket codes that int64 holds")
    return np.ascontiguousarray(given, dtype=np.int64).view(np.uint64)
