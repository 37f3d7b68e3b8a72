import numpy as np
import pytest

from annattn.errors import InputError
from annattn.tasks import InductionHeads, KHop

# The paper's example, worked by hand from the definition. σ is 0 2 0 0 4 3 6 5 7 for positions 1 … 9: position 2
# repeats its predecessor and hops to itself; positions 1, 3 and 4 are the first of their letters.
WORD = "aabcbabca"
BY_HAND = {
    0: "aabcbabca",
    1: ".a..cbabb",
    2: ".a....bca",
    3: ".a......b",
    4: ".a.......",
}


@pytest.mark.parametrize(("hops", "answer"), BY_HAND.items())
def test_the_papers_word_letter_by_letter(hops: int, answer: str):
    task = KHop(n=10, letters=3, hops=4)
    x = task.encode(WORD, hops)
    assert task.decode(task.solve(x)) == "_" + answer
    assert task.decode(task.labels(x)) == "_" + answer


def test_the_papers_two_statements_about_position_9():
    task = KHop(n=10, letters=3, hops=2)
    assert task.decode(task.solve(task.encode(WORD, 1)))[9] == "b"
    assert task.decode(task.solve(task.encode(WORD, 2)))[9] == "a"


def test_induction_heads_are_one_hop():
    one, many = InductionHeads(n=10, letters=3), KHop(n=10, letters=3, hops=4)
    assert one.decode(one.solve(one.encode(WORD, 1))) == "_" + BY_HAND[1]
    x, y = one.encode(WORD, 1), many.encode(WORD, 1)
    assert one.solve(x).tolist() == many.solve(y).tolist()


def test_a_letter_after_its_equal_hops_to_itself_for_ever():
    task = KHop(n=5, letters=2, hops=9, repeats=True)
    assert task.decode(task.labels(task.encode("abbb", 1))) == "_..bb"
    assert task.decode(task.labels(task.encode("abbb", 9))) == "_..bb"


def test_a_missing_hop_stays_missing():
    task = KHop(n=6, letters=2, hops=100)
    assert task.decode(task.labels(task.encode("ababa", 1))) == "_..bab"
    assert task.decode(task.labels(task.encode("ababa", 3))) == "_....b"
    assert task.decode(task.labels(task.encode("ababa", 100))) == "_....."


def test_targets_depend_on_no_later_letter():
    task = KHop(n=60, letters=4, hops=3)
    x = task.sample(4, seed=0, hops=3).inputs
    changed = x.copy()
    changed[:, 40:] = task.special["first_letter"]
    np.testing.assert_array_equal(task.labels(x)[:, :40], task.labels(changed)[:, :40])


def test_by_default_each_letter_differs_from_the_one_before_and_the_others_are_equally_likely():
    letters = KHop(n=101, letters=4).sample(400, seed=0).inputs[:, 1:] - 2
    steps = np.diff(letters, axis=1) % 4
    shares = np.bincount(steps.ravel(), minlength=4) / steps.size
    np.testing.assert_allclose(shares, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.01)
    np.testing.assert_allclose(np.bincount(letters.ravel()) / letters.size, 1 / 4, atol=0.01)


def test_with_repeats_letters_are_uniform_and_independent():
    letters = KHop(n=101, letters=4, repeats=True).sample(400, seed=0).inputs[:, 1:] - 2
    bigrams = np.bincount((4 * letters[:, 1:] + letters[:, :-1]).ravel(), minlength=16)
    np.testing.assert_allclose(bigrams / bigrams.sum(), 1 / 16, atol=0.005)


def test_training_asks_for_all_hop_counts_and_held_out_data_for_the_largest():
    task = KHop(n=20, hops=3)
    zero = task.special["zero_hops"]
    assert set((task.sample(100, seed=0).inputs[:, 0] - zero).tolist()) == {0, 1, 2, 3}
    for split in ("validation", "test"):
        assert set((task.sample(100, seed=0, split=split).inputs[:, 0] - zero).tolist()) == {3}
    assert set((task.sample(100, seed=0, hops=2).inputs[:, 0] - zero).tolist()) == {2}


def test_training_can_ask_for_a_range_of_hop_counts_and_the_words_stay_the_same():
    task = KHop(n=20, hops=6, asked_from=2, asked_to=4)
    drawn = task.sample(100, seed=0)
    assert set((drawn.inputs[:, 0] - task.special["zero_hops"]).tolist()) == {2, 3, 4}
    assert set((task.sample(9, seed=0, split="test").inputs[:, 0] - task.special["zero_hops"]).tolist()) == {6}
    np.testing.assert_array_equal(drawn.targets, task.solve(drawn.inputs))
    one = InductionHeads(n=20, asked_from=1)
    assert set(one.sample(50, seed=0).inputs[:, 0].tolist()) == {one.special["zero_hops"] + 1}


def test_a_word_is_in_one_split_whatever_its_hop_count():
    task = KHop(n=8, letters=3, hops=2)
    words = {
        split: {tuple(row) for row in task.sample(100, seed=0, split=split).inputs[:, 1:].tolist()}
        for split in ("train", "test")
    }
    assert not words["train"] & words["test"]


def test_all_positions_count_and_the_first_target_is_blank():
    task = InductionHeads()
    batch = task.sample(4, seed=0)
    assert batch.inputs.shape == (4, 100)
    assert batch.mask.all()
    assert (batch.targets[:, 0] == task.special["blank"]).all()
    assert (batch.targets[:, 1:] != task.special["blank"]).all()


def test_a_large_alphabet_is_sorted_right():
    task = KHop(n=50, letters=2**16, hops=2, repeats=True)
    x = task.sample(3, seed=0, hops=2).inputs
    x[:, 10::3] = task.special["zero_hops"] - 1
    np.testing.assert_array_equal(task.labels(x), task.solve(x))


def test_bad_parameters_are_named():
    with pytest.raises(InputError, match="letters: got 1, expected an integer of at least 2"):
        KHop(letters=1)
    assert KHop(n=6, letters=1, repeats=True).letters == 1
    with pytest.raises(InputError, match="hops: got -1, expected an integer of at least 0"):
        KHop(hops=-1)
    with pytest.raises(InputError, match=r"hops: got 5, expected at most 4; make KHop\(hops=5\)"):
        KHop(hops=4).sample(2, seed=0, hops=5)
    with pytest.raises(InputError, match="hops asked for in training: got 3 to 2, expected a range within 0 to 4"):
        KHop(hops=4, asked_from=3, asked_to=2)
    with pytest.raises(InputError, match="hops asked for in training: got 0 to 5"):
        KHop(hops=4, asked_to=5)
    with pytest.raises(InputError, match="asked_from: got -1"):
        KHop(asked_from=-1)
    with pytest.raises(InputError, match=r"first token \(the hop count\): got 2, expected tokens 6 to 10"):
        KHop(n=3).labels([2, 2, 3])
    with pytest.raises(InputError, match="letters: got 25, expected tokens 2 to 4"):
        KHop(n=3, letters=3).encode("ax", 1)


def test_larger_counts_come_more_often_and_all_of_them_come():
    task = KHop(n=10, hops=3, asked_from=1, favour_many=True)
    counts = np.bincount(task.sample(9000, 0).inputs[:, 0] - task.special["zero_hops"], minlength=4)
    # The larger of two draws among three: 1, 3 and 5 of nine cases.
    assert counts[0] == 0
    assert np.abs(counts[1:] / 1000 - [1, 3, 5]).max() < 0.3
    with pytest.raises(InputError, match="favour_many"):
        KHop(favour_many=2)  # pyright: ignore[reportArgumentType]
