"""LowRankAttention: Q'(K'ᵀV) over a tree with ⌊s/rm⌋ children per node (Lemma "MPC simulates low-rank Attention")."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.mpc.model import Limits, Mail, Numbers, Words, real_words, spread, whole, word_reals
from annattn.mpc.parts.stages import Stage, join_mail
from annattn.mpc.parts.tree import Tree, tree_depth
from annattn.mpc.protocols.collisions import as_reals
from annattn.mpc.protocols.problem import Problem

__all__ = ["LowRankAttention"]


class LowRankAttention(Problem):
    """Q'K'ᵀV for features of rank r and values of m numbers: 2⌈log_a leaves⌉ + 1 rounds with a = ⌊s/rm⌋.

    Each machine adds up k_i v_iᵀ over its tokens, the tree adds up the r x m matrices, and the sum goes back down.
    The input is `encode(query_features, key_features, value)`. Numbers travel as float64 bit patterns and are added in
    float64, in an order that depends only on n and s. The error is at most (n + r)·2^-53·Σ_j Σ_t |q_it k_jt v_j|.

    >>> from annattn.mpc import run
    >>> attention = LowRankAttention(n=2, memory_words=8, rank=1, value_dim=1)
    >>> run(attention, attention.encode([[1], [2]], [[3], [4]], [[5], [6]])).output.ravel()
    array([39., 78.])
    """

    bound = "O(1/(ε'-ε))"

    def __init__(self, n: int, memory_words: int, rank: int = 1, value_dim: int = 1) -> None:
        n, memory_words = self._require(n, memory_words, rank=rank, value_dim=value_dim)
        rank, value_dim = int(rank), int(value_dim)
        self.n = self.input_records = n
        self.rank, self.value_dim = rank, value_dim
        self.input_width = 2 * rank + value_dim
        self.held = _held(memory_words, rank, value_dim)
        leaves = -(-n // self.held)
        self.tree = Tree(leaves, memory_words // (rank * value_dim), base=leaves)
        self.limits = Limits(leaves + self.tree.machines, memory_words)
        depth = self.tree.depth
        self.stages = (Stage(depth, self._up), Stage(depth, self._down), Stage(1, self._multiply))

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether a node can hold two matrices, and a leaf one matrix and a token."""
        rank, values = (whole(name, parameters.get(name, 1)) for name in ("rank", "value_dim"))
        return memory_words >= 2 * rank * values and _held(memory_words, rank, values) >= 1

    def round_formula(self) -> int:
        """2⌈log_a ⌈n / held⌉⌉ + 1."""
        arity = self.limits.memory_words // (self.rank * self.value_dim)
        return 2 * tree_depth(-(-self.n // self.held), arity) + 1

    def encode(self, query_features: ArrayLike, key_features: ArrayLike, value: ArrayLike) -> Words:
        """Features and values as the protocol's input."""
        query = as_reals("query_features", query_features, self.n, self.rank)
        key = as_reals("key_features", key_features, self.n, self.rank)
        return real_words(np.hstack([query, key, as_reals("value", value, self.n, self.value_dim)]))

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """As many tokens per machine as fit beside one matrix."""
        return spread(words, self.held, first)

    def _up(self, i: int, mail: Mail) -> Mail:
        if i == 0:
            leaves, matrices = self._products(mail)
            queries = Mail(mail.dest, mail.dest, mail.words[:, : self.rank])
            return join_mail(queries, self._send(leaves, self.tree.parent(0, leaves), matrices))
        at_leaf = mail.dest < self.tree.base
        nodes, matrices = self._sums(mail.take(~at_leaf))
        keep = mail.take(at_leaf)
        return join_mail(keep, self._send(nodes, self.tree.parent(i, nodes), matrices))

    def _down(self, i: int, mail: Mail) -> Mail:
        level = self.tree.depth - i
        at_leaf = mail.dest < self.tree.base
        nodes, matrices = self._sums(mail.take(~at_leaf))
        which, children = self.tree.children(level, nodes)
        keep = mail.take(at_leaf)
        return join_mail(keep, self._send(nodes[which], children, matrices[which]))

    def _multiply(self, i: int, mail: Mail) -> Mail:
        if self.tree.depth == 0:
            queries, (leaves, matrices) = mail, self._products(mail)
        else:
            queries, (leaves, matrices) = mail.take(mail.src == mail.dest), self._sums(mail.take(mail.src != mail.dest))
        out = np.empty((len(queries), self.value_dim))
        query = word_reals(queries.words[:, : self.rank])
        for matrix, part in zip(matrices, _parts(queries.dest, leaves), strict=True):
            # Not a matrix product: its summation order may change, and the bits must be the same on every engine.
            out[part] = (query[part, :, None] * matrix).sum(axis=1)
        return Mail(queries.dest, queries.dest, real_words(out))

    def _products(self, mail: Mail) -> tuple[Numbers, NDArray[np.float64]]:
        rank = self.rank
        reals = word_reals(mail.words)
        leaves = np.unique(mail.dest)
        products = [
            (reals[part, rank : 2 * rank, None] * reals[part, None, 2 * rank :]).sum(axis=0)
            for part in _parts(mail.dest, leaves)
        ]
        return leaves, np.array(products).reshape(-1, rank, self.value_dim)

    def _sums(self, mail: Mail) -> tuple[Numbers, NDArray[np.float64]]:
        matrices = word_reals(mail.words).reshape(-1, self.value_dim, self.rank).transpose(0, 2, 1)
        machine = mail.dest[:: self.value_dim]
        nodes = np.unique(machine)
        sums = [matrices[part].sum(axis=0) for part in _parts(machine, nodes)]
        return nodes, np.array(sums).reshape(-1, self.rank, self.value_dim)

    def _send(self, src: Numbers, dest: Numbers, matrices: NDArray[np.float64]) -> Mail:
        # A matrix is sent as value_dim records of `rank` words, as wide as the queries that the leaves keep.
        words = real_words(matrices.transpose(0, 2, 1)).reshape(-1, self.rank)
        return Mail(np.repeat(dest, self.value_dim), np.repeat(src, self.value_dim), words)

    def gather_part(self, mail: Mail) -> NDArray[np.float64]:
        """The output, (n, value_dim)."""
        return word_reals(mail.words)

    def agrees(self, output: Any, expected: Any) -> bool:
        """Equal up to the stated error, for entries of size one."""
        scale = np.abs(expected).max(initial=1.0) + self.n * self.rank
        return np.allclose(output, expected, rtol=0, atol=4 * (self.n + self.rank) * 2.0**-53 * scale)

    def sample(self, rng: np.random.Generator) -> Words:
        """Uniform numbers from -1 to 1."""
        query, key = rng.uniform(-1, 1, (2, self.n, self.rank))
        return self.encode(query, key, rng.uniform(-1, 1, (self.n, self.value_dim)))

    def oracle(self, words: Words) -> NDArray[np.float64]:
        """The n x n matrix Q'K'ᵀ times V, one row at a time."""
        query, key, value = np.split(word_reals(words), [self.rank, 2 * self.rank], axis=1)
        return np.array([(row @ key.T) @ value for row in query])


def _held(memory_words: int, rank: int, values: int) -> int:
    """Tokens per leaf: it holds their rows, then their queries and one matrix, then their outputs."""
    return min(memory_words // (2 * rank + values), (memory_words - rank * values) // rank, memory_words // values)


def _parts(machine: Numbers, wanted: Numbers) -> list[slice]:
    start, end = np.searchsorted(machine, wanted), np.searchsorted(machine, wanted, side="right")
    return [slice(a, b) for a, b in zip(start, end, strict=True)]
