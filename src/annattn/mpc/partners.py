"""Rewriting a protocol so that every machine talks to only a few others per round, for every input.

Definition 3 of Sanford et al. 2024, which the paper uses: (γ, ε, ρ)-MPC with communication capacity k = O(N^ρ). Their
Proposition 24 turns one round into O((1+γ)²/ρ²) rounds. Here it becomes between 2L - 1 and L(L+1)/2 rounds, with
L = ⌈log_(k+1) P⌉ = O((1+γ)/ρ). Nothing is random: `docs/few_partners.md` proves that the loads fit for every input.

Write the number of a machine with L digits in base b ≤ k + 1. A round becomes phases, and a phase puts some digits
right, first to last. Before that it deals: for each digit after the first of the phase, every machine deals its packets
out, in the order of their destinations, among the b machines that differ from it in that digit only. Dealing is even
for each range of destinations, up to one packet per dealing machine. If a phase starts with r digits to go, then after
its correction number i a machine holds at most h + b^(i+1)·(b-1)·(r-1-i) packets, where h is the most that a machine
sends or receives in the original. One digit per phase keeps the excess near b²L packets. More digits per phase take
fewer rounds and more memory, so a phase corrects as many digits as the memory allows.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from annattn.errors import InputError
from annattn.mpc.delivery import check_received, check_sent
from annattn.mpc.model import Mail, Numbers, Protocol, Words, whole
from annattn.mpc.order import order_within
from annattn.mpc.parts.stages import fold, index_within, unfold

__all__ = ["PartneredProtocol", "excess", "plan_phases", "with_partners"]


def with_partners(protocol: Protocol, partners: int, *, memory_words: int | None = None) -> "PartneredProtocol":
    """The same protocol, in which a machine sends to and hears from at most `partners` others per round.

    A packet is a piece of a message and a header of one or two words: where it goes, where it comes from, its number
    and the width of its message. By default the memory is three times the protocol's (four for headers of two words),
    or as much as phases of one digit need if s is less than about 2k²L. With more memory there are fewer rounds. Less
    than is needed is refused.

    >>> from annattn.mpc import run
    >>> from annattn.mpc.protocols import Sum
    >>> thrifty = with_partners(Sum(n=9, memory_words=3), partners=2)
    >>> int(run(thrifty, range(9)).output), thrifty.limits.partners
    (36, 2)
    """
    return PartneredProtocol(protocol, whole("partners", partners, low=2), memory_words)


def excess(base: int, remaining: int, corrected: int) -> int:
    """The most packets above h that a machine holds in a phase: `remaining` digits to go, `corrected` put right.

    Besides the corrections, it covers the dealings of the next phase, each of which adds at most b - 1 packets.

    >>> excess(8, remaining=2, corrected=2), excess(3, remaining=3, corrected=1)
    (56, 14)
    """
    after = [base ** (i + 1) * (base - 1) * (remaining - 1 - i) for i in range(corrected)]
    dealt = (base - 1) * max(0, remaining - corrected - 1)
    return max(*after, after[-1] + dealt)


@lru_cache(maxsize=4096)
def plan_phases(base: int, digits: int, spare: int) -> tuple[int, ...]:
    """The digits per phase that take the fewest rounds with an excess of at most `spare` packets.

    A phase with r digits to go that corrects g of them takes r - 1 + g rounds. Phases of one digit are always allowed.

    >>> plan_phases(3, 4, spare=0), plan_phases(3, 4, spare=60)
    ((1, 1, 1, 1), (4,))
    """
    if digits == 0:
        return ()
    best: tuple[int, ...] = ()
    for corrected in range(1, digits + 1):
        if corrected == 1 or excess(base, digits, corrected) <= spare:
            plan = (corrected, *plan_phases(base, digits - corrected, spare))
            if not best or _hops(plan) <= _hops(best):
                best = plan
    return best


def _hops(phases: tuple[int, ...]) -> int:
    return sum(sum(phases[i:]) - 1 + corrected for i, corrected in enumerate(phases))


def _largest_excess(base: int, phases: tuple[int, ...]) -> int:
    return max(excess(base, sum(phases[i:]), corrected) for i, corrected in enumerate(phases))


class PartneredProtocol(Protocol):
    """What `with_partners` returns: R rounds become R·hops rounds, with hops from 2L - 1 to L(L+1)/2."""

    def __init__(self, protocol: Protocol, partners: int, memory_words: int | None) -> None:
        self.protocol = protocol
        self.input_records, self.input_width = protocol.input_records, protocol.input_width
        limits = protocol.limits
        self.digits = 1
        # A machine deals to itself and to b - 1 others, so b may be one more than the number of partners.
        while (partners + 1) ** self.digits < limits.machines:
            self.digits += 1
        self.base = 1
        while self.base**self.digits < limits.machines:
            self.base += 1
        self.machines = self.base**self.digits
        self.machine_bits = max(1, (self.machines - 1).bit_length())
        self.number_bits = limits.memory_words.bit_length()
        self.header = 1 if 2 * (self.machine_bits + self.number_bits) <= 64 else 2
        spare = self._spare_words(memory_words)
        self.phases = plan_phases(self.base, self.digits, spare // (1 + self.header))
        self.excess = _largest_excess(self.base, self.phases)
        # The longest pieces whose excess still fits: longer pieces are fewer packets to move.
        self.piece = limits.memory_words
        if self.excess:
            self.piece = max(1, min(self.piece, spare // self.excess - self.header))
        memory = (1 + self.header) * limits.memory_words + spare
        bits = max(limits.word_bits, (2 if self.header == 1 else 1) * (self.machine_bits + self.number_bits))
        self.limits = replace(limits, machines=self.machines, memory_words=memory, word_bits=bits, partners=partners)
        # What each hop does: (True, digit) deals a digit out, (False, digit) puts it right.
        self.schedule: list[tuple[bool, int]] = []
        done = 0
        for corrected in self.phases:
            self.schedule += [(True, digit) for digit in range(done + 1, self.digits)]
            self.schedule += [(False, digit) for digit in range(done, done + corrected)]
            done += corrected
        self.rounds = protocol.rounds * len(self.schedule)

    def _spare_words(self, memory_words: int | None) -> int:
        """The memory for packets that are dealt unevenly, besides (1 + header)·s words for evenly dealt ones."""
        s = self.protocol.limits.memory_words
        needed = (1 + self.header) * _largest_excess(self.base, (1,) * self.digits)
        if memory_words is None:
            return max(s, needed)
        spare = whole("memory_words", memory_words) - (1 + self.header) * s
        if spare < needed:
            raise InputError(
                "memory_words",
                given=memory_words,
                expected=f"at least {(1 + self.header) * s + needed} for {self.base - 1} partners",
            )
        return spare

    def scatter(self, words: Words) -> Mail:
        """As in the original protocol."""
        return self.protocol.scatter(words)

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """As in the original protocol."""
        return self.protocol.scatter_part(words, first, records)

    @property
    def takes_parts(self) -> bool:
        """As in the original protocol."""
        return self.protocol.takes_parts

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """The original protocol's step at the first hop; after that, packets move on."""
        turn, hop = divmod(round, len(self.schedule))
        if hop == 0:
            sent = self.protocol.step(turn, self._arrived(turn, mail))
            check_sent(turn, sent, self.protocol.limits, None)
            mail = self._packed(sent)
            at, dest = mail.src, mail.dest
        else:
            at, dest = mail.dest, self._destination(mail.words)
        deals, digit = self.schedule[hop]
        return (self._deal if deals else self._correct)(at, dest, mail.words, digit)

    def _deal(self, at: Numbers, dest: Numbers, words: Words, digit: int) -> Mail:
        order = np.lexsort([dest, at])
        at, words = at[order], words[order]
        # Any start would do for the proof. Starting with itself, each machine of a line starts with another one.
        to = (index_within(at) + at // self._weight(digit)) % self.base
        return Mail(self._with_digit(at, digit, to), at, words)

    def _correct(self, at: Numbers, dest: Numbers, words: Words, digit: int) -> Mail:
        return Mail(self._with_digit(at, digit, dest // self._weight(digit) % self.base), at, words)

    def _weight(self, digit: int) -> int:
        """The place value of a digit. Digit 0 is the highest, so machines of one range share their first digits."""
        return self.base ** (self.digits - 1 - digit)

    def _with_digit(self, machine: Numbers, digit: int, value: Numbers) -> Numbers:
        weight = self._weight(digit)
        return machine + (value - machine // weight % self.base) * weight

    def _packed(self, mail: Mail) -> Mail:
        """Each record in pieces, each with its header: destination, source, width, number among the sender's pieces."""
        mail = mail.take(np.argsort(mail.src, kind="stable"))
        piece = min(self.piece, mail.width)
        pieces = -(-mail.width // piece)
        dest, src = np.repeat(mail.dest, pieces), np.repeat(mail.src, pieces)
        number = index_within(src).astype(np.uint64)
        origin = self._pair(src.astype(np.uint64), number)
        target = self._pair(dest.astype(np.uint64), np.full(len(dest), mail.width, np.uint64))
        head = [target, origin]
        if self.header == 1:
            head = [(target << np.uint64(self.machine_bits + self.number_bits)) | origin]
        return Mail(dest, src, np.column_stack([*head, fold(mail.words, piece)]))

    def _pair(self, machine: Words, number: Words) -> Words:
        return (machine << np.uint64(self.number_bits)) | number

    def _unpair(self, pair: Words) -> tuple[Numbers, Numbers]:
        number = pair & np.uint64(2**self.number_bits - 1)
        return (pair >> np.uint64(self.number_bits)).astype(np.int64), number.astype(np.int64)

    def _headers(self, words: Words) -> tuple[Words, Words]:
        """The pairs (destination, width) and (source, number)."""
        if self.header == 2:
            return words[:, 0], words[:, 1]
        bits = self.machine_bits + self.number_bits
        return words[:, 0] >> np.uint64(bits), words[:, 0] & np.uint64(2**bits - 1)

    def _destination(self, words: Words) -> Numbers:
        return self._unpair(self._headers(words)[0])[0]

    def _arrived(self, turn: int, mail: Mail) -> Mail:
        """The mail as the original protocol would have received it."""
        if turn == 0 or len(mail) == 0:
            return mail
        target, origin = self._headers(mail.words)
        order = order_within(mail.dest, [origin])
        # All records of a round have the same width, so the first header speaks for all.
        width = int(self._unpair(target[:1])[1][0])
        pieces = -(-width // min(self.piece, width))
        first = order[::pieces]
        words = unfold(mail.words[order, self.header :], width)
        arrived = Mail(mail.dest[first], self._unpair(origin[first])[0], words)
        check_received(turn - 1, arrived, self.protocol.limits)
        return arrived

    def gather(self, mail: Mail) -> Any:
        """As in the original protocol."""
        return self.protocol.gather(self._arrived(self.protocol.rounds, mail))

    def gather_part(self, mail: Mail) -> Any:
        """As in the original protocol."""
        return self.protocol.gather_part(self._arrived(self.protocol.rounds, mail))

    @property
    def gives_parts(self) -> bool:
        """As in the original protocol."""
        return self.protocol.gives_parts

    def round_formula(self) -> int:
        """R·Σ(r - 1 + g) over the phases, where a phase with r digits to go corrects g of them."""
        return self.protocol.rounds * _hops(self.phases)
