"""InductionHead: what followed the latest earlier occurrence of each letter (Definition "Induction heads")."""

from typing import Any

import numpy as np

from annattn.errors import InputError
from annattn.mpc.model import Limits, Mail, Words, spread
from annattn.mpc.parts.sorting import can_sort, plan_sort
from annattn.mpc.parts.stages import Stage, in_order, index_within, join_mail
from annattn.mpc.protocols.problem import Problem

__all__ = ["NOTHING", "InductionHead", "check_letters", "hop_letters", "record_before", "show_last"]

LETTER, PLACE, NEXT = 0, 1, 2
NOTHING = np.uint64(2**64 - 1)
"""The paper's ⊥, the letter at position σ = 0. No letter of the input may equal it."""


class InductionHead(Problem):
    """out_i = w_σ(w,i), the letter after the latest earlier occurrence of w_i, or ⊥ (2^64 - 1): sort + 3 rounds.

    These are the four steps of the paper's lemma: fetch the next letter from the neighbour (1 round), sort the records
    (w_i, i, w_i+1) (sort), look at the record before (1 round), and send the answer home (1 round).

    >>> from annattn.mpc import run
    >>> word = [ord(c) for c in "aabcbabca"]
    >>> chr(run(InductionHead(n=9, memory_words=30), word).output[8])
    'b'
    """

    input_width = 1
    bound = "O(1/ε)"

    def __init__(self, n: int, memory_words: int, seed: int = 0) -> None:
        n, memory_words = self._require(n, memory_words)
        self.n = self.input_records = n
        self.plan = plan_sort(n, self._capacity(memory_words), seed)
        self.limits = Limits(self.plan.machines, memory_words)
        self.stages = (
            Stage(1, self._fetch_next),
            Stage(self.plan.rounds, self._sort),
            Stage(1, self._show_last),
            Stage(1, self._send_home),
        )

    @staticmethod
    def _capacity(memory_words: int) -> int:
        # Three words per record, and room for the neighbour's record.
        return memory_words // 3 - 1

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether records of three words can be sorted with room for one more per machine."""
        return can_sort(n, cls._capacity(memory_words))

    def round_formula(self) -> int:
        """The rounds of the sort, and 3."""
        return self.plan.rounds + 3

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """As many letters per machine as sorting allows."""
        check_letters(words)
        return spread(words.reshape(-1, 1), self.plan.rows, first)

    def _fetch_next(self, i: int, mail: Mail) -> Mail:
        place = (mail.dest * self.plan.rows + index_within(mail.dest)).astype(np.uint64)
        after = np.append(mail.words[1:, 0], NOTHING)
        ends = np.append(mail.dest[1:] != mail.dest[:-1], True)
        after[ends] = NOTHING
        records = Mail(mail.dest, mail.dest, np.column_stack([mail.words[:, 0], place, after]))
        firsts = records.take((index_within(mail.dest) == 0) & (mail.dest > 0))
        return join_mail(records, Mail(firsts.dest - 1, firsts.dest, firsts.words))

    def _sort(self, i: int, mail: Mail) -> Mail:
        if i == 0:
            mail = self._with_next(mail)
        return self.plan.step(i, mail, (LETTER, PLACE))

    def _with_next(self, mail: Mail) -> Mail:
        own, told = mail.take(mail.src == mail.dest), mail.take(mail.src != mail.dest)
        words = own.words.copy()
        ends = np.append(own.dest[1:] != own.dest[:-1], True)
        last = np.flatnonzero(ends)
        has_next = np.isin(own.dest[last], told.dest)
        words[last[has_next], NEXT] = told.words[np.searchsorted(told.dest, own.dest[last[has_next]]), LETTER]
        return Mail(own.dest, own.dest, words)

    def _show_last(self, i: int, mail: Mail) -> Mail:
        return show_last(in_order(mail, (LETTER, PLACE)), self.plan.machines)

    def _send_home(self, i: int, mail: Mail) -> Mail:
        own, before = record_before(mail)
        same = before[:, LETTER] == own.words[:, LETTER]
        answer = np.where(same, before[:, NEXT], NOTHING)
        place = own.words[:, PLACE]
        home = (place // np.uint64(self.plan.rows)).astype(np.int64)
        return Mail(home, own.dest, np.column_stack([place, answer]))

    def gather_part(self, mail: Mail) -> Words:
        """The answers by position."""
        return mail.words[np.argsort(mail.words[:, 0]), 1]

    def sample(self, rng: np.random.Generator) -> Words:
        """A random word over four letters."""
        return rng.integers(0, 4, self.n, dtype=np.uint64)

    def oracle(self, words: Words) -> Words:
        """One letter at a time, remembering where each one occurred last."""
        return hop_letters(words, 1)


def check_letters(words: Words) -> None:
    """Refuse a word that contains ⊥."""
    if len(words) and int(words.max()) == int(NOTHING):
        raise InputError("letter", given="2^64 - 1", expected="a word below it: 2^64 - 1 stands for ⊥")


def show_last(mail: Mail, machines: int) -> Mail:
    """Every machine keeps its sorted records and sends a copy of the last one to the next machine."""
    ends = np.append(mail.dest[1:] != mail.dest[:-1], True)
    last = mail.take(ends & (mail.dest < machines - 1))
    return join_mail(Mail(mail.dest, mail.dest, mail.words), Mail(last.dest + 1, last.dest, last.words))


def record_before(mail: Mail) -> tuple[Mail, Words]:
    """After `show_last`: the machines' own records, and for each the record before it; ⊥ before the very first."""
    own, told = mail.take(mail.src == mail.dest), mail.take(mail.src != mail.dest)
    before = np.empty_like(own.words)
    before[1:] = own.words[:-1]
    first = np.flatnonzero(index_within(own.dest) == 0)
    before[first] = NOTHING
    knows = np.isin(own.dest[first], told.dest)
    before[first[knows]] = told.words[np.searchsorted(told.dest, own.dest[first[knows]])]
    return own, before


def hop_letters(words: Words, k: int) -> Words:
    """The oracle of k-hop: w at σ^k(w, i) for each i, following one hop at a time.

    >>> word = np.array([ord(c) for c in "aabcbabca"], dtype=np.uint64)
    >>> chr(hop_letters(word, 1)[8]), chr(hop_letters(word, 2)[8])
    ('b', 'a')
    """
    latest: dict[int, int] = {}
    hop = []
    for place, letter in enumerate(words.tolist()):
        hop.append(latest[letter] + 1 if letter in latest else None)
        latest[letter] = place
    out = np.empty(len(words), np.uint64)
    for place in range(len(words)):
        at: int | None = place
        for _ in range(k):
            at = None if at is None else hop[at]
        out[place] = NOTHING if at is None else words[at]
    return out
