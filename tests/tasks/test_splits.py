import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from annattn.errors import InputError
from annattn.tasks import SPLITS, Sum
from annattn.tasks.distinct import draw_distinct
from annattn.tasks.splits import fingerprint, rejection_sample, split_index


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.randoms())
def test_permutations_share_an_unordered_fingerprint(row: list[int], random):
    other = row.copy()
    random.shuffle(other)
    a, b = fingerprint(np.array([row, other]), ordered=False)
    assert a == b


def test_different_multisets_have_different_fingerprints():
    rows = np.array([[a, b, c] for a in range(30) for b in range(a, 30) for c in range(b, 30)])
    assert len(np.unique(fingerprint(rows, ordered=False))) == len(rows)


def test_different_sequences_have_different_ordered_fingerprints():
    rows = np.indices((20, 20, 20)).reshape(3, -1).T
    assert len(np.unique(fingerprint(rows, ordered=True))) == len(rows)


@pytest.mark.parametrize("ordered", [True, False])
def test_splits_take_their_sixteenths(ordered: bool):
    rows = np.random.default_rng(0).integers(1000, size=(40_000, 5))
    shares = np.bincount(split_index(fingerprint(rows, ordered=ordered))) / len(rows)
    np.testing.assert_allclose(shares, np.array(list(SPLITS.values())) / 16, atol=0.01)


def test_an_empty_split_is_an_error_and_not_an_endless_loop():
    # One sequence, so all but one of the splits are empty.
    task = Sum(n=3, largest=1)
    (home,) = task.split_of([[1, 1, 1]])
    assert task.sample(4, seed=0, split=home).inputs.tolist() == [[1, 1, 1]] * 4
    for split in SPLITS.keys() - {home}:
        with pytest.raises(InputError, match=f"outside split '{split}'.*take longer sequences"):
            task.sample(4, seed=0, split=split)


def test_fill_keeps_only_what_is_asked_for_and_exactly_as_many():
    rng = np.random.default_rng(0)
    rows = rejection_sample(777, lambda count: rng.integers(100, size=(count, 1)), lambda x: x[:, 0] == 7, "sevens")
    assert rows.tolist() == [[7]] * 777


@given(st.integers(0, 12), st.integers(0, 40), st.integers(0, 2**32))
def test_distinct_draws_are_distinct_and_in_range(count: int, more: int, seed: int):
    drawn = draw_distinct(np.random.default_rng(seed), 5, count, count + more)
    assert drawn.shape == (5, count)
    assert all(len(set(row)) == count for row in drawn.tolist())
    assert ((drawn >= 0) & (drawn < count + more)).all()


@pytest.mark.parametrize("population", [3, 5])  # a permutation; redrawn repeats
def test_all_ordered_distinct_draws_are_equally_likely(population: int):
    drawn = draw_distinct(np.random.default_rng(0), 60_000, 2, population)
    counts = np.bincount(drawn[:, 0] * population + drawn[:, 1], minlength=population**2).reshape(population, -1)
    assert (np.diag(counts) == 0).all()
    expected = 60_000 / (population * (population - 1))
    off_diagonal = counts[~np.eye(population, dtype=np.bool_)]
    # Five standard deviations of a binomial count.
    assert (np.abs(off_diagonal - expected) < 5 * np.sqrt(expected)).all()
