"""Training on text: a run that was stopped ends as one that was not, and files say when they are wrong."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from annattn.data import Text
from annattn.errors import InputError
from annattn.experiments.ranks import Ranks
from annattn.experiments.text import (
    TEXT_RECIPES,
    TextConfig,
    TextModel,
    TextRecipe,
    bits_of,
    load_text_model,
    train_text,
)
from annattn.experiments.text.training import _Run
from annattn.nn.checkpoint import read_tensors, write_tensors

TINY = TextConfig(dim=16, layers=2, heads=2, window=8, far_layer=1, grams=4, key_dim=8, value_dim=8, tables=4, hashes=6)
RECIPE = TextRecipe("tiny", TINY, steps=6, batch=2, length=100, warmup=2, tables=4, hashes=6, facts=1, weight=2.0)


def tiny() -> Text:
    words = np.random.default_rng(0).integers(97, 123, size=(40, 6)).astype(np.uint8)
    chosen = np.random.default_rng(1).integers(40, size=3000)
    return Text("tiny", words[chosen].flatten(), "sum", {"train": (0, 16000), "validation": (16000, 18000)})


def test_a_stopped_run_ends_with_the_same_weights(tmp_path):
    whole = train_text(RECIPE, tiny(), seed=3)
    train_text(RECIPE, tiny(), seed=3, folder=tmp_path, stop_at=4)
    assert not (tmp_path / "model.json").exists()
    again = train_text(RECIPE, tiny(), seed=3, folder=tmp_path)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert (tmp_path / "log.csv").read_text().splitlines()[-1].startswith("6,")
    model, notes = load_text_model(tmp_path / "model")
    assert model.config == TINY
    assert (notes["seed"], notes["text"], notes["recipe"]["steps"]) == (3, "sum", 6)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, whole.state_dict()[name].half().float()), name


def test_another_run_in_the_folder_is_refused(tmp_path):
    train_text(RECIPE, tiny(), folder=tmp_path, stop_at=1)
    for other, text, seed in (
        (dataclasses.replace(RECIPE, rate=1e-3), tiny(), 0),
        (RECIPE, dataclasses.replace(tiny(), sha256="other"), 0),
        (RECIPE, tiny(), 1),
    ):
        with pytest.raises(InputError, match="another run"):
            train_text(other, text, folder=tmp_path, seed=seed)


def test_noise_rises_to_the_recipes_and_rates_fall():
    run = _Run(dataclasses.replace(RECIPE, noise=0.8, ramp=0.5), tiny(), 0, None, Ranks())
    noises, rates = [], []
    for _ in range(6):
        run.advance()
        noises.append(run.model.noise)
        rates.append(run.optimiser.param_groups[0]["lr"])
    assert noises == pytest.approx([0.0, 0.8 / 3, 1.6 / 3, 0.8, 0.8, 0.8])
    assert rates[0] < rates[1] > rates[3] > rates[5]


@pytest.mark.slow
def test_training_finds_repetitions_that_a_window_cannot_see():
    """Words come back beyond the window: with a far head their ends are predicted, without one they are not."""
    found = {}
    for far, linear in (("anna", False), ("anna", True), ("latest_match", True), ("window", False)):
        model = dataclasses.replace(TINY, far=far, dim=32)
        recipe = dataclasses.replace(
            RECIPE, model=model, steps=80, facts=0, length=256, batch=4, rate=1e-2, linear=linear
        )
        # Every excerpt is a text of its own words, so that nothing can be learnt by heart.
        rng = np.random.default_rng(0)
        words = rng.integers(97, 123, size=(200, 5, 8))
        text = np.stack([page[rng.integers(5, size=64)].flatten() for page in words]).astype(np.uint8).flatten()
        corpus = Text("tiny", text, "", {"train": (0, 90_000), "validation": (90_000, len(text))})
        found[far, linear] = bits_of(train_text(recipe, corpus), corpus, "validation", length=256, count=16)
    alone = found.pop(("window", False))
    assert alone.share > 0.4
    assert all(one.hits < alone.hits - 1.0 for one in found.values())


def test_bits_of_a_model_that_knows_nothing_are_eight(monkeypatch):
    model = TextModel(TINY).eval()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    found = bits_of(model, tiny(), "validation", length=300, count=3, block=128)
    assert found.every == pytest.approx(8.0)
    assert found.hits == pytest.approx(8.0)
    assert 0 < found.share < 1


def test_bits_do_not_depend_on_the_block():
    model = TextModel(TINY).eval()
    whole, cut = (bits_of(model, tiny(), "validation", length=300, count=2, block=block) for block in (1000, 77))
    assert cut.every == pytest.approx(whole.every, rel=1e-4)
    assert cut.hits == pytest.approx(whole.hits, rel=1e-4)


def test_damaged_models_are_refused(tmp_path):
    train_text(dataclasses.replace(RECIPE, steps=1), tiny(), folder=tmp_path)
    about = tmp_path / "model.json"
    data = json.loads(about.read_text())
    for broken in ("{", "[]", "{}", json.dumps(data | {"format": "x"}), json.dumps(data | {"model": {"dim": -1}})):
        about.write_text(broken)
        with pytest.raises(InputError):
            load_text_model(tmp_path / "model")
    about.write_text(json.dumps(data))
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="safetensors"):
        load_text_model(tmp_path / "model")
    with pytest.raises(InputError, match="exists"):
        load_text_model(tmp_path / "none")


def test_sizes_of_a_tampered_model_are_judged_before_anything_is_made(tmp_path):
    train_text(dataclasses.replace(RECIPE, steps=1), tiny(), folder=tmp_path)
    about = tmp_path / "model.json"
    data = json.loads(about.read_text())
    for option, said in (
        ("layers", "tensors, expected 60000 layers"),
        ("dim", "expected torch.float32"),
        ("key_dim", "expected torch.float32"),
        ("tables", "tables times hashes: got 360000"),
    ):
        about.write_text(json.dumps(data | {"model": data["model"] | {option: 60_000}}))
        with pytest.raises(InputError, match=said):
            load_text_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("step", torch.tensor(-1), "step of .*got -1"),
        ("step", torch.tensor(99), "step of .*got 99"),
        ("step", torch.tensor([1, 2]), "step of"),
        ("step", torch.tensor(1.5), "step of"),
        ("adam.0.exp_avg", None, "adam.0.exp_avg"),
        ("adam.0.exp_avg_sq", torch.zeros(3), "adam.0.exp_avg_sq"),
        ("adam.0.step", torch.tensor(torch.nan), "adam.0.step"),
        ("adam.x.y.z", torch.zeros(1), "adam.x.y.z"),
        ("model.head.bias", torch.full((256,), torch.inf), "NaN or infinity"),
    ],
)
def test_a_tampered_state_is_named_and_left_as_it_is(tmp_path, name, wrong, said):
    train_text(RECIPE, tiny(), folder=tmp_path, stop_at=2)
    path = tmp_path / "state.safetensors"
    state = read_tensors(path)
    if wrong is None:
        del state[name]
    else:
        state[name] = wrong
    write_tensors(state, path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=said):
        train_text(RECIPE, tiny(), folder=tmp_path)
    assert path.read_bytes() == before


def test_a_damaged_log_stops_nothing_and_a_folder_of_others_is_refused(tmp_path):
    train_text(RECIPE, tiny(), folder=tmp_path, stop_at=2)
    (tmp_path / "log.csv").write_bytes(b"step\nno number\xff,")
    train_text(RECIPE, tiny(), folder=tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(InputError, match=r"with state.safetensors and no run\.json"):
        train_text(RECIPE, tiny(), folder=tmp_path)


def test_another_run_is_told_apart_by_what_differs(tmp_path):
    train_text(RECIPE, tiny(), folder=tmp_path, stop_at=2)
    with pytest.raises(InputError, match=r"another run: .*its recipe\.rate is"):
        train_text(dataclasses.replace(RECIPE, rate=0.5), tiny(), folder=tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    for where, said in ((about["recipe"], "recipe.more"), (about["recipe"]["model"], "recipe.model.more")):
        where["more"] = 1
        (tmp_path / "run.json").write_text(json.dumps(about))
        with pytest.raises(InputError, match=f"{said} is 1, which this version does not know"):
            train_text(RECIPE, tiny(), folder=tmp_path)
        del where["more"]
    del about["recipe"]["weight"]  # newer than the run, which was therefore run with its default
    (tmp_path / "run.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"another run: it has no recipe\.weight, expected"):
        train_text(RECIPE, tiny(), folder=tmp_path)
    del about["recipe"]["noise"]
    about["recipe"]["weight"] = 2.0
    (tmp_path / "run.json").write_text(json.dumps(about))
    train_text(RECIPE, tiny(), folder=tmp_path, stop_at=3)


def test_recipes_are_the_same_but_for_the_far_head():
    first = TEXT_RECIPES["python_anna"]
    for name in ("python_softmax", "python_window", "python_latest_match"):
        other = TEXT_RECIPES[name]
        assert dataclasses.replace(other, model=dataclasses.replace(other.model, far="anna")) == first
    assert dataclasses.replace(TEXT_RECIPES["python_anna_linear"], linear=False) == first
    with pytest.raises(InputError, match="the recipe's corpus"):
        train_text(first, tiny())
