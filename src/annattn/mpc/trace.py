"""The words that a run moved, round by round."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from annattn.errors import AnnattnError

if TYPE_CHECKING:
    from annattn.mpc.model import Limits

__all__ = ["RoundLoad", "Trace"]


@dataclass(frozen=True, eq=False)
class RoundLoad:
    """The words that every machine sent and received in one round."""

    round: int
    sent: NDArray[Any]
    received: NDArray[Any]

    @property
    def words(self) -> int:
        """Words moved by all machines together."""
        return int(self.sent.sum(dtype=np.int64))

    @property
    def outbox(self) -> int:
        """Words in the largest outbox."""
        return int(self.sent.max())

    @property
    def inbox(self) -> int:
        """Words in the largest inbox."""
        return int(self.received.max())

    @property
    def busiest(self) -> int:
        """The machine that sent and received the most words; among equals, the one with the lowest number."""
        return int(np.argmax(self.sent.astype(np.int64) + self.received))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RoundLoad)
            and self.round == other.round
            and np.array_equal(self.sent, other.sent)
            and np.array_equal(self.received, other.received)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Trace:
    """The loads of a run: for each round the words moved, the largest inbox and outbox, and the busiest machine.

    >>> from annattn.mpc import run
    >>> from annattn.mpc.protocols import Sum
    >>> print(run(Sum(n=5, memory_words=2), [1, 2, 3, 4, 5]).trace.summary())
    machines 3, memory 2 words, 3 rounds, 6 words moved
    round  words  inbox  outbox  busiest
        0      3      2       1        0
        1      2      2       1        0
        2      1      1       1        0
    """

    limits: "Limits"
    loads: tuple[RoundLoad, ...]

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.loads)

    @property
    def words(self) -> int:
        """Words moved in all rounds together."""
        return sum(load.words for load in self.loads)

    @property
    def largest_load(self) -> int:
        """The largest inbox or outbox of any machine in any round, in words."""
        return max((max(load.inbox, load.outbox) for load in self.loads), default=0)

    def summary(self) -> str:
        """A table: one line for the run and one per round."""
        limits = self.limits
        lines = [
            f"machines {limits.machines}, memory {limits.memory_words} words, "
            f"{self.rounds} rounds, {self.words} words moved",
        ]
        rows = [("round", "words", "inbox", "outbox", "busiest")]
        rows += [tuple(map(str, (x.round, x.words, x.inbox, x.outbox, x.busiest))) for x in self.loads]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(lines)

    def plot(self, axes: Any = None) -> Any:
        """Draw the words received per machine and round, white for none, dark for full; return the matplotlib axes."""
        try:
            from matplotlib import colormaps, pyplot
        except ImportError as error:
            raise AnnattnError("Trace.plot draws with matplotlib: pip install 'annattn[report]'") from error
        if not self.loads:
            raise AnnattnError("Trace.plot has nothing to draw: the run had no rounds")
        if axes is None:
            _, axes = pyplot.subplots(layout="constrained")
        limit = self.limits.memory_words
        picture = np.array([load.received for load in self.loads])
        # A single word must be visible, so the colours start well away from the white of no words.
        shades = colormaps["viridis_r"].with_extremes(bad="white")
        image = axes.imshow(
            np.ma.masked_equal(picture, 0), aspect="auto", interpolation="nearest", cmap=shades, vmin=0, vmax=limit
        )
        axes.set(xlabel="machine", ylabel="round", title=f"words received (white: none), {limit} allowed")
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes.figure.colorbar(image, ax=axes, label="words")
        return axes
