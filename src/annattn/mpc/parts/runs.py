"""Summaries of runs of records with equal keys; a run may start on one machine and end on another."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from annattn.mpc.model import Mail, Numbers, Words, real_words, word_reals
from annattn.mpc.parts.tree import Summary

__all__ = ["FirstRecords", "RunSummary", "RunSums", "run_starts"]


def run_starts(mail: Mail, keys: Sequence[int]) -> tuple[Numbers, Numbers]:
    """Where runs of equal keys on one machine start, and the run of each record of sorted mail.

    >>> words = np.array([[4], [4], [6]], dtype=np.uint64)
    >>> run_starts(Mail([0, 0, 0], [0, 0, 0], words), [0])
    (array([0, 2]), array([0, 0, 1]))
    """
    new = np.ones(len(mail), bool)
    new[1:] = mail.dest[1:] != mail.dest[:-1]
    for key in keys:
        new[1:] |= mail.words[1:, key] != mail.words[:-1, key]
    return np.flatnonzero(new), np.cumsum(new) - 1


class RunSummary(Summary):
    """The last run of a machine, for records sorted by their keys: (1, the run's key, what is known about it)."""

    def __init__(self, keys: Sequence[int], body: int) -> None:
        self.keys = list(keys)
        self.key = slice(1, 1 + len(self.keys))
        self.body = slice(1 + len(self.keys), 1 + len(self.keys) + body)
        self.length = 1 + len(self.keys) + body

    @abstractmethod
    def bodies(self, mail: Mail, starts: Numbers) -> Words:
        """What is known about each run from its records on one machine."""

    @abstractmethod
    def merge(self, left: Words, right: Words) -> Words:
        """What is known about runs whose left part is on earlier machines."""

    def of(self, mail: Mail) -> tuple[Numbers, Words]:
        """The last run of each machine."""
        starts, _ = run_starts(mail, self.keys)
        machine = mail.dest[starts]
        last = np.flatnonzero(np.diff(machine, append=-1))
        summary = np.empty((len(last), self.length), np.uint64)
        summary[:, 0] = 1
        summary[:, self.key] = mail.words[starts[last]][:, self.keys]
        summary[:, self.body] = self.bodies(mail, starts)[last]
        return machine[last], summary

    def combine(self, left: Words, right: Words) -> Words:
        """The right run, joined with the left one if both have the same key: in sorted records nothing lies between."""
        present = (left[:, 0] > 0) & (right[:, 0] > 0)
        same = present & (left[:, self.key] == right[:, self.key]).all(axis=1)
        out = np.where(right[:, :1] > 0, right, left)
        out[same, self.body] = self.merge(left[same, self.body], right[same, self.body])
        return out

    def known(self, mail: Mail, carried: Words) -> Words:
        """For each record, what is known about its run from its own machine and all earlier ones."""
        starts, run = run_starts(mail, self.keys)
        bodies = self.bodies(mail, starts)
        before = carried[starts]
        first = np.diff(mail.dest[starts], prepend=-1) != 0
        same = first & (before[:, 0] > 0) & (before[:, self.key] == mail.words[starts][:, self.keys]).all(axis=1)
        bodies[same] = self.merge(before[same, self.body], bodies[same])
        return bodies[run]


class FirstRecords(RunSummary):
    """The first record of each run, without its key."""

    def __init__(self, keys: Sequence[int], columns: Sequence[int]) -> None:
        super().__init__(keys, len(columns))
        self.columns = list(columns)

    def bodies(self, mail: Mail, starts: Numbers) -> Words:
        """The columns of the run's first record."""
        return mail.words[starts][:, self.columns]

    def merge(self, left: Words, right: Words) -> Words:
        """The earlier record."""
        return left


class RunSums(RunSummary):
    """The sums of real columns over each run, added from left to right in float64."""

    def __init__(self, keys: Sequence[int], columns: slice) -> None:
        super().__init__(keys, columns.stop - columns.start)
        self.columns = columns

    def bodies(self, mail: Mail, starts: Numbers) -> Words:
        """The sums over one machine."""
        values = word_reals(mail.words[:, self.columns])
        if len(values) == 0:
            return real_words(values)
        return real_words(np.add.reduceat(values, starts, axis=0))

    def merge(self, left: Words, right: Words) -> Words:
        """Sums of sums."""
        return real_words(word_reals(left) + word_reals(right))
