"""The checks that come before compiling: arguments, sizes, and a trial run of the protocol."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from annattn.checks import require_instance
from annattn.compiler.init import init_width
from annattn.compiler.memory import MachineRows
from annattn.compiler.sizes import ValueWidths, senders_per_head
from annattn.errors import CompileError, InputError, LimitError, ShardingError
from annattn.mpc import check_sharding
from annattn.mpc.delivery import check_received, check_sent, deliver, deliver_input, have_mail
from annattn.mpc.model import Limits, Mail, Protocol, check_input

__all__ = ["check_arguments", "check_by_running", "check_sizes", "example_of"]

MOST_MACHINES = 2**20


def check_arguments(protocol: Protocol, attention: str, mode: str, outputs_each: int | None) -> None:
    """Raise unless `to_transformer` was given a protocol and options that exist."""
    require_instance("protocol", protocol, Protocol, "an annattn.mpc.Protocol")
    if attention not in ("ema", "anna"):
        raise InputError("attention", given=repr(attention), expected='"ema" or "anna"')
    if mode not in ("theorem", "practical"):
        raise InputError("mode", given=repr(mode), expected='"theorem" or "practical"')
    if outputs_each is not None and outputs_each < 1:
        raise InputError("outputs_each", given=outputs_each, expected="an integer of at least 1, or None")
    if outputs_each is not None and protocol.rounds == 0:
        raise CompileError("protocol", given="no rounds", expected="at least one to read outputs in")


def check_sizes(limits: Limits, widths: ValueWidths, memory_bytes: int) -> None:
    """Raise unless sums over senders are exact in float64 and the values of one head fit into the memory."""
    senders = senders_per_head(limits)
    if limits.machines > MOST_MACHINES or senders * limits.machines**2 > 2**52:
        given = f"{limits.machines} machines, {senders} senders per head"
        expected = f"at most {MOST_MACHINES} machines, and sums of their squared numbers below 2^52, exact in float64"
        raise CompileError("protocol", given=given, expected=expected)
    # Four arrays of this size: the values, their averages, the averages as whole numbers, and the matrix of the code.
    width = max(widths.built, init_width(MachineRows(limits)))
    needed = 4 * 8 * limits.machines * width
    if needed > memory_bytes:
        given = f"values {width} wide for {limits.machines} machines, {needed / 2**30:.3g} GiB per head"
        hint = 'take mode="practical", partners=, or raise memory_bytes'
        raise CompileError("protocol", given=given, expected=f"at most {memory_bytes / 2**30:.3g} GiB", hint=hint)


def example_of(protocol: Protocol) -> Any:
    """An input to try a protocol on: its own sample, or as many random words as it takes."""
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


def check_by_running(protocol: Protocol, example: ArrayLike | None) -> int:
    """Run the protocol on an example; raise CompileError unless it is deterministic, local and within its limits.

    Returns the number of words per record of the input as the protocol places it.
    """
    name = type(protocol).__name__
    try:
        words = check_input(protocol, example_of(protocol) if example is None else example)
        mail = deliver_input(protocol, words)
        record_words = mail.width
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
            sent, again = (protocol.step(round_, mail.copy()) for _ in range(2))
            check_sent(round_, sent, protocol.limits, senders)
            check_received(round_, sent, protocol.limits)
            if not _same(sent, again):
                given = f"other mail in round {round_} when its step was called again"
                raise CompileError(name, given=given, expected="a deterministic protocol")
            mail = deliver(sent, protocol.limits.machines)
        check_sharding(protocol, words, cuts=1, alone=4)
    except (LimitError, ShardingError) as error:
        raise CompileError(name, given=str(error), expected="a protocol within its limits") from error
    return record_words


def _same(one: Mail, two: Mail) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in ("dest", "src", "words"))
