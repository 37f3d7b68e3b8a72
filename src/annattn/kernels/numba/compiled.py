"""How kernels are compiled: without the GIL, kept on disk where that is possible, and never in silence."""

import contextlib
import hashlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache

__all__ = ["kernel", "say_if_slow"]

_PATIENCE = 1.0  # seconds
_NOTICE = "annattn: loading or compiling kernels\n"
_KEPT = "annattn: the compiled kernels are kept on disk for the next time\n"


def kernel(
    function: Callable[..., Any] | None = None, *, fastmath: set[str] | bool = False, inlined: bool = False
) -> Any:
    """Decorator: compile on first call, keep the result on disk for the next process.

    Arrays are costly to hand over, some nanoseconds each: what the innermost loops call is `inlined`.
    """
    if function is None:
        return lambda function: kernel(function, fastmath=fastmath, inlined=inlined)
    compiled = numba.njit(function, nogil=True, fastmath=fastmath, forceinline=inlined)
    # Where Numba finds no folder that it may write to, every process compiles anew.
    with contextlib.suppress(RuntimeError):
        compiled._cache = _Kept(function)  # pyright: ignore[reportAttributeAccessIssue]
    return compiled


class _Kept(FunctionCache):
    """Numba's files of one compiled function; damaged ones are deleted, and a full disk is no error."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        # Numba looks at the function's own file alone. But a kernel is also made of what it inlines from others.
        self._cache_file._source_stamp = (self._cache_file._source_stamp, _sources(function.__code__.co_filename))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What is on disk for this signature; None, if that is nothing or damaged."""
        try:
            return super().load_overload(sig, target_context)
        except MemoryError:  # the file is whole
            raise
        except Exception:  # whatever unpickling a damaged file raises
            self._delete()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write to disk, if it can be written to."""
        try:
            super().save_overload(sig, data)
        except (OSError, MemoryError):
            _unsaved.set()
            return
        except Exception:  # a damaged index, which is read before it is written again
            self._delete()
            return
        _saved.set()

    def _delete(self) -> None:
        base = self._impl.filename_base
        with contextlib.suppress(OSError):
            for path in Path(self._cache_path).glob(f"{_literally(base)}.*nb[ic]"):
                path.unlink(missing_ok=True)


_HERE = Path(__file__).parent
_IMPORT = re.compile(r"from annattn\.kernels\.numba(?:\.(\w+) import| import (\([^)]*\)|[^\n]*))")


@cache
def _sources(path: str) -> str:
    """What a file of kernels and all files of this folder that it imports from say, in short."""
    found, left = set(), {Path(path)}
    while left:
        found |= left
        named = {name for source in left for name in _imported(source)}
        left = {_HERE / f"{name}.py" for name in named} - found
    return hashlib.sha256(b"".join(sorted(map(_digest, {*found, _HERE.parent / "tables.py"})))).hexdigest()


@cache
def _imported(path: Path) -> frozenset[str]:
    pairs = _IMPORT.findall(path.read_text(encoding="utf-8")) if path.is_file() else ()
    return frozenset(name for one, several in pairs for name in re.findall(r"\w+", f"{one} {several}"))


@cache
def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest()


def _literally(name: str) -> str:
    """A name as a pattern that matches nothing else."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


_said, _saved, _unsaved, _said_saved = (threading.Event() for _ in range(4))


def _say() -> None:
    """Once per process is enough."""
    if not _said.is_set():
        _said.set()
        sys.stderr.write(_NOTICE)


@contextmanager
def say_if_slow() -> Iterator[None]:
    """Tell whoever is at the screen if the block takes more than a second, and what comes of the wait."""
    timer = threading.Timer(_PATIENCE, _say)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # the interpreter is shutting down, and starts no threads any more
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if _said.is_set() and _saved.is_set() and not _unsaved.is_set() and not _said_saved.is_set():
            _said_saved.set()
            sys.stderr.write(_KEPT)
