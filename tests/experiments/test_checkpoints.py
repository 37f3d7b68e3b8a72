"""The models that come with the library: reloaded, and their stated error measured again."""

import csv
from dataclasses import replace

import pytest

from annattn.errors import InputError
from annattn.experiments import RECIPES, measure, read_recipe
from annattn.experiments.checkpoints import FOLDER, keep, kept, notes_of, trained
from annattn.experiments.training import train
from annattn.nn import AnnaConfig
from annattn.tasks import AssociativeRecall
from tests.experiments.test_training import TINY


@pytest.mark.slow
@pytest.mark.parametrize("name", kept())
def test_the_stated_error_is_what_is_measured(name):
    notes = notes_of(FOLDER / name)
    recipe, stated = read_recipe(notes["recipe"]), notes["measured"]
    model = trained(name)
    assert model.config.attention == recipe.model.attention
    error = measure(model, recipe.make_task(), samples=stated["samples"], draws=stated["draws"])
    # Codes near a boundary may fall to the other side on another processor: a few tokens, not more.
    assert error.mean == pytest.approx(stated["error"], abs=2e-3)
    assert error.spread == pytest.approx(stated["spread"], abs=5e-3)


@pytest.mark.parametrize("name", kept())
def test_it_says_how_it_was_made(name):
    notes = notes_of(FOLDER / name)
    assert notes["command"] == f"annattn train {name} --seed {notes['seed']}"
    assert read_recipe(notes["recipe"]) == RECIPES[name]
    with (FOLDER / f"{name}.csv").open() as file:
        log = list(csv.DictReader(file))
    assert int(log[-1]["step"]) == RECIPES[name].steps
    assert float(log[-1]["loss"]) < float(log[0]["loss"])


@pytest.mark.slow
def test_recall_holds_at_sixteen_times_the_length_it_was_trained_at():
    model = trained("recall_anna")
    options = notes_of(FOLDER / "recall_anna")["recipe"]["task_options"]
    task = AssociativeRecall(**(options | {"n": 16 * options["n"], "pairs": 16 * options["pairs"]}))
    error = measure(model, task, samples=1, draws=2, batch=1)
    assert error.mean < 0.005
    # And it is the hashing that finds it: with hash functions too few to tell keys apart nothing is left.
    assert measure(model.with_attention(AnnaConfig("hyperplane", 16, 2)), task, samples=1, draws=1).mean > 0.9


def test_they_are_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 5_000_000
    assert len(kept()) >= 2


def test_keeping_a_run_measures_it(tmp_path):
    recipe = replace(TINY, task_options={"n": 12, "modulus": 23}, model=replace(TINY.model, input_vocab=24, length=12))
    train(recipe, seed=2, folder=tmp_path / "run")
    notes = keep("tiny", tmp_path / "run", folder=tmp_path / "kept", samples=20, draws=2)
    assert notes["seed"] == 2
    assert 0 <= notes["measured"]["error"] <= 1
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["tiny.csv", "tiny.json", "tiny.safetensors"]


def test_unknown_models_are_named():
    with pytest.raises(InputError, match="match2_direct"):
        trained("match3")
    with pytest.raises(InputError, match="JSON"):
        notes_of(FOLDER / "nothing")
