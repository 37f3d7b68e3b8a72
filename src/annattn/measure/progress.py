"""How a long measurement reports its progress."""

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[float, str], None]
"""Called with the share that is done, from 0 to 1, and with what comes next in a few words."""


def silent(done: float, what: str) -> None:
    """Report nothing.

    >>> silent(0.5, "half of it")
    """
