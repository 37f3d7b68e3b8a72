"""Join: every right record finds the left record of its key."""

from typing import Any

import numpy as np

from annattn.errors import InputError
from annattn.mpc.model import Limits, Mail, Words, spread
from annattn.mpc.parts.match import Match
from annattn.mpc.parts.runs import FirstRecords
from annattn.mpc.parts.stages import Stage, index_within
from annattn.mpc.parts.tree import tree_depth
from annattn.mpc.protocols.problem import Problem, random_words

__all__ = ["Join"]

KEY, TAG, VALUE = 0, 1, 2
RIGHT = np.uint64(2**63)
"""The bit of a tag that marks a right record; the rest of a tag is the record's place in the input."""


class Join(Problem):
    """For n records (side, key, value): a right record (side 1) gets the value of the first left record with its key.

    The output has a row (found, value) for every record: (1, value) if some left record has its key, else (0, 0). Left
    records get the same answer as right ones. It takes sort + 2·depth + 1 rounds: sort by (key, side, place), pass on
    the first record of every key, answer. A key may occur any number of times.

    >>> from annattn.mpc import run
    >>> run(Join(n=3, memory_words=18), [[0, 5, 70], [1, 5, 0], [1, 6, 0]]).output
    array([[ 1, 70], [ 1, 70], [ 0,  0]], dtype=uint64)
    """

    input_width = 3
    bound = "O(1/(ε'-ε)): Lemma MPC Sorting and one tree"
    first_records = FirstRecords(keys=[KEY], columns=[TAG, VALUE])

    def __init__(self, n: int, memory_words: int, seed: int = 0) -> None:
        n, memory_words = self._require(n, memory_words)
        self.n = self.input_records = n
        self.match = Match(
            n=n, width=3, keys=(KEY, TAG), summary=self.first_records, memory_words=memory_words, seed=seed
        )
        self.limits = Limits(self.match.machines, memory_words)
        self.stages = (Stage(self.match.rounds, self._join),)

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether the records can be sorted and a tree node can hold two summaries."""
        return Match.fits(n=n, width=3, length=cls.first_records.length, memory_words=memory_words)

    def round_formula(self) -> int:
        """The rounds of the sort, 2⌈log_a ⌈n / rows⌉⌉ + 1, with a = ⌊s/6⌋ - 1 summaries per node."""
        depth = tree_depth(-(-self.n // self.match.rows), self.limits.memory_words // 6 - 1)
        return self.match.sort.rounds + 2 * depth + 1

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """As many records per machine as sorting allows."""
        if int(words[:, 0].max()) > 1:
            raise InputError("side", given=int(words[:, 0].max()), expected="0 for left or 1 for right")
        return spread(words.reshape(-1, 3), self.match.rows, first)

    def _join(self, i: int, mail: Mail) -> Mail:
        return self.match.step(i, mail, self._tag, self._answer)

    def _tag(self, mail: Mail) -> Mail:
        place = (mail.dest * self.match.rows + index_within(mail.dest)).astype(np.uint64)
        side, key, value = mail.words.T
        return Mail(mail.dest, mail.dest, np.column_stack([key, side * RIGHT + place, value]))

    def _answer(self, mail: Mail, carried: Words) -> Mail:
        tag, value = self.first_records.known(mail, carried).T
        found = (tag < RIGHT).astype(np.uint64)
        place = mail.words[:, TAG] % RIGHT
        owner = (place // np.uint64(self.match.rows)).astype(np.int64)
        return Mail(owner, mail.dest, np.column_stack([place, found, value * found]))

    def gather_part(self, mail: Mail) -> Words:
        """The answers in the order of the input."""
        return mail.words[np.argsort(mail.words[:, 0]), 1:]

    def sample(self, rng: np.random.Generator) -> Words:
        """Keys that repeat on both sides."""
        side = rng.integers(0, 2, self.n, dtype=np.uint64)
        key = rng.integers(0, max(1, self.n // 2), self.n, dtype=np.uint64)
        return np.column_stack([side, key, random_words(rng, self.n, 64)])

    def oracle(self, words: Words) -> Words:
        """A dictionary."""
        first: dict[int, int] = {}
        for side, key, value in words.tolist():
            if side == 0:
                first.setdefault(key, value)
        return np.array([[key in first, first.get(key, 0)] for _, key, _ in words.tolist()], np.uint64).reshape(-1, 2)
