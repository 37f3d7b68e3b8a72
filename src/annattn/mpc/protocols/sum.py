"""Sum: all words added up over a tree of arity s."""

from typing import Any

import numpy as np

from annattn.mpc.model import Limits, Mail, Words, spread
from annattn.mpc.parts.stages import Stage
from annattn.mpc.parts.tree import tree_rounds
from annattn.mpc.protocols.problem import Problem, random_words

__all__ = ["Sum"]


class Sum(Problem):
    """The sum of n words modulo 2^p in max(1, ⌈log_s n⌉) rounds, the least any protocol needs; s of at least 2.

    Each machine adds up its s words and sends one word to the machine above it.

    >>> from annattn.mpc import run
    >>> int(run(Sum(n=3, memory_words=2), [1, 2, 4]).output)
    7
    """

    input_width = 1
    bound = "O(log_s N)"

    def __init__(self, n: int, memory_words: int, word_bits: int = 64) -> None:
        n, memory_words = self._require(n, memory_words)
        self.n = self.input_records = n
        self.limits = Limits(-(-n // memory_words), memory_words, word_bits)
        self.stages = (Stage(self.round_formula(), self._add),)

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """A tree needs two children a node."""
        return memory_words >= 2

    def round_formula(self) -> int:
        """max(1, ⌈log_s n⌉)."""
        return tree_rounds(self.n, self.limits.memory_words)

    def scatter(self, words: Words) -> Mail:
        """As many words a machine as it can hold."""
        return spread(words.reshape(-1, 1), self.limits.memory_words)

    def _add(self, i: int, mail: Mail) -> Mail:
        first = np.flatnonzero(np.diff(mail.dest, prepend=-1))
        total = np.add.reduceat(mail.words[:, 0], first) & np.uint64(self.limits.largest_word)
        machine = mail.dest[first]
        return Mail(machine // self.limits.memory_words, machine, total)

    def gather(self, mail: Mail) -> Words:
        """The one word left."""
        return mail.words[0, 0]

    def sample(self, rng: np.random.Generator) -> Words:
        """Uniform words."""
        return random_words(rng, self.n, self.limits.word_bits)

    def oracle(self, words: Words) -> int:
        """Python's own sum."""
        return sum(int(word) for word in words) % 2**self.limits.word_bits
