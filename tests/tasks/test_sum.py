import numpy as np
import pytest

from annattn.errors import InputError
from annattn.tasks import Sum


def test_the_last_position_holds_the_sum_of_all_numbers_unreduced():
    assert Sum(n=3, largest=5).labels([[5, 5, 4], [1, 1, 1]]).tolist() == [[0, 0, 14], [0, 0, 3]]


def test_only_the_last_position_counts():
    assert Sum(n=3, largest=5).sample(2, seed=0).mask.tolist() == [[False, False, True]] * 2


def test_numbers_run_from_one_to_the_largest():
    inputs = Sum(n=50, largest=6).sample(50, seed=0).inputs
    assert set(np.unique(inputs).tolist()) == {1, 2, 3, 4, 5, 6}


def test_held_out_data_is_never_a_permutation_of_training_data():
    task = Sum(n=3, largest=6)
    multisets = {
        split: {tuple(sorted(row)) for row in task.sample(500, seed=0, split=split).inputs.tolist()}
        for split in ("train", "test")
    }
    assert not multisets["train"] & multisets["test"]


def test_a_sum_that_overflows_is_refused():
    # Below that no sum of n numbers leaves int64.
    with pytest.raises(InputError, match=r"largest: got 4611686018427387904, expected an integer below 2\^31"):
        Sum(n=4, largest=2**62)
