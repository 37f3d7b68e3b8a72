"""KHop: the induction head followed k times, by doubling (the paper's Definition "k-hop induction heads")."""

from typing import Any

import numpy as np

from annattn.mpc.model import Limits, Mail, Words, spread, whole
from annattn.mpc.parts.sorting import can_sort, plan_sort
from annattn.mpc.parts.stages import Stage, in_order, index_within
from annattn.mpc.protocols.induction_head import NOTHING, check_letters, hop_letters, record_before, show_last
from annattn.mpc.protocols.problem import Problem

__all__ = ["KHop"]

LETTER, PLACE = 0, 1
AT, JUMP, FOUND = 0, 1, 2


class KHop(Problem):
    """out_i = w_σ^k(w,i), or ⊥ (2^64 - 1): sort + 2 + 2(⌊log2 k⌋ + 1) rounds, the paper's Theorem "ANNA solves k-hop".

    The home of position i is the machine that holds it. After sorting (w_i, i) and looking at the record before, the
    home of i knows σ(w, i). Each binary digit of k, from the lowest, then takes two rounds: the home of i asks the home
    of σ^(2^ℓ)(i), which answers with its own jump and, if the digit is 1, with the letter it has found so far. Where it
    is not ⊥, σ is one-to-one, so no home is asked more often than it holds positions. A position needs two records of
    three words, so a home holds ⌊s/6⌋ positions.

    >>> from annattn.mpc import run
    >>> word = [ord(c) for c in "aabcbabca"]
    >>> chr(run(KHop(n=9, memory_words=30, k=2), word).output[8])
    'a'
    """

    input_width = 1
    bound = "O(1/ε + log k)"

    def __init__(self, n: int, memory_words: int, k: int = 1, seed: int = 0) -> None:
        n, memory_words = self._require(n, memory_words, k=k)
        self.n = self.input_records = n
        self.k = k = whole("k", k)
        self.plan = plan_sort(n, memory_words // 3, seed)
        self.held = memory_words // 6
        self.limits = Limits(max(self.plan.machines, -(-n // self.held)), memory_words)
        self.stages = (
            Stage(self.plan.rounds, self._sort),
            Stage(1, self._show_last),
            Stage(1, self._send_home),
            Stage(2 * k.bit_length(), self._double),
        )

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether records can be sorted on machines that send three words for each, and a home can hold a position."""
        return memory_words >= 6 and can_sort(n, memory_words // 3)

    def round_formula(self) -> int:
        """The rounds of the sort, 2, and 2(⌊log2 k⌋ + 1)."""
        return self.plan.rounds + 2 + 2 * self.k.bit_length()

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """As many letters per machine as sorting allows."""
        check_letters(words)
        return spread(words.reshape(-1, 1), self.plan.rows, first)

    def _sort(self, i: int, mail: Mail) -> Mail:
        if i == 0:
            place = (mail.dest * self.plan.rows + index_within(mail.dest)).astype(np.uint64)
            mail = Mail(mail.dest, mail.dest, np.column_stack([mail.words[:, 0], place]))
        return self.plan.step(i, mail, (LETTER, PLACE))

    def _show_last(self, i: int, mail: Mail) -> Mail:
        return show_last(in_order(mail, (LETTER, PLACE)), self.plan.machines)

    def _send_home(self, i: int, mail: Mail) -> Mail:
        own, before = record_before(mail)
        same = before[:, LETTER] == own.words[:, LETTER]
        jump = np.where(same, before[:, PLACE] + np.uint64(1), NOTHING)
        place, letter = own.words[:, PLACE], own.words[:, LETTER]
        return Mail(self._home(place), own.dest, np.column_stack([place, jump, letter]))

    def _home(self, place: Words) -> np.ndarray:
        return (place // np.uint64(self.held)).astype(np.int64)

    def _double(self, i: int, mail: Mail) -> Mail:
        return self._ask(mail) if i % 2 == 0 else self._tell(mail, self.k >> (i // 2) & 1)

    def _ask(self, mail: Mail) -> Mail:
        """Keep every record, and send a copy to the home of its jump if that is another machine."""
        home = self._home(mail.words[:, JUMP])
        away = np.flatnonzero((mail.words[:, JUMP] != NOTHING) & (home != mail.dest))
        # The array is filled in place because at a million positions every copy counts.
        words = np.empty((len(mail) + len(away), 3), np.uint64)
        words[: len(mail)] = mail.words
        np.take(mail.words, away, axis=0, out=words[len(mail) :])
        dest, src = np.concatenate([mail.dest, home[away]]), np.concatenate([mail.dest, mail.dest[away]])
        return Mail(dest, src, words)

    def _tell(self, mail: Mail, digit: int) -> Mail:
        """Move every record whose jump ends here along that jump, and every record without a jump to ⊥."""
        table = self._positions(mail)
        here = np.flatnonzero((mail.words[:, JUMP] == NOTHING) | (self._home(mail.words[:, JUMP]) == mail.dest))
        machine, words = mail.dest[here], np.take(mail.words, here, axis=0)
        del here
        lost = words[:, JUMP] == NOTHING
        to = np.where(lost, 0, words[:, JUMP]).astype(np.int64)
        for column, entry in ((JUMP, 0), (FOUND, 1))[: 1 + digit]:
            words[:, column] = table[to, entry]
            words[lost, column] = NOTHING
        del to
        return Mail(self._home(words[:, AT]), machine, words)

    def _positions(self, mail: Mail) -> Words:
        """The jump of every position on these machines, and the letter it has found so far."""
        own = np.flatnonzero(mail.src == mail.dest)
        table = np.empty((self.n, 2), np.uint64)
        table[mail.words[own, AT].astype(np.int64)] = mail.words[own, JUMP:]
        return table

    def gather_part(self, mail: Mail) -> Words:
        """The letters by position."""
        return mail.words[np.argsort(mail.words[:, AT]), FOUND]

    def sample(self, rng: np.random.Generator) -> Words:
        """A random word over four letters."""
        return rng.integers(0, 4, self.n, dtype=np.uint64)

    def oracle(self, words: Words) -> Words:
        """One hop at a time."""
        return hop_letters(words, self.k)
