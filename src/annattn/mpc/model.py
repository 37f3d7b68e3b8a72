"""The model of massively parallel computation: limits, mail, protocols (the paper's Definition "MPC")."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.errors import InputError
from annattn.mpc.trace import RoundLoad, Trace

__all__ = [
    "Limits",
    "Mail",
    "Numbers",
    "Progress",
    "Protocol",
    "Result",
    "Words",
    "as_words",
    "check_input",
    "check_protocol",
    "check_shape",
    "real_words",
    "spread",
    "whole",
    "word_reals",
]

Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]


def whole(name: str, value: Any, low: int = 1, high: int | None = None) -> int:
    """The value as a Python integer; refused unless it is whole and lies between `low` and `high`.

    >>> whole("k", np.int8(3))
    3
    """
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        expected = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
        raise InputError(name, given=repr(value) if number is None else number, expected=expected)
    return number


@dataclass(frozen=True)
class Limits:
    """The limits of a protocol: P machines, s words of p bits per machine, and at most `partners` partners per round.

    >>> Limits(machines=4, memory_words=16)
    Limits(machines=4, memory_words=16, word_bits=64, partners=None)
    """

    machines: int
    memory_words: int
    word_bits: int = 64
    partners: int | None = None

    def __post_init__(self) -> None:
        for name, high in (("machines", 2**62), ("memory_words", 2**62), ("word_bits", 64), ("partners", None)):
            value = getattr(self, name)
            if name != "partners" or value is not None:
                object.__setattr__(self, name, whole(name, value, high=high))

    @property
    def largest_word(self) -> int:
        """The largest word of p bits, 2^p - 1."""
        return 2**self.word_bits - 1


@dataclass(frozen=True, eq=False)
class Mail:
    """The mail of many machines in columns: record i goes from machine src[i] to machine dest[i] and holds words[i].

    All records of one mail have the same number of words, the mail's width. A record of width w costs w words of the
    sender's memory and w words of the receiver's. The envelope (dest, src) costs nothing. An engine passes mail to a
    step ordered by (dest, src); records from one sender to one receiver stay in the order of sending.

    >>> mail = Mail(dest=[1, 0], src=[0, 0], words=[[7], [8]])
    >>> mail.width, len(mail)
    (1, 2)
    """

    dest: Numbers
    src: Numbers
    words: Words

    def __init__(self, dest: ArrayLike, src: ArrayLike, words: ArrayLike) -> None:
        columns = {"dest": _machine_numbers("dest", dest), "src": _machine_numbers("src", src)}
        block = as_words(words)
        if block.ndim == 1:
            block = block[:, None]
        for name, column in columns.items():
            if column.shape != block.shape[:1]:
                expected = f"one machine number for each of the {len(block)} records"
                raise InputError(f"Mail.{name}", given=f"shape {column.shape}", expected=expected)
        if block.ndim != 2 or block.shape[1] < 1:
            raise InputError("Mail.words", given=f"shape {block.shape}", expected="(records, width), width at least 1")
        object.__setattr__(self, "dest", columns["dest"])
        object.__setattr__(self, "src", columns["src"])
        object.__setattr__(self, "words", block)

    def __len__(self) -> int:
        return len(self.dest)

    @property
    def width(self) -> int:
        """Words in each record."""
        return self.words.shape[1]

    def take(self, index: NDArray[Any]) -> "Mail":
        """The records at the given positions, or those where a mask is true."""
        if index.dtype == bool:
            index = np.flatnonzero(index)
        return Mail(self.dest[index], self.src[index], np.take(self.words, index, axis=0))

    def copy(self) -> "Mail":
        """The same mail in memory of its own: a step may write on the mail it gets."""
        return Mail(self.dest.copy(), self.src.copy(), self.words.copy())


def _machine_numbers(name: str, values: ArrayLike) -> Numbers:
    given = np.asarray(values)
    if given.dtype == np.int64:
        return given
    if given.size == 0:
        return given.astype(np.int64)
    if given.dtype.kind not in "iu" or (given.dtype == np.uint64 and int(given.max()) >= 2**63):
        raise InputError(f"Mail.{name}", given=f"{given.dtype} {given.flat[0]} …", expected="integers below 2^63")
    return given.astype(np.int64)


def as_words(values: ArrayLike) -> Words:
    """Integers as words. Negative numbers and fractions are refused; nothing is wrapped or clipped.

    >>> as_words([1, 2])
    array([1, 2], dtype=uint64)
    """
    expected = "non-negative integers below 2^64"
    try:
        given = np.asarray(values)
    except ValueError:
        raise InputError("words", given="rows of different lengths", expected="rows of one length") from None
    if given.dtype == np.uint64:
        return given
    if given.size == 0:
        return given.astype(np.uint64)
    if given.dtype.kind not in "iub":
        hint = "real values travel as bit patterns: see annattn.mpc.real_words" if given.dtype.kind == "f" else ""
        raise InputError("words", given=f"an array of {given.dtype}", expected=expected, hint=hint)
    if given.dtype.kind == "i" and given.min() < 0:
        raise InputError("words", given=int(given.min()), expected=expected)
    return given.astype(np.uint64)


def real_words(values: ArrayLike) -> Words:
    """Real numbers as words: the bit pattern of each float64, so that nothing is rounded.

    >>> int(real_words([1.0])[0]) == 0x3FF0000000000000
    True
    """
    given = np.asarray(values)
    if given.dtype.kind not in "fiub":
        raise InputError("values", given=f"an array of {given.dtype}", expected="real numbers")
    return np.ascontiguousarray(given, dtype=np.float64).view(np.uint64)


def word_reals(words: ArrayLike) -> NDArray[np.float64]:
    """The float64 numbers whose bit patterns these words are: the inverse of `real_words`.

    >>> word_reals(real_words([0.1, -2.5]))
    array([ 0.1, -2.5])
    """
    return np.ascontiguousarray(as_words(words)).view(np.float64)


class Protocol(ABC):
    """An R-round protocol: where the input goes, what a machine does in a round, and how the output is read.

    A machine keeps nothing but its mail. To remember something, it mails that to itself. `step` is a pure function,
    vectorised over machines. Each machine may look only at its own mail; `check_sharding` tests that.
    """

    limits: Limits
    rounds: int
    input_records: int | None = None
    """The number of records an input must have, or None for any number."""
    input_width: int | None = None
    """The number of words each record must have, or None for any number."""

    def scatter(self, words: Words) -> Mail:
        """The input as the machines hold it before round 0: `scatter_part` of all of it.

        A protocol that has to see its whole input to place it overrides this method instead of `scatter_part`.
        """
        return self.scatter_part(words, 0, len(words))

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """Where the records number `first`, `first` + 1 … of an input of `records` go.

        By default they go evenly over the first ⌈N/s⌉ machines. Engines that read an input in parts call this per part.
        """
        rows = words if words.ndim == 2 else words[:, None]
        held = max(1, self.limits.memory_words // rows.shape[1])
        machines = max(1, -(-records // held))
        return spread(rows, -(-records // machines), first)

    @abstractmethod
    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """What the machines that received `mail` send in round 0 … R-1."""

    def gather(self, mail: Mail) -> Any:
        """The output, read from the mail of the last round: `gather_part` of all of it.

        A protocol whose output is not that of its machines one after the other overrides this instead of `gather_part`.
        """
        return self.gather_part(mail)

    def gather_part(self, mail: Mail) -> Any:
        """The part of the output that some neighbouring machines hold: by default every word, machine by machine.

        The parts of all machines, joined in the order of the machines, are the output. Engines whose machines run in
        several places call this per place.
        """
        return mail.words[:, 0] if mail.width == 1 else mail.words

    @property
    def takes_parts(self) -> bool:
        """Whether the input can be placed part by part: `scatter_part` says all there is to know."""
        return type(self).scatter is Protocol.scatter

    @property
    def gives_parts(self) -> bool:
        """Whether the output can be read part by part: `gather_part` says all there is to know."""
        return type(self).gather is Protocol.gather


def spread(rows: Words, held: int, first: int = 0) -> Mail:
    """Rows placed on machines in order, `held` rows per machine; `first` rows come before these.

    >>> spread(np.arange(3, dtype=np.uint64)[:, None], 2).dest
    array([0, 0, 1])
    """
    machine = np.arange(first, first + len(rows), dtype=np.int64) // max(1, held)
    return Mail(machine, machine, rows)


class Result(NamedTuple):
    """The result of a run: the protocol's output and the trace of its loads."""

    output: Any
    trace: Trace


