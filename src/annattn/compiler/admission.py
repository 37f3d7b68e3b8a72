"""What is refused before anything is compiled, and why."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from annattn.errors import CompileError, InputError, LimitError, ShardingError
from annattn.mpc import check_sharding
from annattn.mpc.delivery import check_received, check_sent, deliver, deliver_input, have_mail
from annattn.mpc.model import Mail, Protocol, check_input

__all__ = ["admit", "example_of"]


def example_of(protocol: Protocol) -> Any:
    """An input to try a protocol on: its own sample, or random words of the right number."""
    rng = np.random.default_rng(0)
    sample = getattr(protocol, "sample", None)
    if callable(sample):
        return sample(rng)
    inner = getattr(protocol, "protocol", None)
    if isinstance(inner, Protocol):
        return example_of(inner)
    records = protocol.limits.machines if protocol.input_records is None else protocol.input_records
    shape = (records, protocol.input_width or 1)
    return rng.integers(0, protocol.limits.largest_word, shape, dtype=np.uint64, endpoint=True)


def admit(protocol: Protocol, example: ArrayLike | None) -> None:
    """Raise CompileError unless the protocol, run on an example, is deterministic, local and within its limits."""
    name = type(protocol).__name__
    try:
        words = check_input(protocol, example_of(protocol) if example is None else example)
        mail = deliver_input(protocol, words)
    except LimitError as error:
        raise CompileError(name, given=f"an input with {error}", expected="one that fits its machines") from error
    except InputError as error:
        if example is not None:
            raise
        hint = "pass example=, an input that the protocol takes"
        raise CompileError(name, given=f"a refusal of random words ({error})", expected="a run", hint=hint) from error
    try:
        for round_ in range(protocol.rounds):
            senders = have_mail(mail, protocol.limits.machines)
            sent, again = (protocol.step(round_, _copy(mail)) for _ in range(2))
            check_sent(round_, sent, protocol.limits, senders)
            check_received(round_, sent, protocol.limits)
            if not _same(sent, again):
                given = f"other mail in round {round_} when its step was called again"
                raise CompileError(name, given=given, expected="a deterministic protocol")
            mail = deliver(sent, protocol.limits.machines)
        check_sharding(protocol, words, cuts=1, alone=4)
    except (LimitError, ShardingError) as error:
        raise CompileError(name, given=str(error), expected="a protocol within its limits") from error


def _same(one: Mail, two: Mail) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in ("dest", "src", "words"))


def _copy(mail: Mail) -> Mail:
    return Mail(mail.dest.copy(), mail.src.copy(), mail.words.copy())
