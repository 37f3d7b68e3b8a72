"""All runs of a comparison that are left, one after the other or shared among processes."""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from annattn.checks import require_count
from annattn.errors import RankError
from annattn.experiments.comparison.running import Run, next_runs, read_runs, run_one
from annattn.experiments.comparison.settings import Profile
from annattn.experiments.training import Progress
from annattn.interrupts import stopped_by_signals

__all__ = ["run_all"]

Report = Callable[[int, int, Run | None, Progress | None], None]
_SPAWN = multiprocessing.get_context("spawn")  # a copy of a process with threads may hang


def run_all(
    profile: Profile,
    names: Sequence[str],
    folder: Path,
    *,
    jobs: int = 1,
    minutes: float | None = None,
    report: Report = lambda done, total, run, step: None,
) -> None:
    """Every run of these tasks that is left; those that another process is at are left to it.

    Args:
        profile: sizes, steps and seeds.
        names: its tasks that are wanted.
        folder: where results are, and the state of runs that were stopped.
        jobs: so many processes at once, this one included, which share torch's threads.
        minutes: begin no run after this time.
        report: called with the runs done, of how many, and the one this process is at, with its step.
    """
    turns = _Turns(profile, tuple(names), folder, None if minutes is None else time.time() + 60 * minutes)
    total, threads = len(turns.left()), torch.get_num_threads()
    helpers = max(0, min(require_count("jobs", jobs), total) - 1) if turns.may_begin() else 0
    try:
        torch.set_num_threads(max(1, threads // (helpers + 1)))
        with _helped(turns, helpers):
            turns.take(lambda run, step: report(max(0, total - len(turns.left())), total, run, step))
            report(max(0, total - len(turns.left())), total, None, None)
    finally:
        torch.set_num_threads(threads)


class _Turns:
    """Runs as they are left, by one process of several: results and locks in the folder say which those are."""

    def __init__(self, profile: Profile, names: tuple[str, ...], folder: Path, until: float | None) -> None:
        self.profile, self.names, self.folder, self.until = profile, names, folder, until
        self.skipped: set[Run] = set()

    def may_begin(self) -> bool:
        """Whether there is time for another run."""
        return self.until is None or time.time() < self.until

    def left(self) -> list[Run]:
        """Runs without a result that nobody else was at when this process came to them."""
        todo = next_runs(self.profile, read_runs(self.profile, self.folder))
        return [run for run in todo if run.task in self.names and run not in self.skipped]

    def take(self, report: Callable[[Run, Progress], None]) -> None:
        """One run after the other."""
        while (todo := self.left()) and self.may_begin():
            run = todo[0]
            if run_one(self.profile, run, self.folder, lambda step, run=run: report(run, step)) is None:
                self.skipped.add(run)


@contextlib.contextmanager
def _helped(turns: _Turns, helpers: int) -> Iterator[None]:
    """So many further processes take turns too; the block ends when they have, and raises what stopped one of them."""
    started = []
    try:
        for _ in range(helpers):
            hears, tells = _SPAWN.Pipe(duplex=False)
            helper = _SPAWN.Process(target=_help, args=(turns, torch.get_num_threads(), os.getpid(), tells))
            helper.start()
            tells.close()  # so that a helper that dies is heard as an end
            started.append((helper, hears))
        yield
        for _, hears in started:
            failure = hears.recv()
            if failure is not None:
                raise failure
    except EOFError:
        raise RankError("a process of the comparison died; the same command goes on with its run") from None
    finally:
        for helper, _ in started:
            if helper.is_alive():
                helper.terminate()  # which it takes as Ctrl-C: the state of its run is kept
        for helper, _ in started:
            helper.join()


def _help(turns: _Turns, threads: int, caller: int, tells: Connection) -> None:
    """Take turns while the process that started this one lives; say at the end what went wrong, or None."""
    torch.set_num_threads(threads)

    def stop_alone(run: Run, step: Progress) -> None:
        if os.getppid() != caller:
            raise KeyboardInterrupt

    failure: Exception | None = None
    with contextlib.suppress(KeyboardInterrupt), stopped_by_signals():
        try:
            turns.take(stop_alone)
        except Exception as error:  # whatever it is, the caller raises it
            failure = error
    with contextlib.suppress(OSError):  # nobody listens any more
        tells.send(failure)
