"""Sort: words or records into order, in a number of rounds that does not depend on N at s = N^ε."""

from typing import Any

import numpy as np

from annattn.mpc.model import Limits, Mail, Words, spread, whole
from annattn.mpc.parts.columnsort import Columnsort
from annattn.mpc.parts.samplesort import Samplesort
from annattn.mpc.parts.sorting import can_sort, plan_sort
from annattn.mpc.parts.stages import Stage, in_order, index_within
from annattn.mpc.parts.tree import tree_depth
from annattn.mpc.protocols.problem import Problem, check_places, random_words

__all__ = ["Sort"]


class Sort(Problem):
    """n records sorted by their first word, stably, in 4 or 16 rounds, or O(1/ε): see `parts.sorting`.

    Records of several words also carry their place in the input, one more word, which makes the order stable. Single
    words need no place for columnsort, because equal words cannot be told apart. Samplesort needs it, since its buckets
    could not split equal records otherwise. Only samplesort uses the seed.

    >>> from annattn.mpc import run
    >>> run(Sort(n=5, memory_words=4), [5, 1, 4, 1, 3]).output
    array([1, 1, 3, 4, 5], dtype=uint64)
    """

    bound = "O(1/(ε'-ε)), Lemma MPC Sorting"

    def __init__(self, n: int, memory_words: int, width: int = 1, word_bits: int = 64, seed: int = 0) -> None:
        n, memory_words = self._require(n, memory_words, width=width, word_bits=word_bits)
        width = int(width)
        if width > 1:
            check_places(n, word_bits)
        self.n = self.input_records = n
        self.width = self.input_width = width
        self.plan = plan_sort(
            n, memory_words // _record(width), seed, unique_capacity=_unique(n, memory_words, width, word_bits)
        )
        self.placed = width > 1 or isinstance(self.plan, Samplesort)
        self.keys = (0, width) if self.placed else (0,)
        self.limits = Limits(self.plan.machines, memory_words, word_bits)
        self.stages = (Stage(self.plan.rounds, self._sort),)

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether there is a plan."""
        width = whole("width", parameters.get("width", 1))
        bits = whole("word_bits", parameters.get("word_bits", 64), high=64)
        return can_sort(n, memory_words // _record(width), unique_capacity=_unique(n, memory_words, width, bits))

    def round_formula(self) -> int:
        """4^d for d levels of columnsort; 3 + 4t + 2⌈log_(c-1) a^t⌉ for t of samplesort, c records per machine."""
        if isinstance(self.plan, Columnsort):
            return 4 ** len(self.plan.columns)
        depth = tree_depth(self.plan.arity**self.plan.levels, self.plan.capacity - 1)
        return 3 + 4 * self.plan.levels + 2 * depth

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """As many records per machine as a column has rows."""
        return spread(words.reshape(-1, self.width), self.plan.rows, first)

    def _sort(self, i: int, mail: Mail) -> Mail:
        if i == 0 and self.placed:
            place = (mail.dest * self.plan.rows + index_within(mail.dest)).astype(np.uint64)
            mail = Mail(mail.dest, mail.src, np.column_stack([mail.words, place]))
        return self.plan.step(i, mail, self.keys)

    def gather_part(self, mail: Mail) -> Words:
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


def _unique(n: int, memory_words: int, width: int, word_bits: int) -> int:
    """How many records with places a machine holds; none if words are too small for places and numbers of records."""
    return memory_words // (width + 1) if n.bit_length() <= word_bits else 0
