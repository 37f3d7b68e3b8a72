import numpy as np
import pytest

from annattn.errors import InputError
from annattn.tasks import AssociativeRecall


def test_a_query_gets_the_value_of_its_key():
    task = AssociativeRecall(n=7, pairs=2, queries=2, keys=3, values=3)
    first, second, third = (task.special["first_key"] + i for i in range(3))
    assert task.solve([third, 4, first, 2, first, 0, third]).tolist() == [0, 0, 0, 0, 2, 0, 4]
    assert task.labels([third, 4, first, 2, first, 0, third]).tolist() == [0, 0, 0, 0, 2, 0, 4]
    assert task.labels([third, 4, first, 2, second, 0, third])[4] == task.special["null"]


def test_the_last_pair_of_a_repeated_key_wins():
    task = AssociativeRecall(n=7, pairs=3, keys=3, values=3)
    key = task.special["first_key"]
    for label in (task.labels, task.solve):
        assert label([key, 4, key, 2, key + 1, 3, key])[-1] == 2


def test_sampled_keys_differ_and_every_query_has_an_answer():
    task = AssociativeRecall(n=64, pairs=12, queries=20, keys=40, values=5)
    batch = task.sample(50, seed=0)
    keys, values = batch.inputs[:, :24:2], batch.inputs[:, 1:24:2]
    assert all(len(set(row)) == 12 for row in keys.tolist())
    assert set(np.unique(values).tolist()) == {2, 3, 4, 5, 6}
    assert (batch.mask.sum(axis=1) == 20).all()
    assert not batch.mask[:, :24].any()
    assert (batch.inputs[:, 24:][~batch.mask[:, 24:]] == task.special["blank"]).all()
    answers = batch.targets[batch.mask]
    assert ((answers >= 2) & (answers < task.target_vocab)).all()


def test_without_a_number_of_queries_they_fill_the_sequence():
    batch = AssociativeRecall(n=40, pairs=4, keys=8, values=8).sample(3, seed=0)
    assert batch.mask[:, 8:].all()


def test_queries_ask_for_all_pairs_and_stand_at_all_places():
    task = AssociativeRecall(n=12, pairs=3, queries=2, keys=3, values=2)
    batch = task.sample(2000, seed=0)
    asked = batch.inputs[batch.mask]
    np.testing.assert_allclose(np.bincount(asked)[task.special["first_key"] :] / len(asked), 1 / 3, atol=0.03)
    np.testing.assert_allclose(batch.mask[:, 6:].mean(axis=0), 2 / 6, atol=0.05)


def test_held_out_pairs_are_never_training_pairs_in_another_order():
    task = AssociativeRecall(n=5, pairs=2, keys=4, values=3)
    pairs = {}
    for split in ("train", "test"):
        rows = task.sample(300, seed=0, split=split).inputs.tolist()
        pairs[split] = {frozenset([tuple(row[:2]), tuple(row[2:4])]) for row in rows}
    assert not pairs["train"] & pairs["test"]


def test_the_same_vocabulary_serves_longer_sequences():
    short = AssociativeRecall(n=256, pairs=32, keys=8192, values=64)
    long = AssociativeRecall(n=16_384, pairs=4096, keys=8192, values=64)
    assert short.input_vocab == long.input_vocab
    batch = long.sample(2, seed=0)
    assert (batch.targets[batch.mask] > long.special["null"]).all()


def test_bad_parameters_are_named():
    with pytest.raises(InputError, match="keys: got 3, expected an integer of at least 4"):
        AssociativeRecall(n=20, pairs=4, keys=3)
    with pytest.raises(InputError, match="n: got 20, expected at least 21"):
        AssociativeRecall(n=20, pairs=8, queries=5)
    with pytest.raises(InputError, match="queries: got 0"):
        AssociativeRecall(queries=0)
    with pytest.raises(InputError, match="values of the pairs: got 0"):
        AssociativeRecall(n=3, pairs=1, keys=1, values=1).labels([3, 0, 3])
    with pytest.raises(InputError, match="queries: got 2, expected tokens 3 to 3"):
        AssociativeRecall(n=3, pairs=1, keys=1, values=1).labels([3, 2, 2])
