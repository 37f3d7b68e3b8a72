"""Permute: every word to the place it names, in one round."""

from typing import Any

import numpy as np

from annattn.errors import InputError
from annattn.mpc.model import Limits, Mail, Words, spread
from annattn.mpc.parts.stages import Stage
from annattn.mpc.protocols.problem import Problem, check_places, in_both_orders, random_words

__all__ = ["Permute"]


class Permute(Problem):
    """out[place] = word for n records (place, word) whose places are a permutation of 0 … n-1, in one round.

    >>> from annattn.mpc import run
    >>> run(Permute(n=3, memory_words=2), [[2, 30], [0, 10], [1, 20]]).output
    array([10, 20, 30], dtype=uint64)
    """

    input_width = 2
    bound = "O(1)"

    def __init__(self, n: int, memory_words: int, word_bits: int = 64) -> None:
        n, memory_words = self._require(n, memory_words)
        check_places(n, word_bits)
        self.n = self.input_records = n
        self.rows = memory_words // 2
        self.limits = Limits(-(-n // self.rows), memory_words, word_bits)
        self.stages = (Stage(1, self._send),)

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether a machine can hold one record."""
        return memory_words >= 2

    def round_formula(self) -> int:
        """Always 1."""
        return 1

    def scatter(self, words: Words) -> Mail:
        """⌊s/2⌋ records per machine; places that are not a permutation are refused."""
        places = words.reshape(self.n, 2)[:, 0]
        if not np.array_equal(np.sort(places), np.arange(self.n, dtype=np.uint64)):
            raise InputError("places", given="other numbers", expected=f"each of 0 to {self.n - 1} once")
        return spread(words.reshape(self.n, 2), self.rows)

    def _send(self, i: int, mail: Mail) -> Mail:
        return Mail((mail.words[:, 0] // np.uint64(self.rows)).astype(np.int64), mail.dest, mail.words)

    def gather_part(self, mail: Mail) -> Words:
        """The words by their places."""
        return mail.words[np.argsort(mail.words[:, 0]), 1]

    def sample(self, rng: np.random.Generator) -> Words:
        """A random permutation of random words."""
        places = rng.permutation(self.n).astype(np.uint64)
        return np.column_stack([places, random_words(rng, self.n, self.limits.word_bits)])

    def variants(self, rng: np.random.Generator) -> dict[str, Words]:
        """Every place occurs once, so records can be put in another order but not repeated."""
        return in_both_orders(self.sample(rng))

    def oracle(self, words: Words) -> Words:
        """One assignment at a time."""
        out = np.zeros(self.n, np.uint64)
        for place, word in words:
            out[int(place)] = word
        return out
