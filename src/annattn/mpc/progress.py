"""Reporting the progress of a run."""

import sys

from annattn.checks import require_flag
from annattn.mpc.model import Progress
from annattn.mpc.trace import RoundLoad

__all__ = ["reporter"]


def reporter(progress: bool | Progress) -> Progress:
    """What an engine calls after every round: the caller's function, one that writes a line, or one that is silent."""
    if callable(progress):
        return progress
    return _write if require_flag("progress", progress) else _nothing


def _nothing(load: RoundLoad, rounds: int) -> None:
    pass


def _write(load: RoundLoad, rounds: int) -> None:
    sys.stderr.write(f"round {load.round + 1} of {rounds}: {load.words} words moved, largest inbox {load.inbox}\n")
