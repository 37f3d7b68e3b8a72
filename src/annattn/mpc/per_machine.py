"""Protocols from a plain Python function of one machine, to try out an idea."""

from collections.abc import Callable, Iterable, Iterator
from operator import index
from typing import Any

import numpy as np

from annattn.errors import InputError
from annattn.mpc.delivery import check_lengths
from annattn.mpc.model import Limits, Mail, Protocol, Words, whole

__all__ = ["Inbox", "MachineStep", "Message", "PerMachine"]

Message = tuple[int, int | tuple[int, ...]]
Inbox = list[tuple[int, tuple[int, ...]]]
MachineStep = Callable[[int, int, Inbox], Iterable[Message]]


class PerMachine(Protocol):
    """A protocol whose step calls `function(round, machine, inbox)` for one machine at a time, in plain Python.

    The inbox is a list of (source, words) pairs. The function returns (destination, words) pairs, where words is an
    integer or a tuple of integers; all messages of a round must have the same length. This is slow, but every limit is
    enforced as for any other protocol.

    Args:
        function: what one machine does in one round.
        rounds: R.
        limits: machines and their memory.
        scatter: a function of all input records, each a tuple of words, that says as (machine, words) pairs where the
            input goes. By default it goes evenly over the first ⌈N/s⌉ machines.
        gather: a function of the last inboxes, a dict from machine to inbox, that returns the output. By default the
            output is every word, machine by machine.
        input_width: the words of an input record, if only one number of them makes sense.

    >>> def double(round, machine, inbox):
    ...     return [(machine, 2 * word) for source, (word,) in inbox]
    >>> from annattn.mpc import Limits, run
    >>> run(PerMachine(double, rounds=1, limits=Limits(machines=2, memory_words=2)), [1, 2, 3]).output
    array([2, 4, 6], dtype=uint64)

    With records of several words, placed and read as the protocol likes:

    >>> def add(round, machine, inbox):
    ...     return [(machine, (key, number + 1)) for source, (key, number) in inbox]
    >>> counts = PerMachine(
    ...     add, rounds=1, limits=Limits(machines=3, memory_words=4), input_width=2,
    ...     scatter=lambda records: [(key % 3, (key, number)) for key, number in records],
    ...     gather=lambda inboxes: {key: number for inbox in inboxes.values() for _, (key, number) in inbox},
    ... )
    >>> run(counts, [[7, 10], [2, 20]]).output
    {7: 11, 2: 21}
    """

    def __init__(
        self,
        function: MachineStep,
        *,
        rounds: int,
        limits: Limits,
        scatter: Callable[[list[tuple[int, ...]]], Iterable[Message]] | None = None,
        gather: Callable[[dict[int, Inbox]], Any] | None = None,
        input_width: int | None = None,
    ) -> None:
        self.function, self.rounds, self.limits = function, whole("rounds", rounds, low=0), limits
        self.place, self.read = scatter, gather
        self.input_width = None if input_width is None else whole("input_width", input_width)

    def scatter(self, words: Words) -> Mail:
        """Where the input goes: as the given function says, else evenly over the first machines."""
        if self.place is None:
            return super().scatter(words)
        records = [tuple(map(int, row)) for row in words.reshape(len(words), -1)]
        placed = list(_messages("in the input", self.place(records)))
        lengths = {len(message) for _, message in placed}
        check_lengths(-1, lengths)
        machines = [machine for machine, _ in placed]
        return Mail(machines, machines, _block([message for _, message in placed], lengths))

    @property
    def takes_parts(self) -> bool:
        """Unless a function places the input, which sees all of it."""
        return self.place is None

    def gather(self, mail: Mail) -> Any:
        """The output: what the given function makes of the inboxes, else every word."""
        return super().gather(mail) if self.read is None else self.read(dict(_inboxes(mail)))

    @property
    def gives_parts(self) -> bool:
        """Unless a function reads the output, which sees all inboxes."""
        return self.read is None

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """The function's messages, machine by machine."""
        dest, src, words = [], [], []
        for machine, inbox in _inboxes(mail):
            where = f"from machine {machine} in round {round}"
            for to, message in _messages(where, self.function(round, machine, inbox)):
                dest.append(to)
                src.append(machine)
                words.append(message)
        lengths = {len(message) for message in words}
        check_lengths(round, lengths)
        return Mail(dest, src, _block(words, lengths))


def _inboxes(mail: Mail) -> Iterator[tuple[int, Inbox]]:
    """The machines that have mail, and their (source, words) pairs."""
    machines, first = np.unique(mail.dest, return_index=True)
    for machine, start, end in zip(machines.tolist(), first, [*first, len(mail)][1:], strict=True):
        pairs = zip(mail.src[start:end].tolist(), mail.words[start:end].tolist(), strict=True)
        yield machine, [(source, tuple(words)) for source, words in pairs]


def _block(words: list[tuple[int, ...]], lengths: set[int]) -> Words:
    return np.array(words, dtype=np.uint64).reshape(-1, max(lengths, default=1))


def _messages(where: str, sent: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """What a function returned, as checked (machine, words) pairs."""
    for message in sent if isinstance(sent, Iterable) else [sent]:
        checked = _message(message)
        if checked is None:
            given = f"{message!r} {where}"
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
