"""Protocols from a plain Python function of one machine, to try out an idea."""

from collections.abc import Callable, Iterable, Iterator
from operator import index
from typing import Any

import numpy as np

from annattn.errors import InputError
from annattn.mpc.delivery import check_lengths
from annattn.mpc.model import Limits, Mail, Protocol, whole

__all__ = ["MachineStep", "Message", "PerMachine"]

Message = tuple[int, int | tuple[int, ...]]
MachineStep = Callable[[int, int, list[tuple[int, tuple[int, ...]]]], Iterable[Message]]


class PerMachine(Protocol):
    """A protocol whose step calls `function(round, machine, inbox)` for one machine at a time, in plain Python.

    The inbox is a list of (source, words) pairs. The function returns (destination, words) pairs, where words is an
    integer or a tuple of integers; all messages of a round must have the same length. This is slow, but every limit is
    enforced as for any other protocol.

    >>> def double(round, machine, inbox):
    ...     return [(machine, 2 * word) for source, (word,) in inbox]
    >>> from annattn.mpc import Limits, run
    >>> run(PerMachine(double, rounds=1, limits=Limits(machines=2, memory_words=2)), [1, 2, 3]).output
    array([2, 4, 6], dtype=uint64)
    """

    def __init__(self, function: MachineStep, *, rounds: int, limits: Limits) -> None:
        self.function, self.rounds, self.limits = function, whole("rounds", rounds, low=0), limits

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """The function's messages, machine by machine."""
        dest, src, words = [], [], []
        machines, first = np.unique(mail.dest, return_index=True)
        for machine, start, end in zip(machines.tolist(), first, [*first[1:], len(mail)], strict=True):
            inbox = [
                (int(s), tuple(map(int, w))) for s, w in zip(mail.src[start:end], mail.words[start:end], strict=True)
            ]
            for to, message in _messages(round, machine, self.function(round, machine, inbox)):
                dest.append(to)
                src.append(machine)
                words.append(message)
        lengths = {len(message) for message in words}
        check_lengths(round, lengths)
        return Mail(dest, src, np.array(words, dtype=np.uint64).reshape(-1, max(lengths, default=1)))


def _messages(round_: int, machine: int, sent: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """What a machine's function returned, as checked (destination, words) pairs."""
    for message in sent if isinstance(sent, Iterable) else [sent]:
        checked = _message(message)
        if checked is None:
            given = f"{message!r} from machine {machine} in round {round_}"
            expected = "(machine, word) or (machine, tuple of words), words from 0 to 2^64 - 1"
            raise InputError("message", given=given, expected=expected)
        yield checked


def _message(message: Any) -> tuple[int, tuple[int, ...]] | None:
    try:
        to, given = message
        machine, words = (
            index(to),
            tuple(map(index, given if isinstance(given, (tuple, list, np.ndarray)) else [given])),
        )
    except (TypeError, ValueError):
        return None
    fits = len(words) > 0 and min(words) >= 0 and max(words) < 2**64 and abs(machine) < 2**63
    return (machine, words) if fits else None
