"""The code that lets a reader take messages apart after attention has averaged them.

The paper's Lemma "message encoding in sparse averaging" (Lemma 3.2 of Sanford, Hsu, Telgarsky 2024). Every sender i
has a set of slots, given by row i of a binary matrix A. It writes its packet into each of them and zeros elsewhere. A
reader gets the average over its c senders. A slot that only one sender wrote holds that packet divided by c.

A packet starts with (1, i, i²). In a slot that m senders wrote, these become (m, Σi, Σi²)/c. By the Cauchy-Schwarz
inequality, m·Σi² > (Σi)² for m > 1 different senders. So every slot tells by itself, whatever c is, whether it was
written once. (The lemma's validity bit alone tells that only if some slot was written once.) One such slot gives c, and
then all sums are integers. The packet is subtracted from its sender's other slots, which may leave one of them with a
single writer, and so on. Anything left at the end is an error; a wrong message is impossible.
"""

from dataclasses import dataclass
from math import ceil, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from annattn.errors import CollisionError

__all__ = ["HEADER", "Decoded", "Reals", "SparseCode", "enough_slots", "lemma_slots", "message_code", "practical_slots"]

Reals = NDArray[np.float64]

HEADER = 3
"""The numbers of a packet before its body: 1, the sender, and the sender's square."""

WEIGHT = 8
"""Slots per sender in a practical code; the decoder peels, so a few are enough."""


def lemma_slots(senders: int, machines: int) -> int:
    """The lemma's ⌈12·α⁴·ln q⌉ slots for α messages in and out per machine: any α² rows of A have slots of their own.

    >>> lemma_slots(2, 16)
    533
    """
    return enough_slots(senders**2, machines)


def enough_slots(senders: int, machines: int) -> int:
    """⌈12·b²·ln q⌉ slots: each of any b of q random rows then has a slot of its own; see docs/compiler.md.

    >>> enough_slots(4, 16)
    533
    """
    return max(1, ceil(12 * senders**2 * log(machines)))


def practical_slots(senders: int, machines: int) -> int:
    """min(q, 4α + 32): one slot per machine, or so many that peeling fails for almost no set of α senders.

    >>> practical_slots(16, 4096), practical_slots(16, 20)
    (96, 20)
    """
    return min(machines, 4 * senders + 32)


@dataclass(frozen=True)
class Decoded:
    """Decoded messages in columns: the reader, the sender, and the body in whole numbers."""

    reader: NDArray[np.int64]
    sender: NDArray[np.int64]
    body: NDArray[np.int64]


