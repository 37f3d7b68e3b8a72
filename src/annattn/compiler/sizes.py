"""Sizes of a compiled protocol by formula, known before anything is built."""

from dataclasses import dataclass

from annattn.compiler.memory import MachineRows
from annattn.compiler.route import packet_width
from annattn.compiler.sparse_code import enough_slots, lemma_slots, practical_slots
from annattn.mpc.model import Limits

__all__ = ["ValueWidths", "senders_per_head", "value_widths"]


@dataclass(frozen=True)
class ValueWidths:
    """The width of the values that carry messages: as built, as in the lemma (α⁴Δ log q), and α²Δ log q."""

    built: int
    lemma: int
    square: int


def senders_per_head(limits: Limits) -> int:
    """The paper's α, the number of heads and the most messages averaged in one: min(s, q), or k + 1 if that is less.

    >>> senders_per_head(Limits(machines=100, memory_words=16)), senders_per_head(Limits(100, 16, partners=3))
    (16, 4)
    """
    most = min(limits.memory_words, limits.machines)
    return most if limits.partners is None else min(most, limits.partners + 1)


def value_widths(limits: Limits, mode: str = "practical", slots: int | None = None) -> ValueWidths:
    """Slots times Δ, for the code that is built and for the lemma's two numbers of slots.

    >>> value_widths(Limits(machines=64, memory_words=4, word_bits=32))
    ValueWidths(built=480, lemma=127770, square=7990)
    """
    senders, packet = senders_per_head(limits), packet_width(MachineRows(limits))
    lemma, square = lemma_slots(senders, limits.machines), enough_slots(senders, limits.machines)
    built = lemma if mode == "theorem" else min(slots or practical_slots(senders, limits.machines), limits.machines)
    return ValueWidths(built * packet, lemma * packet, square * packet)