Progress = Callable[[RoundLoad, int], None]
"""Called after every round with its load and the number of all rounds."""


def check_input(protocol: Protocol, words: ArrayLike) -> Words:
    """The input as words; refused unless it has the size the protocol was made for."""
    check_protocol(protocol)
    block = as_words(words)
    if block.ndim not in (1, 2):
        raise InputError("words", given=f"shape {block.shape}", expected="one word, or one row of words, per record")
    check_shape(protocol, len(block), block.shape[1] if block.ndim == 2 else 1)
    return block


def check_protocol(protocol: Any) -> None:
    """Refuse what is not a protocol."""
    if not isinstance(protocol, Protocol):
        raise InputError("protocol", given=repr(protocol), expected="a Protocol, such as Sum(n=5, memory_words=2)")


def check_shape(protocol: Protocol, records: int, width: int) -> None:
    """Refuse an input of another size than the protocol was made for."""
    if protocol.input_records is not None and records != protocol.input_records:
        hint = f"make a {type(protocol).__name__} for this size, or pass its input"
        raise InputError("words", given=f"{records} records", expected=f"{protocol.input_records}", hint=hint)
    if protocol.input_width is not None and width != protocol.input_width:
        expected = f"{protocol.input_width} words per record"
        hint = "use the protocol's encode" if hasattr(protocol, "encode") else ""
        raise InputError("words", given=f"{width} words per record", expected=expected, hint=hint)