class SparseCode:
    """Slots for `machines` senders: one each, a few each drawn from a seed, or the lemma's coin flips.

    >>> code = SparseCode.practical(senders=2, machines=3)
    >>> mean = (code.encode([0], [[7, 8]]) + code.encode([2], [[5, 6]])) / 2
    >>> code.decode(mean, layer=0, head=0).body
    array([[7, 8], [5, 6]])
    """

    def __init__(self, rows: NDArray[np.bool_]) -> None:
        self.machines, self.slots = rows.shape
        self.weight = int(rows.sum(axis=1).max())
        # The slots of each sender; shorter lists are padded with a slot that does not exist.
        order = np.argsort(~rows, axis=1, kind="stable")[:, : self.weight]
        self.of = np.where(np.take_along_axis(rows, order, axis=1), order, self.slots)

    @classmethod
    def practical(cls, senders: int, machines: int, slots: int | None = None, seed: int = 0) -> "SparseCode":
        """A code of `practical_slots` or the given number of slots: one per sender if they suffice, else eight."""
        slots = practical_slots(senders, machines) if slots is None else slots
        if slots >= machines:
            return cls(np.eye(machines, dtype=bool))
        weight, rng = min(WEIGHT, slots), np.random.default_rng(seed)
        rows = np.zeros((machines, slots), bool)
        again = np.arange(machines)
        # Two senders with the same slots could never be told apart, so one of them is drawn again, up to a limit.
        for _ in range(100):
            keys = rng.random((len(again), slots))
            rows[again] = np.argsort(np.argsort(keys, axis=1), axis=1) < weight
            first = np.unique(rows, axis=0, return_index=True)[1]
            again = np.setdiff1d(np.arange(machines), first)
            if len(again) == 0:
                break
        return cls(rows)

    @classmethod
    def lemma(cls, senders: int, machines: int, slots: int, seed: int = 0) -> "SparseCode":
        """The lemma's matrix for sets of `senders` rows: each entry is 1 with probability 1/(senders + 1)."""
        rows = np.random.default_rng(seed).random((machines, slots)) < 1 / (senders + 1)
        rows[~rows.any(axis=1), 0] = True
        return cls(rows)

    def encode(self, sender: Any, body: Any, count: int | None = None, row: Any = None) -> Reals:
        """Value rows, one per sender; or `count` rows, with the senders' values in the rows given by `row`.

        Column f·slots + j is number f of the packet in slot j, so a short body leaves out only trailing columns.
        """
        sender, body = np.asarray(sender, np.int64), np.asarray(body, np.float64)
        row = np.arange(len(sender)) if row is None else row
        packet = np.column_stack([np.ones(len(sender)), sender, sender.astype(np.float64) ** 2, body])
        value = np.zeros((len(sender) if count is None else count, packet.shape[1], self.slots))
        for place in range(self.weight):
            slot = self.of[sender, place]
            real = slot < self.slots
            value[row[real], :, slot[real]] = packet[real]
        return value.reshape(len(value), -1)

    def decode(self, mean: Reals, *, layer: int, head: int) -> Decoded:
        """The messages of every row's senders; CollisionError names a row that cannot be taken apart."""
        numbers = mean.shape[1] // self.slots
        reader = np.flatnonzero(mean[:, : self.slots].any(axis=1))
        share = mean.reshape(len(mean), numbers, self.slots)[reader]
        alone = _written_once(share)
        if not alone.any(axis=1).all():
            token = int(reader[np.argmin(alone.any(axis=1))])
            raise CollisionError(layer=layer, head=head, token=token, detail="no slot was written by one sender alone")
        first = np.argmax(alone, axis=1)
        count = np.rint(1 / share[np.arange(len(share)), 0, first])
        share *= count[:, None, None]
        total = np.zeros((len(share), self.slots + 1, numbers), np.int64)
        total[:, :-1] = np.rint(share).transpose(0, 2, 1)
        if np.abs(share - total[:, :-1].transpose(0, 2, 1)).max(initial=0) > 0.25:
            off = np.abs(share - total[:, :-1].transpose(0, 2, 1)).max(axis=(1, 2)) > 0.25
            token = int(reader[np.argmax(off)])
            raise CollisionError(layer=layer, head=head, token=token, detail="an average of other than whole messages")
        return self._peel(total, reader, layer, head)

    def _peel(self, total: NDArray[np.int64], reader: NDArray[np.int64], layer: int, head: int) -> Decoded:
        found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        left = np.arange(len(total))
        while len(left):
            open_slots = total[left, :-1, 0]
            left = left[open_slots.any(axis=1)]
            alone = total[left, :-1, 0] == 1
            stuck = ~alone.any(axis=1)
            if stuck.any():
                row = left[np.argmax(stuck)]
                detail = "messages of several senders share all their slots; take more slots or another seed"
                raise CollisionError(layer=layer, head=head, token=int(reader[row]), detail=detail)
            slot = np.argmax(alone, axis=1)
            packet = total[left, slot]
            sender = packet[:, 1]
            wrong = (sender < 0) | (sender >= self.machines) | (packet[:, 2] != sender**2)
            wrong |= ~(self.of[np.clip(sender, 0, self.machines - 1)] == slot[:, None]).any(axis=1)
            if wrong.any():
                token = int(reader[left[np.argmax(wrong)]])
                raise CollisionError(layer=layer, head=head, token=token, detail="a message in slots not its sender's")
            found.append((left, packet))
            for place in range(self.weight):
                total[left, self.of[sender, place]] -= packet
            total[left, -1] = 0
        if not found:
            return Decoded(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, total.shape[2] - HEADER), int))
        rows, packets = (np.concatenate(part) for part in zip(*found, strict=True))
        return Decoded(reader[rows], packets[:, 1], packets[:, HEADER:])


def message_code(senders: int, machines: int, mode: str, slots: int | None, seed: int) -> SparseCode:
    """The lemma's code in mode "theorem", else one with as few slots as decode, or with `slots` of them.

    >>> message_code(senders=2, machines=3, mode="practical", slots=None, seed=0).slots
    3
    """
    if mode == "theorem":
        return SparseCode.lemma(senders**2, machines, lemma_slots(senders, machines), seed)
    return SparseCode.practical(senders, machines, slots, seed)


def _written_once(share: Reals) -> NDArray[np.bool_]:
    one, sender, square = share[:, 0], share[:, 1], share[:, 2]
    # Different whole numbers below 2^20 have a variance above 2^-42 times their mean square; rounding is near 2^-50.
    return (one > 0) & (square * one - sender**2 <= 2.0**-46 * square * one)
