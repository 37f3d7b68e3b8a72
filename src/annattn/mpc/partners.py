"""Rewriting a protocol so that every machine talks to only a few others per round.

Definition 3 of Sanford et al. 2024, which the paper uses: (γ, ε, ρ)-MPC with communication capacity k = O(N^ρ). Their
Proposition 24 turns one round into O((1+γ)²/ρ²) rounds. Here it becomes 2L - 1 rounds with L = ⌈log_(k+1) P⌉ =
O((1+γ)/ρ).

Write the number of a machine with L digits in base b ≤ k + 1. One round becomes L - 1 dealing rounds and L correcting
rounds. In a dealing round each machine deals its packets out among the b machines that differ from it in at most one
digit: the second, then the third, and so on. In a correcting round one digit after the other is put right, first to
last. Packets are dealt in the order of their destinations, from a starting point hashed from (seed, round, machine). So
the packets for any range of machines are spread evenly over all values of the dealt digits. When the first j digits are
right, at most s·b^(L-j) words are bound for the machines with those digits, and a machine holds its share of them,
1/b^(L-j): about s words, as before. It is "about" because of rounding. Dealing may be off by one packet for each range
of destinations, so the memory has a margin.

Loads are checked in every round, as for any protocol, and the limits of the original protocol in its own rounds. A seed
for which they do not fit is an error, never a wrong answer.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from annattn.mpc.delivery import check_received, check_sent
from annattn.mpc.model import Mail, Numbers, Protocol, Words, whole
from annattn.mpc.order import order_within
from annattn.mpc.parts.stages import index_within
from annattn.seeds import scramble

__all__ = ["PartneredProtocol", "with_partners"]


def with_partners(
    protocol: Protocol, partners: int, *, memory_words: int | None = None, seed: int = 0
) -> "PartneredProtocol":
    """The same protocol, in which a machine sends to and hears from at most `partners` others per round.

    A packet is a message and a header of one or two words: where it goes, where it comes from, and its number. By
    default the memory is three times the protocol's, and a little more for each digit.

    >>> from annattn.mpc import run
    >>> from annattn.mpc.protocols import Sum
    >>> thrifty = with_partners(Sum(n=9, memory_words=3), partners=2)
    >>> int(run(thrifty, range(9)).output), thrifty.limits.partners
    (36, 2)
    """
    return PartneredProtocol(protocol, whole("partners", partners, low=2), memory_words, seed)


class PartneredProtocol(Protocol):
    """What `with_partners` returns: a protocol of R·(2⌈log_(k+1) P⌉ - 1) rounds."""

    def __init__(self, protocol: Protocol, partners: int, memory_words: int | None, seed: int) -> None:
        self.protocol, self.seed = protocol, seed
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
        self.number_bits = max(1, (limits.memory_words - 1).bit_length())
        self.header = 1 if 2 * self.machine_bits + self.number_bits <= 64 else 2
        if memory_words is None:
            memory_words = 3 * limits.memory_words + 16 * (self.header + 1) * self.digits
        bits = max(limits.word_bits, self._header_bits())
        self.limits = replace(
            limits, machines=self.machines, memory_words=memory_words, word_bits=bits, partners=partners
        )
        self.hops = 2 * self.digits - 1
        self.rounds = protocol.rounds * self.hops

    def _header_bits(self) -> int:
        if self.header == 1:
            return 2 * self.machine_bits + self.number_bits
        return max(self.machine_bits, self.machine_bits + self.number_bits)

    def scatter(self, words: Words) -> Mail:
        """As in the original protocol."""
        return self.protocol.scatter(words)

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """The original protocol's step at the first hop; after that, packets move on."""
        turn, hop = divmod(round, self.hops)
        if hop == 0:
            sent = self.protocol.step(turn, self._arrived(turn, mail))
            check_sent(turn, sent, self.protocol.limits, None)
            mail = self._packed(sent)
            at, dest = mail.src, mail.dest
        else:
            at, dest = mail.dest, self._destination(mail.words)
        if hop < self.digits - 1:
            return self._deal(round, at, dest, mail.words, digit=hop + 1)
        return self._correct(at, dest, mail.words, digit=hop - (self.digits - 1))

    def _deal(self, round_: int, at: Numbers, dest: Numbers, words: Words, digit: int) -> Mail:
        order = np.lexsort([dest, at])
        at, words = at[order], words[order]
        start = scramble(at.astype(np.uint64), self.seed * 1_000_003 + round_) % np.uint64(self.base)
        to = (index_within(at) + start.astype(np.int64)) % self.base
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
        """Each record with its header: destination, source and its number among the sender's records."""
        order = np.argsort(mail.src, kind="stable")
        mail = mail.take(order)
        number = index_within(mail.src).astype(np.uint64)
        dest, src = mail.dest.astype(np.uint64), mail.src.astype(np.uint64)
        origin = (src << np.uint64(self.number_bits)) | number
        if self.header == 1:
            head = [(dest << np.uint64(self.machine_bits + self.number_bits)) | origin]
        else:
            head = [dest, origin]
        return Mail(mail.dest, mail.src, np.column_stack([*head, mail.words]))

    def _destination(self, words: Words) -> Numbers:
        shift = self.machine_bits + self.number_bits if self.header == 1 else 0
        return (words[:, 0] >> np.uint64(shift)).astype(np.int64)

    def _arrived(self, turn: int, mail: Mail) -> Mail:
        """The mail as the original protocol would have received it."""
        if turn == 0 or len(mail) == 0:
            return mail
        origin = mail.words[:, self.header - 1]
        if self.header == 1:
            origin = origin & np.uint64(2 ** (self.machine_bits + self.number_bits) - 1)
        order = order_within(mail.dest, [origin])
        src = (origin[order] >> np.uint64(self.number_bits)).astype(np.int64)
        arrived = Mail(mail.dest[order], src, mail.words[order, self.header :])
        check_received(turn - 1, arrived, self.protocol.limits)
        return arrived

    def gather(self, mail: Mail) -> Any:
        """As in the original protocol."""
        return self.protocol.gather(self._arrived(self.protocol.rounds, mail))

    def round_formula(self) -> int:
        """R·(2⌈log_(k+1) P⌉ - 1)."""
        limits = self.protocol.limits
        digits = 1
        while (1 + (self.limits.partners or 0)) ** digits < limits.machines:
            digits += 1
        return self.protocol.rounds * (2 * digits - 1)
