"""A row of the table: what was built, its sizes beside the theorem's, and its outputs beside the right ones."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np

__all__ = [
    "Bound",
    "Effort",
    "Progress",
    "Theorem",
    "Trials",
    "Verdict",
    "at_least",
    "at_most",
    "exactly",
    "exponent",
    "silent",
]

Effort = Literal["tiny", "quick", "full"]
"""How large the sizes are: "tiny" for tests, "quick" for a minute or two for all rows, "full" for about ten."""

Progress = Callable[[str], None]
"""Called with a few words that say what is done next."""


class Theorem(Protocol):
    """An entry of `THEOREMS`: builds what a theorem promises, runs it, and compares its sizes and its answers."""

    def __call__(self, effort: Effort = "quick", progress: Progress = ...) -> "Verdict":
        """Build, run, compare."""
        ...


def silent(what: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Bound:
    """A measured number, the theorem's number with its constant, and how they must compare.

    `at` says where it was measured, such as "N = 64". Bounds with the same `what` are one claim at different sizes.
    """

    what: str
    measured: float
    relation: Literal["≤", "=", "≥"]
    limit: float
    formula: str
    at: str = ""

    @property
    def holds(self) -> bool:
        """Whether the measured number keeps to the limit; NaN never does."""
        if self.relation == "=":
            return self.measured == self.limit
        return self.measured <= self.limit if self.relation == "≤" else self.measured >= self.limit

    @property
    def slack(self) -> float:
        """The distance to the limit as a share of the limit; negative if it is broken."""
        if not self.holds:
            return -1.0
        return abs(self.limit - self.measured) / max(abs(self.limit), 1e-300)

    def __str__(self) -> str:
        relation = self.relation if self.holds else {"≤": ">", "=": "≠", "≥": "<"}[self.relation]
        limit = _number(self.limit)
        formula = "" if self.formula == limit else f" = {self.formula}"
        name = self.what if self.what.endswith("^") else f"{self.what} "
        return f"{name}{_number(self.measured)} {relation} {limit}{formula}" + (f" at {self.at}" if self.at else "")


def at_most(what: str, measured: float, limit: float, formula: str, at: str = "") -> Bound:
    """The measured number must not exceed the limit.

    >>> print(at_most("machines", 12, 16.0, "4·N^0.2", at="N = 1,024"))
    machines 12 ≤ 16 = 4·N^0.2 at N = 1,024
    """
    return Bound(what, float(measured), "≤", float(limit), formula, at)


def at_least(what: str, measured: float, limit: float, formula: str, at: str = "") -> Bound:
    """The measured number must reach the limit.

    >>> at_least("error", 3.0, 4.0, "N/2").holds
    False
    """
    return Bound(what, float(measured), "≥", float(limit), formula, at)


def exactly(what: str, measured: float, limit: float, formula: str, at: str = "") -> Bound:
    """The measured number must equal the limit.

    >>> print(exactly("layers", 7, 8, "R + 1"))
    layers 7 ≠ 8 = R + 1
    """
    return Bound(what, float(measured), "=", float(limit), formula, at)


def exponent(what: str, sizes: Sequence[int], measured: Sequence[float], limit: float, formula: str) -> Bound:
    """The slope of log(measured) over log(N) by least squares, which must not exceed the theorem's exponent.

    >>> print(exponent("machines", [16, 64, 256], [4, 8, 16], 0.5, "1 + ε − ε'"))
    machines ~ N^0.5 ≤ 0.5 = 1 + ε − ε'
    """
    slope = math.nan
    if len(set(sizes)) > 1 and min(measured) > 0:
        slope = (
            round(float(np.polyfit(np.log(np.asarray(sizes, float)), np.log(np.asarray(measured, float)), 1)[0]), 6)
            + 0.0
        )
    return Bound(f"{what} ~ N^", slope, "≤", limit, formula)


@dataclass(frozen=True)
class Verdict:
    """One row: a theorem, what was built for it and at which N, its bounds, and how many outputs were right.

    sizes: the N at which it was run. planned: the N at which only its sizes are computed, by formulas that the runs
    confirm. bounds: sizes, with the theorem's constants. exponents: growth over the range of N. inputs, equal: how many
    inputs were tried, and on how many of them every output equalled the direct answer.

    >>> row = Verdict("Theorem", "a thing", (8,), (), (), inputs=3, equal=2, seconds=0.1)
    >>> row.holds
    False
    """

    theorem: str
    built: str
    sizes: tuple[int, ...]
    bounds: tuple[Bound, ...]
    exponents: tuple[Bound, ...]
    inputs: int
    equal: int
    seconds: float
    planned: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether at least one input was tried, every output is right, and every bound is kept."""
        return self.inputs > 0 and self.equal == self.inputs and not self.broken

    @property
    def broken(self) -> list[Bound]:
        """The bounds that do not hold."""
        return [bound for bound in (*self.bounds, *self.exponents) if not bound.holds]

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values, for JSON.

        >>> Verdict("Theorem", "a thing", (8,), (at_most("heads", 1, 2, "2"),), (), 3, 3, 0.1).to_dict()["holds"]
        True
        """
        row: dict[str, Any] = asdict(self) | {"holds": self.holds}
        for part in ("bounds", "exponents"):
            row[part] = [
                # JSON has no NaN and no infinity.
                asdict(bound)
                | {"holds": bound.holds, "measured": bound.measured if math.isfinite(bound.measured) else None}
                for bound in getattr(self, part)
            ]
        return row


class Trials:
    """Counts inputs and right answers, and measures the time until the verdict.

    >>> trials = Trials()
    >>> trials.add(True)
    >>> trials.verdict("Theorem", "a thing", sizes=[8], bounds=[], exponents=[]).equal
    1
    """

    def __init__(self) -> None:
        self.inputs = self.equal = 0
        self.start = time.perf_counter()

    def add(self, equal: bool | np.bool_) -> None:
        """Count one more input, and whether every output for it equalled the direct answer."""
        self.inputs += 1
        self.equal += bool(equal)

    def verdict(
        self,
        theorem: str,
        built: str,
        *,
        sizes: Sequence[int],
        bounds: Sequence[Bound],
        exponents: Sequence[Bound],
        planned: Sequence[int] = (),
        notes: Sequence[str] = (),
    ) -> Verdict:
        """The row."""
        seconds = time.perf_counter() - self.start
        parts = (tuple(sizes), tuple(bounds), tuple(exponents))
        return Verdict(theorem, built, *parts, self.inputs, self.equal, seconds, tuple(planned), tuple(notes))


def _number(value: float) -> str:
    whole = math.isfinite(value) and (value == int(value) or abs(value) >= 1000)
    return f"{value:,.0f}" if whole else f"{value:.3g}"
