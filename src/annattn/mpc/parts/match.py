"""Bringing together records that share a key: sort them, tell each machine what came before it, send answers.

This is how a record learns about others of its key without any machine that holds a whole key: a key may be shared
by one record or by all of them.
"""

from collections.abc import Callable, Sequence

from annattn.mpc.model import Mail, Words
from annattn.mpc.parts.columnsort import can_sort, in_order, plan_sort
from annattn.mpc.parts.tree import Scan, Summary

__all__ = ["Answer", "Match", "Prepare"]

Prepare = Callable[[Mail], Mail]
Answer = Callable[[Mail, Words], Mail]


class Match:
    """Sort at most n records by `keys`, scan their summaries, answer: 4^d + 2·depth + 1 rounds.

    A machine holds `rows` records of `width` words and room for one summary. `prepare` makes the records from the mail
    the first round finds (and must leave each machine at most `rows`); `answer` gets the sorted records and, for each,
    the summary of all earlier machines.
    """

    def __init__(self, *, n: int, width: int, keys: Sequence[int], summary: Summary, memory_words: int) -> None:
        self.keys, self.summary = keys, summary
        self.sort = plan_sort(n, self._capacity(width, summary.length, memory_words))
        self.scan = Scan(
            leaves=max(1, -(-n // self.sort.rows)),
            width=width,
            length=summary.length,
            memory_words=memory_words,
            base=self.sort.machines,
        )

    @staticmethod
    def _capacity(width: int, length: int, memory_words: int) -> int:
        return memory_words // width - -(-length // width)

    @classmethod
    def fits(cls, *, n: int, width: int, length: int, memory_words: int) -> bool:
        """Whether machines of this memory can do it."""
        room = Scan.fits(width=width, length=length, memory_words=memory_words)
        return room and can_sort(n, cls._capacity(width, length, memory_words))

    @property
    def rows(self) -> int:
        """Records a machine holds."""
        return self.sort.rows

    @property
    def machines(self) -> int:
        """Machines that sort and machines of the tree."""
        return self.sort.machines + self.scan.tree.machines

    @property
    def rounds(self) -> int:
        """4^d to sort, twice the depth of the tree, one to answer."""
        return self.sort.rounds + self.scan.rounds + 1

    def step(self, i: int, mail: Mail, prepare: Prepare, answer: Answer) -> Mail:
        """Round i of sort, scan and answer."""
        if i < self.sort.rounds:
            return self.sort.step(i, prepare(mail) if i == 0 else mail, self.keys)
        i -= self.sort.rounds
        if i < self.scan.rounds:
            return self.scan.step(i, in_order(mail, self.keys) if i == 0 else mail, self.summary)
        if self.scan.rounds == 0:
            mail = in_order(mail, self.keys)
        return answer(*self.scan.receive(mail))
