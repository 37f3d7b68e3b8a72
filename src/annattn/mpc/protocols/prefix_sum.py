"""PrefixSum: the sum of every word and all before it, up and down a tree of arity s - 1."""

from typing import Any

import numpy as np

from annattn.mpc.model import Limits, Mail, Numbers, Words, spread
from annattn.mpc.parts.stages import Stage, to_self
from annattn.mpc.parts.tree import Scan, Summary, tree_depth
from annattn.mpc.protocols.problem import Problem, random_words

__all__ = ["PrefixSum"]


class _Total(Summary):
    """The sum of a machine's words."""

    length = 1

    def __init__(self, word_bits: int) -> None:
        self.largest = np.uint64(2**word_bits - 1)

    def of(self, mail: Mail) -> tuple[Numbers, Words]:
        first = np.flatnonzero(np.diff(mail.dest, prepend=-1))
        return mail.dest[first], np.add.reduceat(mail.words, first, axis=0) & self.largest

    def combine(self, left: Words, right: Words) -> Words:
        return (left + right) & self.largest


class PrefixSum(Problem):
    """out_i = x_0 + … + x_i modulo 2^p in 2⌈log_(s-1) ⌈n/(s-1)⌉⌉ + 1 rounds, for s of at least 3.

    >>> from annattn.mpc import run
    >>> run(PrefixSum(n=4, memory_words=3), [1, 2, 3, 4]).output
    array([ 1,  3,  6, 10], dtype=uint64)
    """

    input_width = 1
    bound = "O(log_s N)"

    def __init__(self, n: int, memory_words: int, word_bits: int = 64) -> None:
        n, memory_words = self._require(n, memory_words)
        self.n = self.input_records = n
        self.rows = memory_words - 1
        leaves = -(-n // self.rows)
        self.scan = Scan(leaves=leaves, width=1, length=1, memory_words=memory_words, base=leaves)
        self.limits = Limits(leaves + self.scan.tree.machines, memory_words, word_bits)
        self.total = _Total(self.limits.word_bits)
        self.stages = (Stage(self.scan.rounds, self._tree), Stage(1, self._add))

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether a node can hold the words of two children and of its parent."""
        return memory_words >= 3

    def round_formula(self) -> int:
        """2⌈log_(s-1) ⌈n/(s-1)⌉⌉ + 1."""
        arity = self.limits.memory_words - 1
        return 2 * tree_depth(-(-self.n // arity), arity) + 1

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """One word less per machine than it can hold: the sum of all earlier words needs a place."""
        return spread(words.reshape(-1, 1), self.rows, first)

    def _tree(self, i: int, mail: Mail) -> Mail:
        return self.scan.step(i, mail, self.total)

    def _add(self, i: int, mail: Mail) -> Mail:
        data, before = self.scan.receive(mail)
        # A running sum over all machines, minus its value where a machine's words begin; exact modulo 2^64.
        running = np.cumsum(data.words[:, 0], dtype=np.uint64)
        first = np.flatnonzero(np.diff(data.dest, prepend=-1))
        start = np.concatenate([np.zeros(1, np.uint64), running])[first]
        own = running - np.repeat(start, np.diff(first, append=len(data)))
        return to_self(data, ((own + before[:, 0]) & self.total.largest)[:, None])

    def sample(self, rng: np.random.Generator) -> Words:
        """Uniform words."""
        return random_words(rng, self.n, self.limits.word_bits)

    def oracle(self, words: Words) -> Words:
        """Python's own running sum."""
        sums, total = [], 0
        for word in words:
            total = (total + int(word)) % 2**self.limits.word_bits
            sums.append(total)
        return np.array(sums, np.uint64)
