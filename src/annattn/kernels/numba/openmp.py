"""torch's own threads, borrowed where its OpenMP library can be reached.

After a parallel operation of torch its threads spin for some milliseconds, in case another follows. Threads of our own
would share the cores with them: right after one, attention over 8 × 12 × 128 rows takes 2.5 ms on threads of our own
and 1.5 on torch's.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["forget", "parallel"]

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_UNKNOWN = object()

_start: Any = _UNKNOWN


def parallel(work: Callable[[], None], threads: int) -> bool:
    """Call `work` on so many threads, the caller's among them, or on fewer; False if there are none to borrow.

    What one of them raises is raised again.

    >>> done = []
    >>> parallel(lambda: done.append(1), 2) == (len(done) > 0)
    True
    """
    global _start
    if _start is _UNKNOWN:
        _start = _find()
    if _start is None or sys.is_finalizing():  # then other threads can no longer run Python, and the team would hang
        return False
    raised: list[BaseException] = []

    def guarded(_: object) -> None:
        try:
            work()
        except BaseException as error:  # it must not pass through the library
            raised.append(error)

    _start(_CALLBACK(guarded), None, threads, 0)
    if raised:
        raise raised[0]
    return True


def forget() -> None:
    """In a forked child: GNU's library does not survive a fork once it has started threads."""
    global _start
    _start = None


def _find() -> Any:
    """The function of GNU's OpenMP library that starts a team, from the very library that torch has loaded."""
    if not sys.platform.startswith("linux"):
        return None
    folder = Path(torch.__file__).parent
    for path in (*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")):
        try:
            start = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD).GOMP_parallel
        except (OSError, AttributeError):  # not loaded, or another library of that name
            continue
        start.argtypes, start.restype = [_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
        return start
    return None
