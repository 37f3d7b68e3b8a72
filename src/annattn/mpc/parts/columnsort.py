"""Sorting in a constant number of rounds by Leighton's columnsort, nested where one machine is too small.

A column is a machine of r records. To sort r·c records in c columns, with r ≥ 2(c-1)², c dividing r and r even: sort
the columns, transpose, sort, untranspose, sort, shift by half a column, sort, shift back. Destinations do not depend on
the data, and every machine always holds at most r records, whatever the keys. That bounds the loads.

A group of c machines sorted this way is itself a column of r·c records, so c' groups can be sorted in the same way if
r·c ≥ 2(c'-1)². The move that ends an inner sort and the outer move that follows it are one move. With d levels that
makes 4^d rounds for up to about r^(1.5^d) records. For s = N^ε this is a constant, 4^⌈log_1.5(1/ε)⌉ up to rounding: the
paper's Lemma "MPC Sorting" for large ε. For small ε `samplesort` takes fewer.

The shift is cyclic: the half columns at both ends share one column. By the 0-1 principle, at most (c-1)² ≤ r/2
consecutive positions are out of order by then. So one of the two halves is constant there, and neither can change.
Missing records count as larger than all others: they fill the end of every column without being sent.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, isqrt, lcm, prod

import numpy as np

from annattn.errors import InputError
from annattn.mpc.model import Mail, Numbers
from annattn.mpc.parts.stages import in_order, index_within

__all__ = ["LEVELS", "Columnsort", "can_columnsort", "plan_columnsort"]

LEVELS = 3
"""The most levels of recursion: at most 4^3 = 64 rounds. Memory that would need more is refused."""


@dataclass(frozen=True)
class Columnsort:
    """How to sort: `rows` records per machine, and the number of columns at each level, innermost first.

    >>> plan = plan_columnsort(n=1000, capacity=200)
    >>> plan.rows, plan.columns, plan.machines, plan.rounds
    (200, (5,), 5, 4)
    """

    rows: int
    columns: tuple[int, ...]

    @property
    def machines(self) -> int:
        """The number of machines that hold records: the product of the columns at all levels."""
        return prod(self.columns)

    @property
    def rounds(self) -> int:
        """4^d for d levels."""
        return 4 ** len(self.columns)

    def step(self, i: int, mail: Mail, keys: Sequence[int]) -> Mail:
        """Round i: every machine sorts its records by the key columns and sends each one where the plan says.

        No two records may have the same keys. After the last round machine j holds the ranks j·rows … (j+1)·rows - 1 in
        no particular order; `in_order` sorts them.
        """
        mail = in_order(mail, keys)
        position = self.moved(i, mail.dest * self.rows + index_within(mail.dest))
        return Mail(position // self.rows, mail.dest, mail.words)

    def moved(self, i: int, position: Numbers) -> Numbers:
        """Where round i sends the record at each position."""
        # The digits of i in base 4, lowest level first. A digit of 3 is the last move of its level, and the next level
        # moves along with it.
        size, digit = self.rows, i
        for columns in self.columns:
            position = _move(digit % 4, position, size, columns)
            if digit % 4 < 3:
                break
            size, digit = size * columns, digit // 4
        return position


def _move(kind: int, position: Numbers, rows: int, columns: int) -> Numbers:
    size, half = rows * columns, rows // 2
    start = position - position % size
    x = position % size
    if kind == 0:
        x = (x % columns) * rows + x // columns
    elif kind == 1:
        x = (x % rows) * columns + x // rows
    elif kind == 2:
        x = (x + half) % size
    else:
        x = np.where(x >= rows, x - half, np.where(x >= half, x + size - rows, x))
    return start + x


@lru_cache(maxsize=4096)
def plan_columnsort(n: int, capacity: int) -> Columnsort:
    """The plan to sort n records, at most `capacity` per machine, in the fewest rounds, then on the fewest machines."""
    if capacity >= max(n, 1):
        return Columnsort(max(n, 1), ())
    for levels in range(1, LEVELS + 1):
        plans = list(_plans(n, capacity, levels))
        if plans:
            return min(plans, key=lambda plan: (plan.machines, plan.rows))
    hint = "give the machines more memory"
    raise InputError("capacity", given=capacity, expected=f"room to sort {n} records in {LEVELS} levels", hint=hint)


def can_columnsort(n: int, capacity: int) -> bool:
    """Whether n records can be sorted with at most `capacity` per machine."""
    if capacity < 1:
        return False
    try:
        plan_columnsort(n, capacity)
    except InputError:
        return False
    return True


def _plans(n: int, capacity: int, levels: int) -> Iterator[Columnsort]:
    for inner in _inner(capacity, levels - 1):
        lowest = max(2, -(-n // (capacity * prod(inner))))
        highest = 1 + isqrt(capacity * prod(inner) // 2)
        # The fewest columns may not divide the rows well; take the first number that fits.
        for outer in range(lowest, highest + 1):
            columns = (*inner, outer)
            rows = _rows(n, columns)
            if rows <= capacity:
                yield Columnsort(rows, columns)
                break


def _inner(capacity: int, levels: int) -> Iterable[tuple[int, ...]]:
    if levels == 0:
        return [()]
    if levels == 1:
        return [(c,) for c in range(2, 2 + isqrt(capacity // 2))]
    powers = [2**e for e in range(1, capacity.bit_length())]
    return [(a, b) for a in powers for b in powers if 2 * (a - 1) ** 2 <= capacity and 2 * (b - 1) ** 2 <= capacity * a]


def _rows(n: int, columns: tuple[int, ...]) -> int:
    """The fewest rows per machine that hold n records and make every level a valid columnsort."""
    least, multiple, inside = -(-n // prod(columns)), 2, 1
    for c in columns:
        least = max(least, -(-2 * (c - 1) ** 2 // inside))
        multiple = lcm(multiple, c // gcd(c, inside))
        inside *= c
    return -(-least // multiple) * multiple
