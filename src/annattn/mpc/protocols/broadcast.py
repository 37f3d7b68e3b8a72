"""Broadcast: one word copied to every place over a tree of arity s."""

from typing import Any

import numpy as np

from annattn.mpc.model import Limits, Mail, Words
from annattn.mpc.parts.stages import Stage
from annattn.mpc.parts.tree import tree_rounds
from annattn.mpc.protocols.problem import Problem, random_words

__all__ = ["Broadcast"]


class Broadcast(Problem):
    """One word becomes n copies of it, s a machine, in max(1, ⌈log_s n⌉) rounds: each round makes s copies of a copy.

    >>> from annattn.mpc import run
    >>> run(Broadcast(n=3, memory_words=2), [9]).output
    array([9, 9, 9], dtype=uint64)
    """

    input_width = 1
    bound = "O(log_s N)"
    input_records = 1

    def __init__(self, n: int, memory_words: int, word_bits: int = 64) -> None:
        n, memory_words = self._require(n, memory_words)
        self.n = n
        self.limits = Limits(-(-n // memory_words), memory_words, word_bits)
        self.stages = (Stage(self.round_formula(), self._copy),)

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """A tree needs two children a node."""
        return memory_words >= 2

    def round_formula(self) -> int:
        """max(1, ⌈log_s n⌉)."""
        return tree_rounds(self.n, self.limits.memory_words)

    def _copy(self, i: int, mail: Mail) -> Mail:
        # Machine j tells machines j·s … j·s + s-1; in the last round it writes its own s copies, places j·s and on.
        s, last = min(self.limits.memory_words, self.n), i == self.rounds - 1
        src = np.repeat(mail.dest, s)
        place = (mail.dest[:, None] * s + np.arange(s)).ravel()
        keep = place < (self.n if last else self.limits.machines)
        dest = src if last else place
        return Mail(dest[keep], src[keep], np.repeat(mail.words, s, axis=0)[keep])

    def sample(self, rng: np.random.Generator) -> Words:
        """One uniform word."""
        return random_words(rng, 1, self.limits.word_bits)

    def oracle(self, words: Words) -> Words:
        """The word, n times."""
        return np.full(self.n, words[0], np.uint64)
