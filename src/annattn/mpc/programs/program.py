"""Protocols whose machines are programs of the expression language: they run on machines and compile to weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from annattn.errors import CompileError, InputError, PortError
from annattn.mpc.model import Limits, Mail, Numbers, Protocol, Words, whole
from annattn.mpc.programs.expressions import Expression, Leaf, Value, evaluate, lift

__all__ = ["NOWHERE", "Machine", "Program", "Send", "Turn"]

NOWHERE = -1
"""A message to a machine that does not exist is not sent."""

ME = "machine"


@dataclass(frozen=True)
class Send:
    """One message: to which machine, what it says, and at which of the receiver's ports it arrives.

    No two messages of a round may arrive at the same port of the same machine.
    """

    to: Value
    words: Sequence[Value]
    port: Value = 0


@dataclass(frozen=True)
class Turn:
    """What a machine does in a round: the words it keeps, by name, and the messages it sends."""

    keep: Mapping[str, Value]
    send: Sequence[Send] = ()


@dataclass(frozen=True)
class Machine:
    """What a machine knows when a round begins, as expressions."""

    number: Expression
    """The machine's own number."""
    words: Mapping[str, Expression]
    """The words it has kept, by name; in the first round, its input."""
    messages: Sequence[Sequence[Expression]] = ()
    """For every port, the words of the message that arrived there, zeros if none did."""
    arrived: Sequence[Expression] = ()
    """For every port, 1 if a message arrived."""

    def __getitem__(self, name: str) -> Expression:
        return self.words[name]


@dataclass(frozen=True)
class _Round:
    """A traced round: what machines know, what they keep and send; the width of messages and the number of ports."""

    machine: Machine
    keep: dict[str, Expression]
    sends: list[tuple[Expression, Expression, list[Expression]]] = field(default_factory=list)

    @property
    def width(self) -> int:
        return max((len(words) for _, _, words in self.sends), default=0)


