"""Bringing together records that share a key: sort them, tell each machine what came before it, send answers.

So a record learns about the others with its key, though no machine need hold all of them: a key may belong to a single
record or to all records.
"""

from collections.abc import Callable, Sequence

from annattn.mpc.model import Mail, Words
from annattn.mpc.parts.sorting import can_sort, plan_sort
from annattn.mpc.parts.stages import in_order
from annattn.mpc.parts.tree import Scan, Summary

__all__ = ["Answer", "Match", "Prepare"]

Prepare = Callable[[Mail], Mail]
Answer = Callable[[Mail, Words], Mail]


class Match:
    """Sort at most n records by `keys`, scan their summaries, answer: sort + 2·depth + 1 rounds.

    A machine holds `rows` records of `width` words and has room for one summary. `prepare` turns the mail of the first
    round into records, at most `rows` per machine. `answer` gets the sorted records and, for each of them, the summary
    of all earlier machines.
    """

    def __init__(
        self, *, n: int, width: int, keys: Sequence[int], summary: Summary, memory_words: int, seed: int = 0
    ) -> None:
        self.keys, self.summary = keys, summary
        self.sort = plan_sort(n, self._capacity(width, summary.length, memory_words), seed)
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
        """Whether machines with this memory can do it."""
        room = Scan.fits(width=width, length=length, memory_words=memory_words)
        return room and can_sort(n, cls._capacity(width, length, memory_words))

    @property
    def rows(self) -> int:
        """Records per machine."""
        return self.sort.rows

    @property
    def machines(self) -> int:
        """The machines that sort and those of the tree."""
        return self.sort.machines + self.scan.tree.machines

    @property
    def rounds(self) -> int:
        """Those of the sort, twice the depth of the tree, one to answer."""
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
