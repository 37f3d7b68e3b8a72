"""How a part of the report tells how far it is."""

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[float, str], None]
"""Told the share of the part that is done, from 0 to 1, and what comes next in a few words."""


def silent(done: float, what: str) -> None:
    """Tell nobody.

    >>> silent(0.5, "half of it")
    """