class Program(Protocol):
    """A protocol in which machine i starts with record i of the input and every step is written in expressions.

    `step(round, machine)` is called once per round, with a `Machine` of expressions, and returns a `Turn`. Python's own
    `if` and `for` may depend on the round. What depends on data is written with `select` and `table`. A machine's
    inbox holds records (slot, word): a slot is one of its own words, or a word of a port.

    Args:
        step: what a machine does.
        output: the output of a machine, from what it knows after the last round: one value or a sequence.
        rounds: R.
        machines: their number, which is also the number of input records.
        inputs: the names of the words of an input record, with the number of values each can have.
        word_bits: words are smaller than 2^word_bits.
        ports: how many messages a machine can receive in a round.
        outputs: how many machines have an output; by default all.

    >>> from annattn.mpc import run
    >>> shift = Program(
    ...     lambda round, machine: Turn(keep={"x": machine["x"]}, send=[Send(machine.number + 1, [machine["x"]])]),
    ...     output=lambda machine: machine["x"] + machine.messages[0][0],
    ...     rounds=1, machines=4, inputs={"x": 16}, word_bits=4,
    ... )
    >>> run(shift, [1, 2, 3, 4]).output
    array([1, 3, 5, 7], dtype=uint64)
    """

    def __init__(
        self,
        step: Callable[[int, Machine], Turn],
        *,
        output: Callable[[Machine], Value | Sequence[Value]],
        rounds: int,
        machines: int,
        inputs: Mapping[str, int],
        word_bits: int,
        ports: int = 1,
        outputs: int | None = None,
    ) -> None:
        self.rounds, self.ports = whole("rounds", rounds, low=0), whole("ports", ports)
        machines, self.bits = whole("machines", machines), whole("word_bits", word_bits, high=50)
        self.outputs = machines if outputs is None else whole("outputs", outputs, high=machines)
        self.inputs = {name: whole(f"values of {name}", count, high=2**self.bits) for name, count in inputs.items()}
        if not self.inputs:
            raise InputError("inputs", given="none", expected="at least one word per machine")
        self.input_records, self.input_width = machines, len(self.inputs)
        self.number = Leaf(ME, 0, machines - 1)
        know = Machine(self.number, {name: Leaf(name, 0, count - 1) for name, count in self.inputs.items()})
        self.turns: list[_Round] = []
        for round_ in range(self.rounds):
            turn = step(round_, know)
            self.turns.append(self._traced(round_, know, turn))
            know = self._next(self.turns[-1])
        self.final = know
        made = output(know)
        self.output = [_number(f"output {i}", one) for i, one in enumerate(_sequence(made))]
        self.single = not isinstance(made, Sequence)
        if not self.output or min(one.low for one in self.output) < 0:
            given = f"{len(self.output)} values, as low as {min((one.low for one in self.output), default=0)}"
            raise InputError("output", given=given, expected="one or more, each at least 0")
        self.limits = self._limits(machines)

    def _traced(self, round_: int, know: Machine, turn: Turn) -> _Round:
        if not isinstance(turn, Turn) or not turn.keep:
            hint = "a machine without mail knows nothing and stays silent"
            raise CompileError(
                f"step of round {round_}", given=repr(turn), expected="a Turn that keeps a word", hint=hint
            )
        keep = {name: self._word(f"{name} kept in round {round_}", value) for name, value in turn.keep.items()}
        sends = []
        for number, send in enumerate(turn.send):
            what = f"message {number} of round {round_}"
            port = _number(f"port of {what}", send.port)
            if port.low < 0 or port.high >= self.ports:
                given = f"values from {port.low} to {port.high}"
                raise CompileError(f"port of {what}", given=given, expected=f"0 to {self.ports - 1}")
            if not send.words:
                raise CompileError(what, given="no words", expected="at least one")
            words = [self._word(f"word {i} of {what}", word) for i, word in enumerate(send.words)]
            sends.append((_number(f"receiver of {what}", send.to), port, words))
        return _Round(know, keep, sends)

    def _word(self, what: str, value: Value) -> Expression:
        word = _number(what, value)
        if word.low < 0 or word.high >= 2**self.bits:
            given, expected = f"values from {word.low} to {word.high}", f"0 to 2^{self.bits} - 1"
            raise CompileError(what, given=given, expected=expected, hint="bound it with % or minimum")
        return word

    def _next(self, turn: _Round) -> Machine:
        """What a machine knows after a round: its leaves have the bounds of what was written into them."""
        words = {name: Leaf(name, value.low, value.high) for name, value in turn.keep.items()}
        high = [max(words[k].high for _, _, words in turn.sends if k < len(words)) for k in range(turn.width)]
        arrived = [Leaf((port, "arrived"), 0, 1) for port in range(self.ports)] if turn.sends else []
        messages = [[Leaf((port, k), 0, high[k]) for k in range(turn.width)] for port in range(self.ports)]
        return Machine(self.number, words, messages if turn.sends else [], arrived)

    def _limits(self, machines: int) -> Limits:
        """As much memory as the fullest inbox or outbox can need: two words per slot."""
        slots, most = len(self.inputs), len(self.inputs)
        for turn in self.turns:
            slots = max(slots, len(turn.keep) + self.ports * turn.width)
            most = max(most, slots, len(turn.keep) + sum(len(words) for _, _, words in turn.sends))
        return Limits(machines, 2 * most, max(self.bits, (slots - 1).bit_length()))

    def scatter(self, words: Words) -> Mail:
        """Record i to machine i, one (slot, word) per word."""
        width = len(self.inputs)
        rows = words.reshape(self.limits.machines, width)
        for column, (name, count) in enumerate(self.inputs.items()):
            if int(rows[:, column].max()) >= count:
                raise InputError(f"input {name}", given=int(rows[:, column].max()), expected=f"0 to {count - 1}")
        machine = np.repeat(np.arange(len(rows)), width)
        slot = np.tile(np.arange(width, dtype=np.uint64), len(rows))
        return Mail(machine, machine, np.column_stack([slot, rows.ravel()]))

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """What the machines keep and send."""
        turn = self.turns[round]
        machine, leaves = self._read(round, mail)
        columns: list[tuple[Numbers, Numbers, Numbers, Numbers]] = []
        for slot, value in enumerate(evaluate(turn.keep.values(), leaves)):
            columns.append((machine, machine, np.full(len(machine), slot), value))
        for to, port, words in turn.sends:
            dest, at = evaluate([to, port], leaves)
            sent = np.flatnonzero((dest >= 0) & (dest < self.limits.machines))
            for k, word in enumerate(evaluate(words, leaves)):
                slot = len(turn.keep) + at * turn.width + k
                columns.append((dest[sent], machine[sent], slot[sent], word[sent]))
        dest, src, slot, word = (np.concatenate(part) for part in zip(*columns, strict=True))
        return Mail(dest, src, np.column_stack([slot, word]))

    def gather(self, mail: Mail) -> Words:
        """The outputs, machine by machine; one per row if a machine has several."""
        machine, leaves = self._read(self.rounds, mail)
        values = np.column_stack(evaluate(self.output, leaves)).astype(np.uint64)[machine < self.outputs]
        return values[:, 0] if self.single else values

    def sample(self, rng: np.random.Generator) -> Words:
        """Uniform words."""
        columns = [rng.integers(0, count, self.limits.machines) for count in self.inputs.values()]
        return np.column_stack(columns).astype(np.uint64)

    def _read(self, round_: int, mail: Mail) -> tuple[Numbers, dict[Any, Numbers]]:
        """The machines with mail, and what they know."""
        machine, row = np.unique(mail.dest, return_inverse=True)
        names: list[Any] = list(self.final.words if round_ == self.rounds else self.turns[round_].machine.words)
        width = self.turns[round_ - 1].width if round_ else 0
        names += [(port, k) for port in range(self.ports) for k in range(width)]
        slot = mail.words[:, 0].astype(np.int64)
        taken = np.bincount(row * len(names) + slot, minlength=len(machine) * len(names))
        if len(taken) and taken.max() > 1:
            who = int(machine[np.argmax(taken) // len(names)])
            raise PortError(round=round_ - 1, machine=who, limit=1, amount=int(taken.max()))
        held = np.zeros((len(machine), len(names)), np.int64)
        held[row, slot] = mail.words[:, 1].astype(np.int64)
        leaves: dict[Any, Numbers] = {ME: machine} | {name: held[:, i] for i, name in enumerate(names)}
        for port in range(self.ports if width else 0):
            first = names.index((port, 0))
            leaves[port, "arrived"] = taken.reshape(len(machine), -1)[:, first]
        return machine, leaves


def _number(what: str, value: Value) -> Expression:
    try:
        return lift(value)
    except TypeError:
        raise CompileError(what, given=repr(value), expected="an expression or a whole number") from None


def _sequence(made: Any) -> Sequence[Value]:
    return made if isinstance(made, Sequence) else [made]
