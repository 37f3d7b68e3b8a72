"""Few partners: loads near the original's, for patterns made to congest."""

import numpy as np
import pytest

from annattn.errors import InboxError, InputError
from annattn.mpc import Limits, Mail, Protocol, check_sharding, run, with_partners


class Pattern(Protocol):
    """Machine i sends its j-th word, of s, to pattern(i, j)."""

    rounds = 2

    def __init__(self, machines: int, memory_words: int, pattern) -> None:
        self.limits = Limits(machines, memory_words)
        self.pattern = pattern

    def step(self, round, mail):  # noqa: A002
        s = self.limits.memory_words
        slot = np.arange(len(mail)) - np.searchsorted(mail.dest, mail.dest)
        return Mail(self.pattern(mail.dest, slot, s, self.limits.machines), mail.dest, mail.words)


PATTERNS = {
    "everybody to everybody": lambda i, j, s, p: (i + j) % p,
    "all to one neighbour": lambda i, j, s, p: (i + 1) % p,
    "reversal": lambda i, j, s, p: p - 1 - i,
    "transpose": lambda i, j, s, p: (i % 8) * 8 + i // 8,
    "bit reversal": lambda i, j, s, p: np.array([int(f"{x:06b}"[::-1], 2) for x in range(64)])[i],
    "blocks of eight": lambda i, j, s, p: i // 8 * 8 + j % 8,
}


@pytest.mark.slow
@pytest.mark.parametrize("partners", [2, 3, 7, 8, 63])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_loads_stay_near_the_originals_when_every_outbox_and_inbox_is_full(pattern, partners):
    memory = 64
    protocol = Pattern(64, memory, PATTERNS[pattern])
    words = np.arange(64 * memory, dtype=np.uint64)
    thrifty = with_partners(protocol, partners)
    result = run(thrifty, words)
    assert np.array_equal(result.output, run(protocol, words).output)
    # A packet is a word and its header: twice the original's words, and a margin for rounding.
    assert result.trace.largest_load <= 2 * 1.5 * memory


def test_the_rounds_are_those_of_the_formula():
    protocol = Pattern(64, 8, PATTERNS["reversal"])
    assert [with_partners(protocol, k).rounds for k in (1 + 1, 3, 7, 63)] == [2 * 7, 2 * 5, 2 * 3, 2 * 1]


def test_the_rewritten_step_also_minds_its_own_mail():
    check_sharding(with_partners(Pattern(16, 4, PATTERNS["everybody to everybody"]), 3), range(64))


def test_the_original_limits_still_hold():
    greedy = Pattern(16, 4, lambda i, j, s, p: i * 0)
    with pytest.raises(InboxError, match=r"received 64 words, but memory_words allows 4"):
        run(with_partners(greedy, 3, memory_words=1000), range(64))


def test_too_little_memory_is_an_error_not_a_wrong_answer():
    with pytest.raises(InboxError):
        run(with_partners(Pattern(64, 8, PATTERNS["reversal"]), 3, memory_words=16), range(512))


def test_fewer_than_two_partners_are_refused():
    with pytest.raises(InputError, match="partners: got 1"):
        with_partners(Pattern(4, 4, PATTERNS["reversal"]), 1)
