"""Trying something quickly: a protocol from a plain function of one machine."""

from collections.abc import Callable, Iterable

import numpy as np

from annattn.errors import InputError
from annattn.mpc.model import Limits, Mail, Protocol

__all__ = ["MachineStep", "Message", "PerMachine"]

Message = tuple[int, int | tuple[int, ...]]
MachineStep = Callable[[int, int, list[tuple[int, tuple[int, ...]]]], Iterable[Message]]


class PerMachine(Protocol):
    """A protocol whose step calls `function(round, machine, inbox)` for one machine at a time, in plain Python.

    The inbox is a list of (source, words); the function gives (destination, words) pairs, words an integer or a tuple
    of them, all messages of a round of the same length. Slow, and the same law: every limit is enforced.

    >>> def double(round, machine, inbox):
    ...     return [(machine, 2 * word) for source, (word,) in inbox]
    >>> from annattn.mpc import Limits, run
    >>> run(PerMachine(double, rounds=1, limits=Limits(machines=2, memory_words=2)), [1, 2, 3]).output
    array([2, 4, 6], dtype=uint64)
    """

    def __init__(self, function: MachineStep, *, rounds: int, limits: Limits) -> None:
        self.function, self.rounds, self.limits = function, rounds, limits

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """The function's messages, machine by machine."""
        dest, src, words = [], [], []
        machines, first = np.unique(mail.dest, return_index=True)
        for machine, start, end in zip(machines.tolist(), first, [*first[1:], len(mail)], strict=True):
            inbox = [
                (int(s), tuple(map(int, w))) for s, w in zip(mail.src[start:end], mail.words[start:end], strict=True)
            ]
            for to, message in self.function(round, machine, inbox):
                dest.append(to)
                src.append(machine)
                words.append((message,) if isinstance(message, (int, np.integer)) else tuple(message))
        if len({len(message) for message in words}) > 1:
            lengths = sorted({len(message) for message in words})
            given = f"lengths {lengths} in round {round}"
            raise InputError("messages", given=given, expected="one length a round", hint="fill up with zeros")
        for machine, message in zip(src, words, strict=True):
            if min(message) < 0 or max(message) >= 2**64:
                given = f"{message} from machine {machine} in round {round}"
                raise InputError("message", given=given, expected="integers from 0 to 2^64 - 1")
        width = len(words[0]) if words else 1
        return Mail(dest, src, np.array(words, dtype=np.uint64).reshape(-1, width))
