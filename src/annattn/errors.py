"""Every exception the library raises on purpose."""

from typing import Any

__all__ = [
    "AnnattnError",
    "BackendError",
    "CollisionError",
    "CompileError",
    "DestinationError",
    "InboxError",
    "InputError",
    "LeastMemoryError",
    "LimitError",
    "NoMemoryError",
    "OutboxError",
    "PartnersError",
    "PlanError",
    "PortError",
    "RankError",
    "ShardingError",
    "SourceError",
    "WideCodeError",
    "WordError",
]


class AnnattnError(Exception):
    """Base of all errors raised by this library."""


class InputError(AnnattnError, ValueError):
    """An argument cannot be used: says what was given, what was expected and what to do.

    >>> str(InputError("tables", given=0, expected="an integer of at least 1", hint="pass tables=8"))
    'tables: got 0, expected an integer of at least 1; pass tables=8'
    """

    def __init__(self, what: str, *, given: object, expected: str, hint: str = "") -> None:
        super().__init__(f"{what}: got {given}, expected {expected}" + (f"; {hint}" if hint else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        # The message is all there is to carry; the default would call __init__ without its keywords.
        return _restore, (type(self), self.args[0])


def _restore(kind: type[InputError], message: str) -> InputError:
    error = kind.__new__(kind)
    error.args = (message,)
    return error


class PlanError(InputError):
    """No number of tables and hashes can give the guarantee that was asked for."""


class WideCodeError(InputError):
    """A tuple of hash values does not fit one 63-bit code, so it has no code that means the same in every call."""


class BackendError(AnnattnError, RuntimeError):
    """No kernel backend can run the given inputs; the message holds every backend's reasons."""


class RankError(AnnattnError, RuntimeError):
    """Another process of those that share a task raised, ended or stopped answering: says which, and what to do."""


class NoMemoryError(AnnattnError, MemoryError):
    """Something does not fit in memory; the message says what, and what to make smaller."""


class LeastMemoryError(InputError):
    """A protocol was given less memory a machine than it can live with; `least` is the number that would do."""

    def __init__(self, protocol: str, *, n: int, memory_words: int, least: int) -> None:
        super().__init__(
            "memory_words",
            given=memory_words,
            expected=f"at least {least} for {protocol} with n={n}",
            hint=f"pass memory_words={least} or more",
        )
        self.least = least

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_least, (self.args[0], self.least)


def _restore_least(message: str, least: int) -> LeastMemoryError:
    error = LeastMemoryError.__new__(LeastMemoryError)
    error.args = (message,)
    error.least = least
    return error


class LimitError(AnnattnError, RuntimeError):
    """A protocol broke a limit of the MPC model: names the round, the machine, the limit and the amount.

    Round -1 is the input, before the first round.

    >>> str(OutboxError(round=3, machine=17, limit=128, amount=130))
    'round 3, machine 17: sent 130 words, but memory_words allows 128'
    """

    rule = "{amount} is over the limit of {limit}"

    def __init__(self, *, round: int, machine: int, limit: int, amount: int) -> None:  # noqa: A002 - the model's word
        where = "the input" if round < 0 else f"round {round}"
        super().__init__(f"{where}, machine {machine}: {self.rule.format(amount=amount, limit=limit)}")
        self.round, self.machine, self.limit, self.amount = round, machine, limit, amount

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_limit, (type(self), self.round, self.machine, self.limit, self.amount)


def _restore_limit(kind: type[LimitError], round_: int, machine: int, limit: int, amount: int) -> LimitError:
    return kind(round=round_, machine=machine, limit=limit, amount=amount)


class OutboxError(LimitError):
    """A machine sent more than `memory_words` words in one round."""

    rule = "sent {amount} words, but memory_words allows {limit}"


class InboxError(LimitError):
    """A machine was sent more than `memory_words` words in one round."""

    rule = "received {amount} words, but memory_words allows {limit}"


class WordError(LimitError):
    """A machine sent a word of 2^p or more; `limit` is the largest word allowed."""

    rule = "sent the word {amount}, but the largest word of word_bits bits is {limit}"


class DestinationError(LimitError):
    """A machine wrote to a machine that does not exist; `limit` is the largest identifier."""

    rule = "wrote to machine {amount}, but machines are numbered 0 to {limit}"


class SourceError(LimitError):
    """A message names as its source a machine that had no mail; such a machine knows nothing and stays silent."""

    rule = "sent {amount} messages, but a machine with an empty inbox may send {limit}"


class PartnersError(LimitError):
    """A machine wrote to, or heard from, more than `partners` other machines in one round."""

    rule = "exchanged mail with {amount} other machines in one direction, but partners allows {limit}"


class PortError(LimitError):
    """Several messages of one round arrived at the same port of a machine."""

    rule = "received {amount} messages at one port, but a port takes {limit}"


class ShardingError(AnnattnError, RuntimeError):
    """A step gave other mail when its machines were cut into other shards: it looks at more than one machine's mail."""

    def __init__(self, *, round: int, machine: int, detail: str) -> None:  # noqa: A002 - the model's word
        super().__init__(
            f"round {round}, machine {machine}: {detail}; a step must treat every machine by its own mail alone"
        )
        self.round, self.machine, self.detail = round, machine, detail

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_sharding, (self.round, self.machine, self.detail)


def _restore_sharding(round_: int, machine: int, detail: str) -> ShardingError:
    return ShardingError(round=round_, machine=machine, detail=detail)


class CompileError(InputError):
    """A protocol or a transformer cannot be compiled; the message has the reason."""


class CollisionError(AnnattnError, RuntimeError):
    """Messages of several senders could not be told apart in one attention head, or a message went astray.

    >>> str(CollisionError(layer=2, head=0, token=5, detail="3 of 4 messages decoded"))
    'layer 2, head 0, token 5: 3 of 4 messages decoded'
    """

    def __init__(self, *, layer: int, head: int, token: int, detail: str) -> None:
        super().__init__(f"layer {layer}, head {head}, token {token}: {detail}")
        self.layer, self.head, self.token, self.detail = layer, head, token, detail

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_collision, (self.layer, self.head, self.token, self.detail)


def _restore_collision(layer: int, head: int, token: int, detail: str) -> CollisionError:
    return CollisionError(layer=layer, head=head, token=token, detail=detail)
