"""How many bytes a rank sent: counted where they leave, and predicted before they do."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Exchange", "Traffic", "counters", "counting"]


@dataclass(frozen=True)
class Exchange:
    """One pass of one call: by which way, and how many bytes this rank was predicted to send and sent."""

    what: str
    way: str
    predicted: int
    sent: int


@dataclass
class Traffic:
    """What this rank sent to other ranks while it was counted.

    `sent` is what attention itself exchanged; `agreed` is the small, fixed number of bytes by which ranks made sure
    that they were called alike.
    """

    sent: int = 0
    agreed: int = 0
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def predicted(self) -> int:
        """What `sent` was predicted to be."""
        return sum(one.predicted for one in self.exchanges)


_COUNTING: list[Traffic] = []  # not per thread: torch may run backward passes in threads of its own


@contextmanager
def counting() -> Iterator[Traffic]:
    """Count what this rank sends inside; backward passes count if they run inside as well.

    >>> with counting() as traffic:
    ...     pass
    >>> traffic.sent
    0
    """
    traffic = Traffic()
    _COUNTING.append(traffic)
    try:
        yield traffic
    finally:
        _COUNTING[:] = [one for one in _COUNTING if one is not traffic]


def counters() -> list[Traffic]:
    """Whoever counts now."""
    return _COUNTING
