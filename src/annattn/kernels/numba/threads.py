"""Fixed pieces of work over a few threads: results never depend on how many there are.

Compiled kernels release the GIL, so plain Python threads are enough. Unlike Numba's own thread pools these may be used
from several Python threads at once, survive a fork, and leave torch's OpenMP alone.
"""

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from annattn.kernels.numba.compiled import say_if_slow

__all__ = ["Run", "pieces_of", "run_groups", "run_pieces"]

_ENOUGH = 2**17  # operations below which a second thread costs more than it saves

_SUBNORMAL = 5e-324

Run = Callable[[Callable[[int], object], int], None]

_pool: ThreadPoolExecutor | None = None
_forked = False
_warm: set[tuple[object, ...]] = set()


def run_pieces(work: Callable[[int], object], count: int, *kind: object, calls_torch: bool = False) -> None:
    """Call work(0) … work(count − 1), on as many threads as torch uses.

    The first time a `kind` of work runs, whoever is at the screen is told if kernels take long to compile. Work that
    calls torch is done only on threads in which torch uses no threads of its own: those of its OpenMP keep their cores
    busy for a while after each call, waiting for more.

    >>> done = []
    >>> run_pieces(done.append, 3)
    >>> sorted(done)
    [0, 1, 2]
    """
    if kind and kind not in _warm:
        with say_if_slow():
            run_pieces(work, count, calls_torch=calls_torch)
        _warm.add(kind)
        return None
    if _SUBNORMAL * 1.0 == 0.0:
        # torch.set_flush_denormal is on, in this thread alone: answers must not depend on which thread gives them.
        torch.set_flush_denormal(False)
        try:
            return run_pieces(work, count, calls_torch=calls_torch)
        finally:
            torch.set_flush_denormal(True)
    threads = torch.get_num_threads()
    # In a forked child, torch's OpenMP waits forever for threads that only the parent has.
    if threads == 1 or (count < 2 and not (calls_torch and _forked)):
        for piece in range(count):
            work(piece)
        return None
    pieces = itertools.count()

    def drain() -> None:
        while (piece := next(pieces)) < count:
            work(piece)

    # Otherwise the caller works too, so that nothing waits for a free thread of the pool.
    try:
        futures = [_threads().submit(drain) for _ in range(min(threads, count) - (not calls_torch))]
    except RuntimeError:  # the interpreter is shutting down, and starts no threads any more
        return drain()
    try:
        if not calls_torch:
            drain()
    finally:
        for future in futures:
            if calls_torch or not future.cancel():
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


def run_groups(work: Callable[[int, Run], object], count: int, *kind: object) -> None:
    """Call work(group, run) for every group: each on one thread while there are enough, else one by one on all.

    >>> run_groups(lambda group, run: run(lambda piece: print(group, piece), 1), 2)
    0 0
    1 0
    """
    if count >= torch.get_num_threads():
        run_pieces(lambda group: work(group, _serially), count, *kind)
    else:
        run_pieces(lambda _: [work(group, run_pieces) for group in range(count)], 1, *kind)


def _serially(work: Callable[[int], object], count: int) -> None:
    for piece in range(count):
        work(piece)


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="annattn", initializer=_be_single)
    return _pool


def _be_single() -> None:
    # The number of torch's threads belongs to the thread that sets it. What is not its own is the number that threads
    # yet to come begin with, so that is put back.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)  # a new thread has the setting of the one that starts it
    restore = threading.Thread(target=torch.set_num_threads, args=(before,))
    restore.start()
    restore.join()


def _forget() -> None:
    # A forked child inherits the pool but none of its threads.
    global _pool, _forked
    _pool, _forked = None, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
