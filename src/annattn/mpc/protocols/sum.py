"""Sum: all words added up over a tree of arity s."""

import numpy as np

from annattn.mpc.model import Mail, Words, spread
from annattn.mpc.protocols.problem import random_words
from annattn.mpc.protocols.tree_problem import TreeProblem

__all__ = ["Sum"]


class Sum(TreeProblem):
    """The sum of n words modulo 2^p in max(1, ⌈log_s n⌉) rounds, the least any protocol needs, for s of at least 2.

    Each machine adds up its s words and sends one word to the machine above it.

    >>> from annattn.mpc import run
    >>> int(run(Sum(n=3, memory_words=2), [1, 2, 4]).output)
    7
    """

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """As many words per machine as it can hold."""
        return spread(words.reshape(-1, 1), self.limits.memory_words, first)

    def _level(self, i: int, mail: Mail) -> Mail:
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
