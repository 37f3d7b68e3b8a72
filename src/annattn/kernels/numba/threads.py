"""Fixed pieces of work over a few threads: results never depend on how many there are.

Compiled kernels release the GIL, so any threads will do: torch's own where they can be borrowed, or else plain Python
threads. Unlike Numba's own thread pools either may be used from several Python threads at once and after a fork.
"""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from annattn.kernels.numba import openmp
from annattn.kernels.numba.compiled import say_if_slow

__all__ = ["pieces_of", "run_pieces"]

_ENOUGH = 2**17  # operations below which a second thread costs more than it saves

_SUBNORMAL = 5e-324

_pool: ThreadPoolExecutor | None = None
_warm: set[tuple[object, ...]] = set()


def run_pieces(work: Callable[[int], object], count: int, *kind: object) -> None:
    """Call work(0) … work(count − 1), on as many threads as torch uses.

    The first time a `kind` of work runs, whoever is at the screen is told if kernels take long to compile.

    >>> done = []
    >>> run_pieces(done.append, 3)
    >>> sorted(done)
    [0, 1, 2]
    """
    if kind and kind not in _warm:
        # On Python's threads, whose stacks are deep enough for a compiler.
        with say_if_slow():
            run_pieces(work, count)
        _warm.add(kind)
        return None
    if _SUBNORMAL * 1.0 == 0.0:
        # torch.set_flush_denormal is on, in this thread alone: answers must not depend on which thread gives them.
        torch.set_flush_denormal(False)
        try:
            return run_pieces(work, count, *kind)
        finally:
            torch.set_flush_denormal(True)
    threads = torch.get_num_threads()
    if threads == 1 or count < 2:
        for piece in range(count):
            work(piece)
        return None
    pieces = itertools.count()

    def drain() -> None:
        flushing = _SUBNORMAL * 1.0 == 0.0  # as the caller of the operation that started this thread did then
        if flushing:
            torch.set_flush_denormal(False)
        try:
            while (piece := next(pieces)) < count:
                work(piece)
        finally:
            if flushing:
                torch.set_flush_denormal(True)

    # All of torch's threads or none: a smaller team would make GNU's library end the others, and start them anew.
    if kind and count >= threads and openmp.parallel(drain, threads):
        return drain()  # in case nobody came to it
    # The caller works too, so that nothing waits for a free thread of the pool.
    try:
        futures = [_threads().submit(drain) for _ in range(min(threads, count) - 1)]
    except RuntimeError:  # the interpreter is shutting down, and starts no threads any more
        return drain()
    try:
        drain()
    finally:
        for future in futures:
            if not future.cancel():
                future.result()


def pieces_of(groups: int, operations: int, columns: int) -> tuple[int, int]:
    """Into how many runs of groups, and parts of the columns, to cut work of this many operations per group.

    For speed alone: results must not depend on it.

    >>> pieces_of(groups=1, operations=10, columns=4)
    (1, 1)
    """
    threads = torch.get_num_threads()
    if threads == 1 or groups * operations < 2 * _ENOUGH:
        return 1, 1
    if groups < threads:
        return groups, max(1, min(-(-threads // groups), columns))
    # Several runs per thread, so that none waits long for the last one; but none of them too short.
    return max(threads, min(4 * threads, groups, groups * operations // _ENOUGH)), 1


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="annattn", initializer=_be_exact)
    return _pool


def _be_exact() -> None:
    torch.set_flush_denormal(False)  # a new thread has the setting of the one that starts it


def _forget() -> None:
    # A forked child inherits the pool but none of its threads.
    global _pool
    _pool = None
    openmp.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
