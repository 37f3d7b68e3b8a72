import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annattn.errors import InputError
from annattn.tasks import SPLITS, Match2
from annattn.tasks.match2 import _common_bins

from .strategies import match2s


def test_zero_matches_itself_whether_written_0_or_m():
    task = Match2(n=3, modulus=7)
    for label in (task.labels, task.solve):
        assert label([[0, 1, 2], [7, 1, 2], [0, 7, 3]]).tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 0]]


def test_half_of_an_even_modulus_matches_itself_and_no_token_of_an_odd_one_does():
    assert Match2(n=2, modulus=8).solve([4, 1]).tolist() == [1, 0]
    odd = Match2(n=1, modulus=37)
    assert [int(odd.solve([token])[0]) for token in range(1, 37)] == [0] * 36


def test_the_default_is_the_papers_text_and_with_zero_its_algorithm():
    text = Match2().sample(400, seed=0).inputs
    assert set(np.unique(text).tolist()) == set(range(1, 37))
    algorithm = Match2(with_zero=True).sample(400, seed=0).inputs
    assert set(np.unique(algorithm).tolist()) == set(range(1, 38))


@pytest.mark.parametrize("split", SPLITS)
def test_bins_are_balanced_by_the_papers_percentages(split: str):
    task = Match2()
    batch = task.sample(32, seed=0, split=split)
    percent = 100 * np.array([sum(row) for row in task.solve(batch.inputs).tolist()]) / 32
    inside = [(low <= percent) & (percent < high) for low, high in ((0, 25), (25, 50), (50, 75), (75, 101))]
    assert [int(mask.sum()) for mask in inside] == [8, 8, 8, 8]


def test_rows_that_do_not_divide_by_four_go_to_the_first_bins():
    task = Match2()
    assert Counter(task.bin_of(task.sample(7, seed=0).targets).tolist()) == {0: 2, 1: 2, 2: 2, 3: 1}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("modulus", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("with_zero", [True, False])
def test_the_bins_are_those_that_some_sequence_falls_into(n: int, modulus: int, with_zero: bool):
    if modulus == 1 and not with_zero:
        return
    task = Match2(n=n, modulus=modulus, with_zero=with_zero)
    everything = list(itertools.product(range(1, modulus + with_zero), repeat=n))
    assert task.bins == tuple(sorted(set(task.bin_of(task.solve(everything)).tolist())))


@pytest.mark.slow
@given(task=match2s(), seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=300, deadline=None)
def test_built_sequences_fall_into_the_bin_they_were_built_for(task: Match2, seed: int, data: st.DataObject):
    b = data.draw(st.sampled_from(task.bins))
    built = task._build(6, b, np.random.default_rng(seed))
    assert built.min() >= 1
    assert built.max() < task.modulus + task.with_zero
    assert (task.bin_of(task.solve(built)) == b).all()


@pytest.mark.slow
@pytest.mark.parametrize("b", range(4))
@pytest.mark.parametrize(("modulus", "with_zero"), [(37, False), (37, True), (12, False), (12, True)])
def test_built_sequences_use_every_token_place_and_number_of_ones(b: int, modulus: int, with_zero: bool):
    task = Match2(n=16, modulus=modulus, with_zero=with_zero)
    built = task._build(3000, b, np.random.default_rng(0))
    targets = task.solve(built)
    low = 0 if with_zero or modulus == 12 else 2
    expected = [ones for ones in range(4 * b, 4 * b + 4 + (b == 3)) if ones == 0 or ones >= low]
    assert sorted(set(targets.sum(axis=1).tolist())) == expected
    for column in built.T:
        assert set(column.tolist()) == set(range(1, modulus + with_zero))


def test_common_bins_are_drawn_and_rare_ones_built():
    assert _common_bins(Match2()) == {1, 2, 3}
    # Long sequences of few tokens always match; long ones of many tokens never do.
    assert _common_bins(Match2(n=512, modulus=37)) == {3}
    assert _common_bins(Match2(n=64, modulus=100_003)) == {0}


@pytest.mark.parametrize(("n", "modulus"), [(512, 37), (64, 100_003), (33, 38), (8, 2**31 - 1)])
def test_every_bin_is_filled_for_other_lengths_and_moduli(n: int, modulus: int):
    task = Match2(n=n, modulus=modulus)
    batch = task.sample(16, seed=0, split="test")
    np.testing.assert_array_equal(batch.targets, task.solve(batch.inputs))
    assert Counter(task.bin_of(batch.targets).tolist()) == {0: 4, 1: 4, 2: 4, 3: 4}


@pytest.mark.parametrize("originals", [None, 32])
def test_held_out_data_is_never_a_permutation_of_training_data(originals: int | None):
    # Few multisets, so that an unlucky draw would show.
    task = Match2(n=8, modulus=5)
    multisets = {
        split: {
            tuple(sorted(row)) for row in task.sample(400, seed=0, split=split, originals=originals).inputs.tolist()
        }
        for split in SPLITS
    }
    for one, other in itertools.combinations(SPLITS, 2):
        assert not multisets[one] & multisets[other]


def test_originals_are_topped_up_by_permutations():
    task = Match2()
    batch = task.sample(400, seed=0, originals=10)
    np.testing.assert_array_equal(batch.targets, task.solve(batch.inputs))
    assert Counter(task.bin_of(batch.targets).tolist()) == {0: 100, 1: 100, 2: 100, 3: 100}
    assert len({tuple(sorted(row)) for row in batch.inputs.tolist()}) == 10
    assert len({tuple(row) for row in batch.inputs.tolist()}) == 400
    assert len({tuple(sorted(row)) for row in task.sample(400, seed=0).inputs.tolist()}) == 400


def test_bad_parameters_are_named():
    with pytest.raises(InputError, match="modulus: got 1, expected an integer of at least 2"):
        Match2(modulus=1)
    assert Match2(n=2, modulus=1, with_zero=True).solve([1, 1]).tolist() == [1, 1]
    with pytest.raises(InputError, match=r"modulus: got 2147483648, expected an integer below 2\^31"):
        Match2(modulus=2**31)
    with pytest.raises(InputError, match="originals: got 3, expected an integer of at least 4"):
        Match2().sample(32, seed=0, originals=3)
