"""`python -m benchmarks.shared_hashes`: what tables that share their hash functions cost in accuracy, and save in time.

A pair of rows at some cosine meets in c of ℓ tables. With u half-keys of which X are met, c = X(X − 1)/2, and X is
binomial; with independent tables c itself is. Exact figures, beside those of 20,000 draws of hyperplanes.
"""

import argparse
import math
import statistics
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from annattn.kernels.numba.hashing import hash_rows
from annattn.lsh import Hyperplane
from annattn.measure.timing import runs_in_turns

SETTINGS = ((10, 8), (28, 8), (28, 12), (36, 12), (28, 16), (66, 16))
COSINES = (0.99, 0.95, 0.9)
DRAWS = 20_000
_ROWS, _DIM = 16_384, 64
_AT_ONCE = 2000  # draws hashed together


@dataclass(frozen=True)
class Meetings:
    """Mean and standard deviation of the number of tables met, and the chance of none."""

    mean: float
    spread: float
    missed: float

    @staticmethod
    def of(counts: dict[int, float]) -> "Meetings":
        """From the chance of each number of tables met."""
        mean = sum(c * chance for c, chance in counts.items())
        return Meetings(mean, math.sqrt(sum((c - mean) ** 2 * p for c, p in counts.items())), counts[0])


def exact(tables: int, hashes: int, cosine: float, shared: bool) -> Meetings:
    """What theory says; with `shared`, for tables = u(u − 1)/2."""
    p = 1 - math.acos(cosine) / math.pi
    trials, chance = (math.isqrt(2 * tables) + 1, p ** (hashes / 2)) if shared else (tables, p**hashes)
    counts: dict[int, float] = {}
    for x in range(trials + 1):
        c = x * (x - 1) // 2 if shared else x
        counts[c] = counts.get(c, 0) + math.comb(trials, x) * chance**x * (1 - chance) ** (trials - x)
    return Meetings.of(counts)


def measured(tables: int, hashes: int, cosine: float, shared: bool, draws: int = DRAWS) -> Meetings:
    """The same over draws of hash functions, which see nothing of a pair but its angle."""
    pair = torch.tensor([[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]])
    met = []
    for seed in range(-(-draws // _AT_ONCE)):
        hasher = Hyperplane(2).sample(tables=tables, hashes=hashes, heads=_AT_ONCE, seed=seed, shared=shared)
        codes = hash_rows(hasher, pair.expand(1, _AT_ONCE, 2, 2).contiguous())[0][0]
        met.append((codes[:, 0] == codes[:, 1]).sum(-1))
    every, times = torch.cat(met).unique(return_counts=True)
    counts = {0: 0.0} | dict(zip(every.tolist(), (times / times.sum()).tolist(), strict=True))
    return Meetings.of(counts)


def seconds(tables: int, hashes: int) -> dict[bool, float]:
    """Median times of hashing, independent and shared, in turns."""
    rows = torch.randn(1, 1, _ROWS, _DIM)
    calls = {}
    for shared in (False, True):
        hasher = Hyperplane(_DIM).sample(tables=tables, hashes=hashes, shared=shared)
        calls[str(shared)] = lambda hasher=hasher: hash_rows(hasher, rows)
        calls[str(shared)]()
    found = runs_in_turns(calls, enough=0.3)
    return {shared: statistics.median(found[str(shared)]) for shared in (False, True)}


def main() -> None:
    """Print both tables."""
    argparse.ArgumentParser(prog="python -m benchmarks.shared_hashes", description=__doc__).parse_args()
    console = Console(width=140)
    table = Table(title=f"meetings of a pair: exact (over {DRAWS:,} draws)")
    for heading in (
        "tables × hashes",
        "cosine",
        "mean",
        "sd, independent",
        "sd, shared",
        "missed, independent",
        "shared",
    ):
        table.add_column(heading, justify="right")
    for tables, hashes in SETTINGS:
        for cosine in COSINES:
            sides = [(exact(tables, hashes, cosine, s), measured(tables, hashes, cosine, s)) for s in (False, True)]
            means = f"{sides[0][0].mean:.2f} ({sides[0][1].mean:.2f}, {sides[1][1].mean:.2f})"
            spreads = (f"{one.spread:.2f} ({two.spread:.2f})" for one, two in sides)
            missed = (f"{one.missed:.2g} ({two.missed:.2g})" for one, two in sides)
            table.add_row(f"{tables} × {hashes}", f"{cosine}", means, *spreads, *missed)
    console.print(table)
    table = Table(
        "tables × hashes", "functions", "shared", "ms", "shared", "faster", title=f"hashing {_ROWS:,} rows of {_DIM}"
    )
    for tables, hashes in SETTINGS:
        found = seconds(tables, hashes)
        fewer = Hyperplane(_DIM).sample(tables=tables, hashes=hashes, shared=True).functions
        table.add_row(
            f"{tables} × {hashes}", f"{tables * hashes}", f"{fewer}", f"{1e3 * found[False]:.2f}",
            f"{1e3 * found[True]:.2f}", f"{found[False] / found[True]:.1f} ×",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
