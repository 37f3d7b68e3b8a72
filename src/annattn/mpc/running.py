"""Running a protocol on the engine of one's choice."""

from inspect import signature
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from annattn.errors import InputError
from annattn.mpc.engines import Engine, engine_named
from annattn.mpc.model import Progress, Protocol, Result, check_input, check_protocol, check_shape
from annattn.mpc.part_files import PartFiles
from annattn.mpc.progress import reporter

__all__ = ["run"]


def run(
    protocol: Protocol,
    words: ArrayLike | PartFiles | str | Path | Any,
    engine: str = "local",
    *,
    progress: bool | Progress = False,
    **options: Any,
) -> Result:
    """Run a protocol on its input under its limits: in this process (`local`), on Ray (`ray`), or any of `ENGINES`.

    `words` is an array, or a folder of .npy or Parquet files (its path or `PartFiles`); `ray` also takes a Ray Dataset.
    `progress=True` writes one line per round to standard error; a callable gets (load, rounds). Further options belong
    to the engine: both take `output`, a folder, and `ray` also `shards`, `address`, `references` and `checkpoints`.

    >>> from annattn.mpc.protocols import Sum
    >>> int(run(Sum(n=5, memory_words=2), [1, 2, 3, 4, 5]).output)
    15
    """
    kind = engine_named(engine)
    for name in options:
        if name not in signature(kind).parameters:
            raise InputError("option", given=repr(name), expected=f"one that the engine {engine!r} has")
    return kind(**options).run(protocol, _input(protocol, words, kind, engine), reporter(progress))


def _input(protocol: Protocol, words: Any, kind: type[Engine], engine: str) -> Any:
    """The input as the engine takes it: in parts as it is, or as an array."""
    check_protocol(protocol)
    if isinstance(words, str | Path):
        words = PartFiles.open(words)
    if isinstance(words, PartFiles):
        check_shape(protocol, words.records, words.width)
        return words if kind.reads_parts else check_input(protocol, words.whole())
    if type(words).__module__.partition(".")[0] == "ray" and hasattr(words, "to_arrow_refs"):
        if not kind.reads_parts:
            raise InputError("words", given="a dataset of Ray", expected=f"an array or a folder for {engine!r}")
        return words
    return check_input(protocol, words)
