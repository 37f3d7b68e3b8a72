"""Broadcast: one word copied to every place over a tree of arity s."""

import numpy as np

from annattn.mpc.model import Mail, Words
from annattn.mpc.protocols.problem import random_words
from annattn.mpc.protocols.tree_problem import TreeProblem

__all__ = ["Broadcast"]


class Broadcast(TreeProblem):
    """One word becomes n copies, s per machine, in max(1, ⌈log_s n⌉) rounds: each round makes s copies of every copy.

    >>> from annattn.mpc import run
    >>> run(Broadcast(n=3, memory_words=2), [9]).output
    array([9, 9, 9], dtype=uint64)
    """

    def __init__(self, n: int, memory_words: int, word_bits: int = 64) -> None:
        super().__init__(n, memory_words, word_bits)
        self.input_records = 1

    def _level(self, i: int, mail: Mail) -> Mail:
        # In the last round a machine writes its own s copies, for the places j·s and on, instead of telling others.
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
