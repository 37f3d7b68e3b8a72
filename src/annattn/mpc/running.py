"""Running a protocol on the engine of one's choice."""

from inspect import signature
from typing import Any

from numpy.typing import ArrayLike

from annattn.errors import InputError
from annattn.mpc.engines import engine_named
from annattn.mpc.model import Progress, Protocol, Result, check_input
from annattn.mpc.progress import reporter

__all__ = ["run"]


def run(
    protocol: Protocol,
    words: ArrayLike,
    engine: str = "local",
    *,
    progress: bool | Progress = False,
    **options: Any,
) -> Result:
    """Run a protocol on its input under its limits: in this process (`local`), on Ray (`ray`), or any of `ENGINES`.

    `progress=True` writes one line per round to standard error; a callable gets (load, rounds). Further options belong
    to the engine: `ray` takes `shards` and `address`.

    >>> from annattn.mpc.protocols import Sum
    >>> int(run(Sum(n=5, memory_words=2), [1, 2, 3, 4, 5]).output)
    15
    """
    kind = engine_named(engine)
    for name in options:
        if name not in signature(kind).parameters:
            raise InputError("option", given=repr(name), expected=f"one that the engine {engine!r} has")
    block = check_input(protocol, words)
    return kind(**options).run(protocol, block, reporter(progress))
