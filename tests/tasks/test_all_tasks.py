"""What holds for every task listed in TASKS."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annattn.errors import InputError
from annattn.tasks import SPLITS, TASKS, Batch

from . import strategies

NAMES = list(TASKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_labels_of_any_input_equal_brute_force(name: str, data: st.DataObject):
    task = data.draw(strategies.tasks(name))
    x = data.draw(strategies.inputs(task))
    np.testing.assert_array_equal(task.labels(x), task.solve(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data(), seed=st.integers(0, 2**32), batch=st.integers(0, 9), split=st.sampled_from(list(SPLITS)))
@settings(max_examples=100, deadline=None)
def test_targets_of_samples_equal_brute_force(name: str, data: st.DataObject, seed: int, batch: int, split: str):
    task = data.draw(strategies.tasks(name))
    try:
        drawn = task.sample(batch, seed, split=split)
    except InputError as error:
        # The smallest tasks may have nothing in a split, and say so.
        if "sequences inside" not in str(error):
            raise
        return
    assert len(drawn) == batch
    assert drawn.inputs.shape == drawn.targets.shape == drawn.mask.shape == (batch, task.n)
    assert drawn.inputs.dtype == drawn.targets.dtype == np.int64
    assert drawn.mask.dtype == np.bool_
    np.testing.assert_array_equal(drawn.targets, task.solve(drawn.inputs))


@pytest.mark.parametrize("name", NAMES)
def test_default_samples_equal_brute_force_and_stay_in_the_vocabulary(name: str):
    task = TASKS[name]()
    drawn = task.sample(12, seed=3)
    np.testing.assert_array_equal(drawn.targets, task.solve(drawn.inputs))
    assert drawn.inputs.min() >= 0
    assert drawn.inputs.max() < task.input_vocab
    assert drawn.targets.min() >= 0
    assert drawn.targets.max() < task.target_vocab
    assert all(0 <= symbol < task.input_vocab for symbol in task.special.values())
    assert drawn.mask.any(axis=1).all()
    if not drawn.mask.all():
        assert (drawn.targets[~drawn.mask] == task.special["blank"]).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_repeats_its_batch_and_another_gives_another(name: str):
    task = TASKS[name]()
    first, again = task.sample(8, seed=5), TASKS[name]().sample(8, seed=5)
    for field in dataclasses.fields(Batch):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(again, field.name))
    others = [task.sample(8, seed) for seed in (6, (5, 0), (5, 1))]
    others.append(task.sample(8, seed=5, split="validation"))
    assert all((first.inputs != other.inputs).any() for other in others)


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_no_sequence_whatever_the_seed(name: str):
    task = TASKS[name]()
    seen: dict[bytes, str] = {}
    for split in SPLITS:
        for seed in range(3):
            inputs = task.sample(64, seed, split=split).inputs
            assert task.split_of(inputs) == [split] * 64
            assert all(seen.setdefault(row.tobytes(), split) == split for row in inputs)


@pytest.mark.parametrize("name", NAMES)
def test_one_sequence_is_labelled_as_in_a_matrix(name: str):
    task = TASKS[name]()
    drawn = task.sample(2, seed=1)
    for label in (task.labels, task.solve):
        np.testing.assert_array_equal(label(drawn.inputs[1]), drawn.targets[1])
    np.testing.assert_array_equal(task.mask(drawn.inputs[1]), drawn.mask[1])


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_frozen(name: str):
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASKS[name]().n = 7


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, -3, 2.5, True, "8"])
def test_a_bad_length_is_named(name: str, n: object):
    with pytest.raises(InputError, match=f"n: got {n!r}, expected an integer of at least"):
        TASKS[name](n=n)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_do_not_fit_are_refused(name: str):
    task = TASKS[name]()
    good = task.sample(2, seed=0).inputs
    for call in (task.labels, task.solve):
        with pytest.raises(InputError, match=r"got shape \(2, \d+\), expected \(batch, \d+\)"):
            call(good[:, :-1])
        with pytest.raises(InputError, match="got dtype float64, expected integer tokens"):
            call(good.astype(np.float64))
        for wrong in (-1, task.input_vocab):
            bad = good.copy()
            bad[1, -1] = wrong
            with pytest.raises(InputError, match=f"got {wrong}, expected tokens"):
                call(bad)


@pytest.mark.parametrize("name", NAMES)
def test_bad_arguments_of_sample_are_named(name: str):
    task = TASKS[name]()
    with pytest.raises(InputError, match="split: got 'dev', expected one of train, validation, test"):
        task.sample(2, seed=0, split="dev")
    with pytest.raises(InputError, match="batch: got -1, expected an integer of at least 0"):
        task.sample(-1, seed=0)
    for seed in (-1, (), (1, -2), 0.5, "x"):
        with pytest.raises(InputError, match="seed: got"):
            task.sample(2, seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", NAMES)
def test_a_training_batch_is_drawn_at_100_000_tokens_a_second(name: str, split: str):
    task = TASKS[name]()
    task.sample(32, seed=0, split=split)
    seconds = []
    for seed in range(8):
        # Processor time, so that other work on the machine does not count.
        start = time.process_time()
        task.sample(32, seed, split=split)
        seconds.append(time.process_time() - start)
    assert 32 * task.n / min(seconds) >= 100_000
