"""The sparse-averaging code: every message is read back exactly, or it is an error, never another message."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annattn.compiler.sparse_code import SparseCode, enough_slots, lemma_slots, practical_slots
from annattn.errors import CollisionError


def averages(code: SparseCode, body: np.ndarray, sets: list) -> np.ndarray:
    value = code.encode(np.arange(len(body)), body)
    return np.stack([value[list(senders)].sum(axis=0) / len(senders) for senders in sets])


def read(code: SparseCode, mean: np.ndarray) -> dict:
    found = code.decode(mean, layer=0, head=0)
    pairs = zip(found.reader.tolist(), found.sender.tolist(), strict=True)
    read = dict(zip(pairs, map(tuple, found.body.tolist()), strict=True))
    assert len(read) == len(found.reader)
    return read


def expected(body: np.ndarray, sets: list) -> dict:
    return {(r, s): tuple(body[s].tolist()) for r, senders in enumerate(sets) for s in senders}


@pytest.mark.parametrize(("senders", "machines"), [(1, 1), (3, 3), (4, 300), (16, 200), (16, 4096), (40, 5000)])
def test_a_practical_code_reads_every_message_of_random_senders(senders, machines):
    rng = np.random.default_rng(machines)
    code = SparseCode.practical(senders, machines)
    assert code.slots == practical_slots(senders, machines)
    body = rng.integers(0, 2**32, (machines, 2))
    sets = [rng.choice(machines, rng.integers(1, senders + 1), replace=False) for _ in range(300)]
    assert read(code, averages(code, body, sets)) == expected(body, sets)


@pytest.mark.parametrize(("senders", "machines"), [(1, 5), (2, 9), (3, 7), (4, 8)])
def test_the_square_of_the_senders_is_enough_slots_for_every_set_of_senders(senders, machines):
    code = SparseCode.lemma(senders, machines, enough_slots(senders, machines))
    body = np.random.default_rng(0).integers(0, 2**32, (machines, 1))
    sets = [chosen for size in range(1, senders + 1) for chosen in combinations(range(machines), size)]
    mean = averages(code, body, sets)
    # Not by peeling: each sender has a slot of its own, as the lemma says.
    rows = np.zeros((machines, code.slots + 1), bool)
    np.put_along_axis(rows, code.of, True, axis=1)
    assert all((rows[list(c), :-1] & (rows[list(c), :-1].sum(axis=0) == 1)).any(axis=1).all() for c in sets)
    assert read(code, mean) == expected(body, sets)


@pytest.mark.parametrize(("senders", "machines"), [(8, 100), (16, 300)])
def test_the_lemmas_density_is_what_makes_its_slots_enough_for_many_senders(senders, machines):
    code = SparseCode.lemma(senders, machines, enough_slots(senders, machines))
    rows = np.zeros((machines, code.slots + 1), bool)
    np.put_along_axis(rows, code.of, True, axis=1)
    rng = np.random.default_rng(0)
    for _ in range(100):
        chosen = rows[rng.choice(machines, senders, replace=False), :-1]
        assert (chosen & (chosen.sum(axis=0) == 1)).any(axis=1).all()
    # A binomial share of this many entries is within a hundredth of its mean.
    assert rows[:, :-1].mean() == pytest.approx(1 / (senders + 1), rel=0.01)


def test_the_largest_neighbouring_numbers_in_one_slot_are_told_from_one_sender():
    # Their variance is 2^-42 of their mean square, the least there is; the slot they share comes first.
    machines, first, second = 2**20, 2**20 - 2, 2**20 - 1
    rows = np.zeros((machines, 3), bool)
    rows[:, 0] = True
    rows[first, 1] = rows[second, 2] = True
    code = SparseCode(rows)
    mean = code.encode([first, second], [[7], [9]]).sum(axis=0, keepdims=True) / 2
    assert read(code, mean) == {(0, first): (7,), (0, second): (9,)}


def test_slots_by_formula():
    assert [lemma_slots(a, q) for a, q in ((1, 2), (2, 10), (3, 100))] == [9, 443, 4477]
    assert [enough_slots(a, q) for a, q in ((1, 2), (2, 10), (3, 100))] == [9, 111, 498]
    assert [practical_slots(a, q) for a, q in ((1, 2), (2, 100), (16, 10**6))] == [2, 40, 96]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), slots=st.integers(2, 12), size=st.integers(1, 8))
def test_too_few_slots_are_an_error_and_never_a_wrong_message(seed, slots, size):
    rng = np.random.default_rng(seed)
    machines = int(rng.integers(max(size, slots + 1), 30))
    rows = rng.random((machines, slots)) < rng.uniform(0.1, 0.9)
    rows[~rows.any(axis=1), 0] = True
    code = SparseCode(rows)
    body = rng.integers(0, 3, (machines, 2))
    sets = [rng.choice(machines, size, replace=False)]
    try:
        found = read(code, averages(code, body, sets))
    except CollisionError:
        return
    assert found == expected(body, sets)


def test_senders_that_share_all_slots_are_named():
    code = SparseCode(np.ones((4, 3), bool))
    mean = averages(code, np.arange(4)[:, None], [[1], [0, 2]])
    with pytest.raises(CollisionError, match="layer 3, head 2, token 1"):
        code.decode(mean, layer=3, head=2)
    assert read(code, mean[:1]) == {(0, 1): (1,)}


def test_codes_come_from_their_seed_and_have_the_shape_they_say():
    for make in (SparseCode.practical, lambda *sizes, seed=0: SparseCode.lemma(*sizes, slots=50, seed=seed)):
        codes = [make(3, 60, seed=seed).of for seed in (0, 0, 1)]
        assert np.array_equal(codes[0], codes[1])
        assert not np.array_equal(codes[0], codes[2])
    code = SparseCode.practical(3, 60)
    assert (code.machines, code.slots, code.weight) == (60, 44, 8)
    assert (np.sort(code.of, axis=1) < code.slots).all()
    assert all(len(set(slots)) == 8 for slots in code.of.tolist())
    assert SparseCode.practical(3, 60, slots=20).slots == 20


def test_no_two_senders_have_the_same_slots_where_there_are_enough_choices():
    # 45 choices of 8 of 10 slots for 40 senders: drawn once, some would be equal.
    for seed in range(5):
        slots = np.sort(SparseCode.practical(2, 40, slots=10, seed=seed).of, axis=1)
        assert len(np.unique(slots, axis=0)) == 40


def test_every_row_of_the_lemmas_matrix_has_a_slot():
    assert (SparseCode.lemma(50, 200, slots=4).of.min(axis=1) < 4).all()


def test_a_reader_without_senders_gets_nothing():
    found = SparseCode.practical(2, 5).decode(np.zeros((3, 5 * 5)), layer=0, head=0)
    assert (found.reader.shape, found.sender.shape, found.body.shape) == ((0,), (0,), (0, 2))


def damaged(column: int, by: float) -> np.ndarray:
    """The averages of two readers, the second with one number changed in the slot of sender 2."""
    code = SparseCode.practical(2, 4)
    mean = averages(code, np.array([[5], [6], [7], [8]]), [[0, 1], [2, 3]])
    mean[1, column * code.slots + 2] += by
    return mean


@pytest.mark.parametrize(
    ("column", "by", "why"),
    [
        (3, 0.2, "an average of other than whole messages"),
        (3, 0.15, "an average of other than whole messages"),
        (1, 0.5, "an average of other than whole messages|a message in slots not its sender's"),
        (2, 0.5, "a message in slots not its sender's"),
    ],
)
def test_an_average_that_was_tampered_with_is_an_error_that_names_the_reader(column, by, why):
    with pytest.raises(CollisionError, match=f"layer 3, head 2, token 1: ({why})"):
        SparseCode.practical(2, 4).decode(damaged(column, by), layer=3, head=2)


def test_senders_left_after_peeling_are_named():
    rows = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 1]], bool)
    code = SparseCode(rows)
    mean = averages(code, np.array([[5], [6], [7]]), [[0], [0, 1, 2]])
    with pytest.raises(
        CollisionError, match="layer 4, head 1, token 1: messages of several senders share all their slots"
    ):
        code.decode(mean, layer=4, head=1)
