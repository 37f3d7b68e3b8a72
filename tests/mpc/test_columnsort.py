"""The sorting plan: its loads, its divisibility, and that no input of zeros and ones defeats it."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annattn.errors import InputError
from annattn.mpc.delivery import deliver
from annattn.mpc.model import spread
from annattn.mpc.order import order_within, stable_order
from annattn.mpc.parts.columnsort import Columnsort, can_columnsort, plan_columnsort
from annattn.mpc.parts.stages import in_order


def run_plan(plan: Columnsort, keys: np.ndarray) -> np.ndarray:
    words = np.column_stack([keys.astype(np.uint64), np.arange(len(keys), dtype=np.uint64)])
    mail = spread(words, plan.rows)
    for i in range(plan.rounds):
        mail = deliver(plan.step(i, mail, (0, 1)), plan.machines)
        assert np.bincount(mail.dest).max() <= plan.rows
    return in_order(mail, (0, 1)).words[:, 1].astype(np.int64)


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 3000), capacity=st.integers(2, 300))
def test_a_plan_holds_its_records_and_is_a_valid_columnsort_at_every_level(n, capacity):
    if not can_columnsort(n, capacity):
        return
    plan = plan_columnsort(n, capacity)
    assert plan.rows <= max(capacity, 1)
    assert plan.rows * plan.machines >= n
    size = plan.rows
    for columns in plan.columns:
        assert size % columns == 0
        assert size % 2 == 0
        assert size >= 2 * (columns - 1) ** 2
        size *= columns


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 400), capacity=st.integers(1, 60))
def test_more_memory_never_makes_sorting_impossible(n, capacity):
    assert can_columnsort(n, capacity + 1) or not can_columnsort(n, capacity)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [(2,), (3,), (2, 2)])
def test_inputs_of_zeros_and_ones_are_sorted(columns):
    plan = Columnsort({(2,): 4, (3,): 12, (2, 2): 4}[columns], columns)
    n = plan.rows * plan.machines
    every = list(product([0, 1], repeat=n)) if n <= 8 else np.random.default_rng(0).integers(0, 2, (800, n))
    for bits in every:
        keys = np.array(bits)
        assert np.array_equal(run_plan(plan, keys), np.argsort(keys, kind="stable"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=300), st.integers(0, 50))
def test_three_levels_sort_any_keys(keys, more):
    least = next(c for c in range(1, 400) if can_columnsort(len(keys), c))
    plan = plan_columnsort(len(keys), least + more)
    column = np.array(keys, np.uint64)
    assert np.array_equal(run_plan(plan, column), np.argsort(column, kind="stable"))


def test_a_capacity_too_small_for_three_levels_is_refused():
    with pytest.raises(InputError, match="room to sort 1000000 records"):
        plan_columnsort(1_000_000, 2)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 2**63, 2**64 - 1]), st.integers(0, 2)), max_size=600),
    st.booleans(),
)
def test_order_within_is_the_stable_order_by_machine_and_columns(rows, one_machine):
    rows.sort(key=lambda row: row[0])
    table = np.array(rows, object).reshape(-1, 3)
    machine = np.zeros(len(rows), np.int64) if one_machine else table[:, 0].astype(np.int64)
    columns = [table[:, 1].astype(np.uint64), table[:, 2].astype(np.uint64)]
    expected = sorted(range(len(rows)), key=lambda i: (machine[i], rows[i][1], rows[i][2]))
    assert order_within(machine, columns).tolist() == expected


@pytest.mark.parametrize("bound", [10, 2**16, 2**20, 2**40])
def test_stable_order_is_stable_for_any_range_of_numbers(bound):
    column = np.random.default_rng(0).integers(0, bound, 2000) // 7 * 7
    order = stable_order(column, bound)
    assert order is not None
    assert np.array_equal(order, np.argsort(column, kind="stable"))
    assert stable_order(np.sort(column), bound) is None
