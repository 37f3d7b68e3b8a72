"""How kernels are compiled: without the GIL, cached on disk where that is possible, and never in silence."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba

__all__ = ["kernel", "say_if_slow"]

_PATIENCE = 1.0  # seconds
_NOTICE = "annattn: loading or compiling kernels; what is compiled is kept on disk for the next time\n"


def kernel(function: Callable[..., Any] | None = None, *, fastmath: set[str] | bool = False) -> Any:
    """Decorator: compile on first call, keep the result on disk for the next process.

    Arrays are costly to hand over, some nanoseconds each: the innermost loops take few of them.
    """
    if function is None:
        return lambda function: kernel(function, fastmath=fastmath)
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath}
    try:
        return numba.njit(function, cache=True, **options)
    except RuntimeError:
        # Numba found no directory it may write to: compile anew in every process.
        return numba.njit(function, **options)


_said = threading.Event()


def _say() -> None:
    """Once per process is enough."""
    if not _said.is_set():
        _said.set()
        sys.stderr.write(_NOTICE)


@contextmanager
def say_if_slow() -> Iterator[None]:
    """Tell whoever is at the screen if the block takes more than a second."""
    timer = threading.Timer(_PATIENCE, _say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
