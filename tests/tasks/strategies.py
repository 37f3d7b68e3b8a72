"""Hypothesis strategies for tasks and for inputs that a task takes but its sampler may never draw."""

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from annattn.tasks import TASKS, AssociativeRecall, InductionHeads, KHop, ListOps, Match2, Sum, Task


def match2s() -> st.SearchStrategy[Match2]:
    return st.builds(Match2, n=st.integers(1, 24), modulus=st.integers(2, 20), with_zero=st.booleans())


def induction_heads() -> st.SearchStrategy[InductionHeads]:
    return st.builds(InductionHeads, n=st.integers(2, 24), letters=st.integers(2, 5), repeats=st.booleans())


def k_hops() -> st.SearchStrategy[KHop]:
    return st.builds(
        KHop, n=st.integers(2, 24), letters=st.integers(2, 5), hops=st.integers(0, 20), repeats=st.booleans()
    )


def sums() -> st.SearchStrategy[Sum]:
    return st.builds(Sum, n=st.integers(1, 24), largest=st.integers(1, 50))


@st.composite
def recalls(draw: st.DrawFn) -> AssociativeRecall:
    pairs = draw(st.integers(1, 6))
    rest = draw(st.integers(1, 8))
    return AssociativeRecall(
        n=2 * pairs + rest,
        pairs=pairs,
        queries=draw(st.none() | st.integers(1, rest)),
        keys=draw(st.integers(pairs, 3 * pairs)),
        values=draw(st.integers(1, 6)),
    )


@st.composite
def list_ops(draw: st.DrawFn) -> ListOps:
    n = draw(st.integers(12, 40))
    longer_than = draw(st.integers(0, n // 3))
    return ListOps(n=n, longer_than=longer_than, depth=draw(st.integers(4, 8)), arguments=draw(st.integers(3, 5)))


_TASKS: dict[str, Callable[[], st.SearchStrategy[Task]]] = {
    "match2": match2s,
    "induction_heads": induction_heads,
    "k_hop": k_hops,
    "sum": sums,
    "associative_recall": recalls,
    "listops": list_ops,
}


def tasks(name: str) -> st.SearchStrategy[Task]:
    """Tasks of a kind with all sorts of parameters; a kind without a strategy is tested with its defaults."""
    return _TASKS[name]() if name in _TASKS else st.builds(TASKS[name])


@st.composite
def inputs(draw: st.DrawFn, task: Task) -> np.ndarray:
    """A matrix of up to four sequences, any that the task allows."""
    rows = draw(st.integers(0, 4))

    def matrix(low: int, high: int, columns: int) -> np.ndarray:
        cells = draw(st.lists(st.integers(low, high), min_size=rows * columns, max_size=rows * columns))
        return np.array(cells, dtype=np.int64).reshape(rows, columns)

    match task:
        case Match2():
            return matrix(0, task.modulus, task.n)
        case KHop():
            first, zero = task.special["first_letter"], task.special["zero_hops"]
            return np.hstack([matrix(zero, zero + task.hops, 1), matrix(first, zero - 1, task.n - 1)])
        case Sum():
            return matrix(1, task.largest, task.n)
        case AssociativeRecall():
            key, last, pairs = task.special["first_key"], task.input_vocab - 1, task.pairs
            x = matrix(key - 1, last, task.n)
            x[:, : 2 * pairs : 2] = np.maximum(x[:, : 2 * pairs : 2], key)
            x[:, 1 : 2 * pairs : 2] = matrix(task.special["first_value"], key - 1, pairs)
            rest = x[:, 2 * pairs :]
            rest[rest < key] = task.special["blank"]
            return x
        case _:
            return task.sample(rows, seed=draw(st.integers(0, 1000))).inputs
