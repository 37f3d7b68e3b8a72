"""How to sort: columnsort where it takes at most sixteen rounds, else whichever takes fewer (Lemma "MPC Sorting")."""

from annattn.errors import InputError
from annattn.mpc.parts.columnsort import LEVELS, Columnsort, can_columnsort, plan_columnsort
from annattn.mpc.parts.samplesort import Samplesort, plan_samplesort

__all__ = ["SortPlan", "can_sort", "plan_sort"]

SortPlan = Columnsort | Samplesort


def plan_sort(n: int, capacity: int, seed: int = 0, *, unique_capacity: int | None = None) -> SortPlan:
    """A plan to sort n records, at most `capacity` per machine.

    Columnsort cannot fail, but its rounds grow like (1/ε)^3.4, those of samplesort like 1/ε. So samplesort is chosen
    only where columnsort takes more than 16 rounds. It needs records with different keys; if records need a place for
    that, `unique_capacity` says how many such records a machine holds.

    >>> plan_sort(1000, 200).rounds, plan_sort(100_000, 120).rounds, plan_sort(10**9, 2000).rounds
    (4, 64, 27)
    """
    column = plan_columnsort(n, capacity) if can_columnsort(n, capacity) else None
    if column is not None and column.rounds <= 16:
        return column
    sample = plan_samplesort(n, capacity if unique_capacity is None else unique_capacity, seed)
    plans = [plan for plan in (column, sample) if plan is not None]
    if not plans:
        expected = f"room to sort {n} records by {LEVELS} levels of columnsort or by samples"
        raise InputError("capacity", given=capacity, expected=expected, hint="give the machines more memory")
    return min(plans, key=lambda plan: plan.rounds)


def can_sort(n: int, capacity: int, *, unique_capacity: int | None = None) -> bool:
    """Whether n records can be sorted with at most `capacity` per machine."""
    if can_columnsort(n, capacity):
        return True
    return plan_samplesort(n, capacity if unique_capacity is None else unique_capacity) is not None
