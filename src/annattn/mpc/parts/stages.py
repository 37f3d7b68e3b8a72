"""Protocols that are stages in a row, and small tools for mail."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from annattn.mpc.model import Mail, Numbers, Protocol, Words
from annattn.mpc.order import order_within

__all__ = [
    "Stage",
    "Staged",
    "Step",
    "fold",
    "in_order",
    "index_within",
    "join_mail",
    "least_memory",
    "to_self",
    "unfold",
]

Step = Callable[[int, Mail], Mail]


class Stage(NamedTuple):
    """Some rounds of a protocol: `step(i, mail)` is round i of the stage, counted from 0."""

    rounds: int
    step: Step


class Staged(Protocol):
    """A protocol that runs its stages one after the other; each gets the mail that the one before it sent."""

    stages: tuple[Stage, ...]

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """The rounds of all stages together."""
        return sum(stage.rounds for stage in self.stages)

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """The step of the stage that this round belongs to."""
        i = round
        for stage in self.stages:
            if i < stage.rounds:
                return stage.step(i, mail)
            i -= stage.rounds
        raise IndexError(f"round {round} of {self.rounds}")


def index_within(machine: Numbers) -> Numbers:
    """The index of each record within its machine's inbox, or of each entry within its run of equal numbers.

    >>> index_within(np.array([0, 0, 4, 4, 4]))
    array([0, 1, 0, 1, 2])
    """
    if len(machine) == 0:
        return np.zeros(0, np.int64)
    first = np.flatnonzero(np.diff(machine, prepend=machine[0] - 1))
    count = np.diff(first, append=len(machine))
    return np.arange(len(machine)) - np.repeat(first, count)


def in_order(mail: Mail, keys: Sequence[int]) -> Mail:
    """The same mail with each machine's records sorted by the key columns."""
    return mail.take(order_within(mail.dest, [mail.words[:, key] for key in keys]))


def to_self(mail: Mail, words: Words) -> Mail:
    """What machines send to keep these words, one record for each record of their mail."""
    return Mail(mail.dest, mail.dest, words)


def join_mail(*parts: Mail) -> Mail:
    """Mail of equal width as one; a sender's records keep the order of the parts. Empty parts may have any width.

    >>> join_mail(Mail([0], [1], [[5]]), Mail([2], [1], [[6]])).words.ravel()
    array([5, 6], dtype=uint64)
    """
    full = [part for part in parts if len(part)] or [parts[0]]
    if len(full) == 1:
        return full[0]
    return Mail(
        np.concatenate([part.dest for part in full]),
        np.concatenate([part.src for part in full]),
        np.concatenate([part.words for part in full]),
    )


def fold(rows: Words, width: int) -> Words:
    """Rows of any length as records of `width` words, ⌈length / width⌉ per row, the last one padded with zeros.

    >>> fold(np.array([[1, 2, 3]], dtype=np.uint64), 2)
    array([[1, 2], [3, 0]], dtype=uint64)
    """
    records = -(-rows.shape[1] // width)
    padded = np.zeros((len(rows), records * width), np.uint64)
    padded[:, : rows.shape[1]] = rows
    return padded.reshape(-1, width)


def unfold(records: Words, length: int) -> Words:
    """The rows that `fold` cut up.

    >>> unfold(np.array([[1, 2], [3, 0]], dtype=np.uint64), 3)
    array([[1, 2, 3]], dtype=uint64)
    """
    width = records.shape[1]
    return records.reshape(-1, -(-length // width) * width)[:, :length]


def least_memory(fits: Callable[[int], bool]) -> int:
    """The smallest number of words that fits, for a condition that stays true for all larger numbers.

    >>> least_memory(lambda words: words * words >= 50)
    8
    """
    high = 1
    while not fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
