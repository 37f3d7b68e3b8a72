"""Sort: words or records into order, in a number of rounds that does not depend on N at s = N^ε."""

from typing import Any

import numpy as np

from annattn.mpc.model import Limits, Mail, Words, spread, whole
from annattn.mpc.parts.columnsort import can_sort, in_order, plan_sort
from annattn.mpc.parts.stages import Stage, index_within
from annattn.mpc.protocols.problem import Problem, check_places, random_words

__all__ = ["Sort"]


class Sort(Problem):
    """n records sorted by their first word, stably, in 4^d rounds with d of at most 3: see `parts.columnsort`.

    Records of several words also carry their place in the input, one more word, which makes the order stable. Single
    words need no place, because equal words cannot be told apart.

    >>> from annattn.mpc import run
    >>> run(Sort(n=5, memory_words=4), [5, 1, 4, 1, 3]).output
    array([1, 1, 3, 4, 5], dtype=uint64)
    """

    bound = "O(1/(ε'-ε)), Lemma MPC Sorting"

    def __init__(self, n: int, memory_words: int, width: int = 1, word_bits: int = 64) -> None:
        n, memory_words = self._require(n, memory_words, width=width)
        width = int(width)
        if width > 1:
            check_places(n, word_bits)
        self.n = self.input_records = n
        self.width = self.input_width = width
        self.plan = plan_sort(n, memory_words // _record(width))
        self.keys = (0,) if width == 1 else (0, width)
        self.limits = Limits(self.plan.machines, memory_words, word_bits)
        self.stages = (Stage(self.plan.rounds, self._sort),)

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether a plan of at most three levels exists."""
        return can_sort(n, memory_words // _record(whole("width", parameters.get("width", 1))))

    def round_formula(self) -> int:
        """4^d, where d is the least number of levels of columnsort that sorts n records."""
        return 4 ** len(self.plan.columns)

    def scatter(self, words: Words) -> Mail:
        """As many records per machine as a column has rows."""
        return spread(words.reshape(self.n, self.width), self.plan.rows)

    def _sort(self, i: int, mail: Mail) -> Mail:
        if i == 0 and self.width > 1:
            place = (mail.dest * self.plan.rows + index_within(mail.dest)).astype(np.uint64)
            mail = Mail(mail.dest, mail.src, np.column_stack([mail.words, place]))
        return self.plan.step(i, mail, self.keys)

    def gather(self, mail: Mail) -> Words:
        """Machine by machine, each in order."""
        words = in_order(mail, self.keys).words
        return words[:, 0] if self.width == 1 else words[:, : self.width]

    def sample(self, rng: np.random.Generator) -> Words:
        """Uniform records with keys that repeat."""
        words = random_words(rng, (self.n, self.width), self.limits.word_bits)
        words[:, 0] %= np.uint64(max(1, self.n // 2))
        return words[:, 0] if self.width == 1 else words

    def oracle(self, words: Words) -> Words:
        """Python's own stable sort."""
        rows = words.reshape(self.n, self.width).tolist()
        rows.sort(key=lambda row: row[0])
        return np.array(rows, np.uint64).reshape(words.shape)


def _record(width: int) -> int:
    return width if width == 1 else width + 1
