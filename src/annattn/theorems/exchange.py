"""A protocol that uses all that its limits allow, to be simulated where only the sizes of a simulation matter."""

from math import gcd

import numpy as np

from annattn.mpc import Limits, Mail, Protocol
from annattn.mpc.model import Numbers, Words
from annattn.mpc.parts.stages import index_within
from annattn.seeds import scramble

__all__ = ["DigitReversal", "Exchange", "full_exchange"]


class Exchange(Protocol):
    """N words on N machines of s words; in every round each machine scrambles its words and sends them to others.

    The h-th word of machine i goes to machine a·i + b mod N, where a, coprime to N, and b are drawn from (seed, round,
    h). Each machine receives at most one such word, so no machine receives more than s words. What a machine sends
    depends on all that it holds, so a single wrong message changes the output.

    >>> from annattn.mpc import run
    >>> output, trace = run(Exchange(8, memory_words=3, rounds=2), range(8))
    >>> len(output), trace.largest_load <= 3
    (8, True)
    """

    def __init__(self, n: int, memory_words: int, rounds: int = 2, seed: int = 0) -> None:
        self.n = self.input_records = n
        self.input_width = 1
        self.rounds, self.seed = rounds, seed
        self.limits = Limits(n, memory_words, word_bits=32)

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """Scramble and send."""
        total = np.zeros(self.n, np.uint64)
        np.add.at(total, mail.dest, mail.words[:, 0])
        words = scramble(mail.words[:, 0] + np.uint64(3) * total[mail.dest], self.seed + 31 * round)
        place = index_within(mail.dest)
        dest = np.empty_like(mail.dest)
        for h in range(int(place.max(initial=-1)) + 1):
            at = place == h
            dest[at] = self._receiver(round, h, mail.dest[at])
        return Mail(dest, mail.dest, words >> np.uint64(32))

    def _receiver(self, round_: int, h: int, machine: Numbers) -> Numbers:
        drawn: Words = scramble(np.arange(2, dtype=np.uint64), (self.seed * 1009 + round_) * 1009 + h) >> np.uint64(33)
        factor, shift = (int(number) % self.n for number in drawn)
        while gcd(factor, self.n) != 1:
            factor += 1
        return (machine * (factor % self.n) + shift) % self.n

    def sample(self, rng: np.random.Generator) -> Words:
        """Random words of 32 bits."""
        return rng.integers(0, 2**32, self.n, dtype=np.uint64)


class DigitReversal(Exchange):
    """All words of machine i go to the machine whose digits in this base are those of i, reversed.

    That is a worst case for routing digit by digit: half-way, the packets of many machines meet on few. Machines beyond
    the largest power of the base send to themselves.

    >>> from annattn.mpc import run
    >>> len(run(DigitReversal(8, memory_words=3, base=2), range(8)).output)
    24
    """

    def __init__(self, n: int, memory_words: int, base: int, rounds: int = 2, seed: int = 0) -> None:
        super().__init__(n, memory_words, rounds, seed)
        self.base = base

    def _receiver(self, round_: int, h: int, machine: Numbers) -> Numbers:
        power, rest, reverse = 1, machine.copy(), np.zeros_like(machine)
        while power * self.base <= self.n:
            power *= self.base
            rest, digit = np.divmod(rest, self.base)
            reverse = reverse * self.base + digit
        return np.where(machine < power, reverse, machine)

    def scatter(self, words: Words) -> Mail:
        """One word per machine, s times: every outbox and every inbox is full from the first round."""
        machine = np.repeat(np.arange(self.n), self.limits.memory_words)
        return Mail(machine, machine, np.repeat(words.reshape(-1, 1), self.limits.memory_words, axis=0))


def full_exchange(n: int, *, epsilon: float, rounds: int, seed: int = 0) -> Exchange:
    """An exchange among N machines of s = N^ε words.

    >>> full_exchange(64, epsilon=1 / 6, rounds=3).limits.memory_words
    2
    """
    return Exchange(n, round(n**epsilon), rounds=rounds, seed=seed)
