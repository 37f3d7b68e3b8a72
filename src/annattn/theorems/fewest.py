"""The fewest rounds and machines in which records can be sorted, by trying everything that the conditions allow.

This is what the rows hold the sorting protocols to. It takes Leighton's condition and the arithmetic of
`docs/sorting.md` and nothing from the planners but their estimate of bad seeds, so a planner that chooses worse breaks
a row: one level more, or machines that are not needed.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from annattn.mpc.parts.samplesort import MOST, fitting, nearby

__all__ = ["Fewest", "fewest", "tree_of"]


@dataclass(frozen=True)
class Fewest:
    """Rounds, machines, and how many records each of the machines holds that are left with some."""

    rounds: int
    machines: int
    rows: int


def tree_of(leaves: int, arity: int) -> tuple[int, int]:
    """Depth and inner nodes of a tree over these leaves.

    >>> tree_of(10, 3)
    (3, 7)
    """
    depth, nodes = 0, 0
    while leaves > 1:
        leaves = -(-leaves // arity)
        depth, nodes = depth + 1, nodes + leaves
    return depth, nodes


@lru_cache(maxsize=4096)
def fewest(n: int, capacity: int) -> Fewest:
    """The fewest rounds to sort n records with this many per machine, then the fewest machines.

    Columnsort with one level or two if that is possible, else samples or, with too little memory for these, columnsort
    with three levels.

    >>> fewest(1000, 200), fewest(100_000, 300).rounds, fewest(10**9, 2000).rounds
    (Fewest(rounds=4, machines=5, rows=200), 16, 27)
    """
    if capacity >= n:
        return Fewest(1, 1, n)
    columns = _one_level(n, capacity) or _two_levels(n, capacity)
    samples = [_by_samples(n, tried) for tried in nearby(capacity)] if columns is None else []
    found = [plan for plan in (columns, *samples) if plan is not None and plan.rounds < 64]
    if not found:
        found = [_three_levels(n, capacity)]
    return min(found, key=lambda plan: (plan.rounds, plan.machines))


def _one_level(n: int, capacity: int) -> Fewest | None:
    """Each of c columns has r ≥ 2(c-1)² records; r is even and c divides it."""
    for c in range(max(2, -(-n // capacity)), 2 + math.isqrt(capacity // 2)):
        even = math.lcm(2, c)
        rows = -(-max(-(-n // c), 2 * (c - 1) ** 2) // even) * even
        if rows <= capacity:
            return Fewest(4, c, rows)
    return None


def _two_levels(n: int, capacity: int) -> Fewest | None:
    """The same for c' columns of r·c records, where c' divides r·c."""
    best = None
    for c in range(2, 2 + math.isqrt(capacity // 2)):
        # The fewest that hold all, and some more, in case these do not divide the rows well.
        lowest, most = max(2, -(-n // (c * capacity))), 1 + math.isqrt(capacity * c // 2)
        if lowest > most:
            continue
        outer = np.arange(lowest, min(lowest + 1000, most + 1))
        even = np.lcm(math.lcm(2, c), outer // np.gcd(outer, c))
        least = np.maximum(-(-n // (c * outer)), np.maximum(2 * (c - 1) ** 2, -(-2 * (outer - 1) ** 2 // c)))
        rows = -(-least // even) * even
        fits = np.flatnonzero(rows <= capacity)
        if len(fits):
            found = (c * int(outer[fits[0]]), int(rows[fits[0]]))
            best = found if best is None else min(best, found)
    return None if best is None else Fewest(16, *best)


def _three_levels(n: int, capacity: int) -> Fewest:
    """The same once more, with c'' columns of r·c·c' records; c and c' are powers of two."""
    powers, best = [2**e for e in range(1, capacity.bit_length())], None
    for c in powers:
        for inner in powers:
            lowest, most = max(2, -(-n // (c * inner * capacity))), 1 + math.isqrt(capacity * c * inner // 2)
            if 2 * (c - 1) ** 2 > capacity or 2 * (inner - 1) ** 2 > capacity * c or lowest > most:
                continue
            for outer in range(lowest, most + 1):
                even = math.lcm(2, c, inner // math.gcd(inner, c), outer // math.gcd(outer, c * inner))
                least = max(
                    -(-n // (c * inner * outer)),
                    2 * (c - 1) ** 2,
                    -(-2 * (inner - 1) ** 2 // c),
                    -(-2 * (outer - 1) ** 2 // (c * inner)),
                )
                rows = -(-least // even) * even
                if rows <= capacity:
                    best = min(best or (c * inner * outer, rows), (c * inner * outer, rows))
                    break
    assert best is not None, "the rows choose enough memory"
    return Fewest(64, *best)


def _by_samples(n: int, capacity: int) -> Fewest | None:
    """On p = a^t machines, waves of c·a^i more, and a tree: 3 + 4t + 2·depth rounds."""
    levels = 1
    while capacity * 2**levels <= 2 * MOST * n:
        found = []
        for arity in range(2, 2 + math.isqrt(capacity)):
            if n <= arity**levels * capacity <= MOST * n and arity * (arity - 1) < capacity:
                plan = fitting(n, capacity, levels, arity)
                if plan is not None:
                    depth, nodes = tree_of(arity**levels, capacity - 1)
                    waves = plan.team * (arity**levels - 1) // (arity - 1)
                    found.append((arity**levels + waves + nodes, 3 + 4 * levels + 2 * depth, plan.rows))
        if found:
            machines, rounds, rows = min(found)
            return Fewest(rounds, machines, rows)
        levels += 1
    return None
