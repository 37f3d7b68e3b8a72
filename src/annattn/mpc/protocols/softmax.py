"""SoftmaxAttention: one machine per pair of tokens, N² of them, as the known simulation of softmax attention has it."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.errors import InputError
from annattn.mpc.model import Limits, Mail, Words, real_words, whole, word_reals
from annattn.mpc.parts.stages import Stage, join_mail
from annattn.mpc.parts.tree import tree_rounds
from annattn.mpc.protocols.collisions import as_reals
from annattn.mpc.protocols.problem import Problem

__all__ = ["SoftmaxAttention"]

QUERY, KEY = np.uint64(0), np.uint64(1)
LARGEST_SCORE = 600.0


class SoftmaxAttention(Problem):
    """softmax(QKᵀ)V on n² machines in 2·max(1, ⌈log_a n⌉) + 1 rounds with a = ⌊s/(2(1 + m + m'))⌋.

    Machine (i, j) computes e^(q_i·k_j). Token i starts at machine (i, i). Its query goes to all machines of row i, its
    key and value to all of column i, over trees of arity a. The sums of e^(q_i·k_j)·v_j and of e^(q_i·k_j) go back to
    (i, i) over the tree of row i. A machine's place in a tree is its distance from (i, i), around the row or column.
    The input is `encode(query, key, value)`, whose scores must be below 600, so that no sum overflows.

    >>> from annattn.mpc import run
    >>> attention = SoftmaxAttention(n=2, memory_words=12)
    >>> run(attention, attention.encode([[0], [0]], [[3], [4]], [[5], [6]])).output.ravel()
    array([5.5, 5.5])
    """

    bound = "O(1/(ε'-ε))"

    def __init__(self, n: int, memory_words: int, dim: int = 1, value_dim: int = 1) -> None:
        n, memory_words = self._require(n, memory_words, dim=dim, value_dim=value_dim)
        self.n = self.input_records = n
        self.dim, self.value_dim = int(dim), int(value_dim)
        self.input_width = 2 * self.dim + self.value_dim
        self.arity = memory_words // (2 * _record(self.dim, self.value_dim))
        self.limits = Limits(n * n, memory_words)
        depth = tree_rounds(n, self.arity)
        self.stages = (Stage(depth, self._spread), Stage(depth, self._collect), Stage(1, self._divide))

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether a machine can send a query and a key to two others each."""
        dim, values = (whole(name, parameters.get(name, 1)) for name in ("dim", "value_dim"))
        return memory_words >= 4 * _record(dim, values)

    def round_formula(self) -> int:
        """2·max(1, ⌈log_a n⌉) + 1."""
        return 2 * tree_rounds(self.n, self.limits.memory_words // (2 * _record(self.dim, self.value_dim))) + 1

    def encode(self, query: ArrayLike, key: ArrayLike, value: ArrayLike) -> Words:
        """Queries, keys and values as the protocol's input."""
        q, k = as_reals("query", query, self.n, self.dim), as_reals("key", key, self.n, self.dim)
        largest = np.linalg.norm(q, axis=1).max() * np.linalg.norm(k, axis=1).max()
        if not largest <= LARGEST_SCORE:
            raise InputError("query and key", given=f"scores up to {largest:g}", expected=f"at most {LARGEST_SCORE:g}")
        return real_words(np.hstack([q, k, as_reals("value", value, self.n, self.value_dim)]))

    def scatter(self, words: Words) -> Mail:
        """Token i at machine (i, i)."""
        diagonal = np.arange(self.n) * (self.n + 1)
        return Mail(diagonal, diagonal, words)

    def _spread(self, i: int, mail: Mail) -> Mail:
        """Every machine passes the query and the key that it has on to its children in the two trees."""
        if i == 0:
            query, rest = np.split(mail.words, [self.dim], axis=1)
            blank = np.zeros((len(mail), self.value_dim), np.uint64)
            kind = np.full((len(mail), 1), QUERY)
            queries = Mail(mail.dest, mail.src, np.hstack([kind, query, blank]))
            mail = join_mail(queries, Mail(mail.dest, mail.src, np.hstack([kind + KEY, rest])))
        row, column = np.divmod(mail.dest, self.n)
        along_row = mail.words[:, 0] == QUERY
        place = np.where(along_row, column - row, row - column) % self.n
        child = place[:, None] * self.arity + np.arange(self.arity)
        which, _ = at = np.nonzero(child < self.n)
        moved = (np.where(along_row, row, column)[which] + child[at]) % self.n
        dest = np.where(along_row[which], row[which] * self.n + moved, moved * self.n + column[which])
        return Mail(dest, mail.dest[which], mail.words[which])

    def _collect(self, i: int, mail: Mail) -> Mail:
        """Every machine sends its sum, at first its own pair's weight and weighted value, to its parent in the row."""
        machine, total = self._pairs(mail) if i == 0 else self._sums(mail)
        row, column = np.divmod(machine, self.n)
        parent = row * self.n + (row + (column - row) % self.n // self.arity) % self.n
        return Mail(parent, machine, real_words(total))

    def _divide(self, i: int, mail: Mail) -> Mail:
        machine, total = self._sums(mail)
        return Mail(machine, machine, real_words(total[:, :-1] / total[:, -1:]))

    def _pairs(self, mail: Mail) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Every machine has one query and one key."""
        numbers = word_reals(mail.words[:, 1:])
        is_query = mail.words[:, 0] == QUERY
        query, key = numbers[is_query], numbers[~is_query]
        weight = np.exp((query[:, : self.dim] * key[:, : self.dim]).sum(axis=1))[:, None]
        return mail.dest[is_query], np.hstack([weight * key[:, self.dim :], weight])

    def _sums(self, mail: Mail) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        first = np.flatnonzero(np.diff(mail.dest, prepend=-1))
        return mail.dest[first], np.add.reduceat(word_reals(mail.words), first, axis=0)

    def gather_part(self, mail: Mail) -> NDArray[np.float64]:
        """The output, (n, value_dim)."""
        return word_reals(mail.words)

    def agrees(self, output: Any, expected: Any) -> bool:
        """Equal up to the rounding of n exponentials and their sums, for values of size one."""
        return np.allclose(output, expected, rtol=0, atol=(16 + self.n) * 2.0**-50 * np.abs(expected).max(initial=1.0))

    def sample(self, rng: np.random.Generator) -> Words:
        """Uniform numbers from -1 to 1."""
        query, key = rng.uniform(-1, 1, (2, self.n, self.dim))
        return self.encode(query, key, rng.uniform(-1, 1, (self.n, self.value_dim)))

    def oracle(self, words: Words) -> NDArray[np.float64]:
        """The n x n matrix of weights times V, one row at a time."""
        query, key, value = np.split(word_reals(words), [self.dim, 2 * self.dim], axis=1)
        rows = [np.exp(row @ key.T - (row @ key.T).max()) for row in query]
        return np.array([(row / row.sum()) @ value for row in rows])


def _record(dim: int, values: int) -> int:
    """A mark, a query or a key, and a value."""
    return 1 + dim + values
