"""Runs repeat, resume bit for bit, and refuse what they cannot continue."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from annattn.errors import InputError
from annattn.experiments import RECIPES, Recipe, Stage, measure, read_recipe, train, write_recipe
from annattn.nn import AnnaConfig, SampledCollisionConfig, SoftmaxConfig, Transformer, TransformerConfig, load_model
from annattn.tasks import KHop

SAMPLED = SampledCollisionConfig("hyperplane", tables=4, hashes=3)
TINY = Recipe(
    task="match2",
    task_options={"n": 6, "modulus": 5},
    model=TransformerConfig(6, 2, length=6, dim=16, attention=(AnnaConfig("hyperplane", 4, 3),), is_causal=False),
    stages=(Stage(12, (SAMPLED,), (0.0, 1.0)), Stage(8, (SAMPLED,))),
    batch=8,
    rate=3e-3,
    warmup=5,
)


def weights(model) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


DROPPED = replace(TINY, stages=(Stage(20, (SoftmaxConfig(beta=1.0, dropout=0.2),)),))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [TINY, replace(TINY, dataset=64), replace(TINY, clip=None), DROPPED])
@pytest.mark.parametrize("stop", [7, 12])
def test_an_interrupted_run_ends_with_the_same_bits(recipe, stop, tmp_path):
    whole = train(recipe, seed=3)
    train(recipe, seed=3, folder=tmp_path, stop_at=stop)
    assert same(train(recipe, seed=3, folder=tmp_path), whole)
    assert same(load_model(tmp_path / "model"), whole)
    assert not same(train(recipe, seed=4), whole)


@pytest.mark.slow
def test_a_killed_process_is_continued(tmp_path):
    """SIGKILL in the middle, at whatever step that is; what is on disk is a whole state."""
    program = (
        f"import sys, torch; torch.set_num_threads({torch.get_num_threads()})\n"
        "from tests.experiments.test_training import TINY\n"
        "from annattn.experiments import train\n"
        "train(TINY.shortened(10), seed=3, folder=sys.argv[1], save_every=1)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (tmp_path / "state.safetensors").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 0 < load_file(tmp_path / "state.safetensors")["step"].item() < 200
    recipe = TINY.shortened(10)
    assert same(train(recipe, seed=3, folder=tmp_path), train(recipe, seed=3))


@pytest.mark.slow
def test_ctrl_c_keeps_the_state(tmp_path):
    def interrupt(progress):
        if progress.step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(TINY, seed=3, folder=tmp_path, report=interrupt)
    assert json.loads((tmp_path / "run.json").read_text())["step"] == 9
    assert same(train(TINY, seed=3, folder=tmp_path), train(TINY, seed=3))


@pytest.mark.slow
def test_an_interrupt_in_the_middle_of_a_step_waits_for_its_end(tmp_path, monkeypatch):
    """The worst moment: the weights have moved, and the step is not yet counted."""
    step, calls = torch.optim.Adam.step, []

    def interrupted(self, *options):
        step(self, *options)
        calls.append(1)
        if len(calls) == 9:
            signal.raise_signal(signal.SIGINT)

    whole = train(TINY, seed=3)
    monkeypatch.setattr(torch.optim.Adam, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(TINY, seed=3, folder=tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["step"] == 9
    assert same(train(TINY, seed=3, folder=tmp_path), whole)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_may_be_in_another_thread(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        model = pool.submit(train, TINY, seed=3, folder=tmp_path).result()
    assert load_model(tmp_path / "model").config == model.config


def test_a_folder_is_claimed_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    steps = []
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="a file or inside one"):
            train(TINY, folder=folder, report=steps.append)
    assert not steps
    train(TINY, seed=3, folder=tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    for kept in ("state.safetensors", "model.safetensors", "model.json"):
        with pytest.raises(InputError, match=f"with {kept} and no run.json"):
            train(TINY, seed=3, folder=tmp_path / "run")
        assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
        (tmp_path / "run" / kept).unlink()
        del before[kept]
    for seed in (-1, 1.5, "a", None, 2**70):
        with pytest.raises(InputError, match="seed"):
            train(TINY, seed=seed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="save_every"):
        train(TINY, save_every=0)


def test_another_run_in_the_folder_is_refused_and_kept(tmp_path):
    train(TINY, seed=3, folder=tmp_path, stop_at=2)
    before = (tmp_path / "state.safetensors").read_bytes()
    others = {
        "its seed is 3, not 4": (TINY, 4),
        "its recipe.rate is 0.003, not 0.001": (replace(TINY, rate=1e-3), 3),
        r"its recipe.stages\[0\].steps is 12, not 9": (replace(TINY, stages=(Stage(9, (SAMPLED,)), TINY.stages[1])), 3),
    }
    for said, (recipe, seed) in others.items():
        with pytest.raises(InputError, match=f"which holds another run: .*{said}.*choose another folder"):
            train(recipe, seed=seed, folder=tmp_path)
    assert (tmp_path / "state.safetensors").read_bytes() == before
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json, expected the JSON of a run"):
        train(TINY, seed=3, folder=tmp_path)


def test_a_run_of_another_version_is_continued_or_told_apart_by_its_keys(tmp_path):
    train(TINY, seed=3, folder=tmp_path, stop_at=2)
    path, state = tmp_path / "run.json", (tmp_path / "state.safetensors").read_bytes()
    about = json.loads(path.read_text())
    for where, said in (
        (about["recipe"], "recipe.unheard_of"),
        (about["recipe"]["model"], "recipe.model.unheard_of"),
        (about["recipe"]["stages"][1]["attention"][0], r"recipe.stages\[1\].attention\[0\].unheard_of"),
    ):
        where["unheard_of"] = None
        path.write_text(json.dumps(about))
        expected = f"{said} is null, which this version does not know.*the version that began it"
        with pytest.raises(InputError, match=expected):
            train(TINY, seed=3, folder=tmp_path)
        del where["unheard_of"]
    assert (tmp_path / "state.safetensors").read_bytes() == state
    # Keys that are newer than the run have their defaults; here all of them are.
    for name in ("dataset", "decay", "clip"):
        del about["recipe"][name]
    path.write_text(json.dumps(about))
    assert same(train(TINY, seed=3, folder=tmp_path), train(TINY, seed=3))


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("adam.0.exp_avg", lambda x: x.fill_(float("nan")), r"adam\.0\.exp_avg of .*: got NaN"),
        ("adam.0.exp_avg", lambda x: x[:1], "adam.0.exp_avg of shape"),
        ("model.head.bias", lambda x: x.fill_(float("inf")), "head.bias of .*: got NaN"),
        ("step", lambda x: x + 100, "step of .*: got"),
    ],
)
def test_a_damaged_state_is_refused_and_kept(name, change, what, tmp_path):
    train(TINY, seed=3, folder=tmp_path, stop_at=5)
    path = tmp_path / "state.safetensors"
    state = load_file(path)
    state[name] = change(state[name]).contiguous()
    save_file(state, path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=what):
        train(TINY, seed=3, folder=tmp_path)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_training_lowers_the_loss():
    losses = []
    train(TINY.shortened(15), seed=0, report=lambda progress: losses.append(progress.loss))
    assert len(losses) == 300
    assert sum(losses[-20:]) < 0.75 * sum(losses[:20])


def test_stages_follow_each_other_and_noise_rises():
    noises = [TINY.attention_at(step)[0].noise for step in range(TINY.steps)]  # type: ignore[attr-defined]
    assert noises == [pytest.approx(min(1.0, step / 11)) for step in range(20)]
    with pytest.raises(InputError, match="step"):
        TINY.attention_at(20)


def test_a_stage_can_train_the_first_layers_alone(tmp_path):
    two = replace(TINY.model, attention=(TINY.model.attention[0],) * 2, rotary=(), recency=())
    recipe = replace(TINY, model=two, stages=(Stage(6, (SAMPLED,)), Stage(4, (SAMPLED,) * 2)))
    before = Transformer(two, seed=3)
    train(recipe, seed=3, folder=tmp_path, stop_at=6)
    state = load_file(tmp_path / "state.safetensors")
    moved = {name for name, weight in before.named_parameters() if not torch.equal(weight, state[f"model.{name}"])}
    assert moved
    assert not any(name.startswith("blocks.1.") for name in moved)
    after = train(recipe, seed=3, folder=tmp_path)
    assert same(after, train(recipe, seed=3))
    assert not torch.equal(after.state_dict()["blocks.1.out.weight"], before.state_dict()["blocks.1.out.weight"])


@pytest.mark.parametrize("copies", [True, False])
def test_a_new_layer_can_start_as_a_copy_of_the_one_before(copies, tmp_path, monkeypatch):
    three = replace(TINY.model, attention=(TINY.model.attention[0],) * 3, rotary=(), recency=())
    stages = Stage(6, (SAMPLED,)), Stage(2, (SAMPLED,) * 3, copies=copies), Stage(2, (SAMPLED,) * 3, copies=True)
    recipe = replace(TINY, model=three, stages=stages)
    fresh = Transformer(three, seed=3)
    names = [name for name, _ in fresh.named_parameters()]
    seen, step = [], torch.optim.Adam.step

    def noted(self):
        weights = [weight.detach().clone() for weight in self.param_groups[0]["params"]]
        seen.append(dict(zip(names, weights, strict=True)))
        step(self)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    whole = train(recipe, seed=3)
    for name, weight in seen[6].items():
        if name.startswith(("blocks.1.", "blocks.2.")):
            source = seen[6][f"blocks.0.{name[9:]}"] if copies else fresh.state_dict()[name]
            assert torch.equal(weight, source)
    # The next stage has no new layer, so nothing is copied, although it says so.
    assert not torch.equal(seen[8]["blocks.2.out.weight"], seen[8]["blocks.1.out.weight"])
    train(recipe, seed=3, folder=tmp_path, stop_at=6)
    assert same(whole, train(recipe, seed=3, folder=tmp_path))


def test_the_rate_falls_from_the_step_on_that_the_recipe_names(monkeypatch):
    def rates(recipe):
        seen = []
        step = torch.optim.Adam.step
        with monkeypatch.context() as patched:
            patched.setattr(
                torch.optim.Adam, "step", lambda self: seen.append(self.param_groups[0]["lr"]) or step(self)
            )
            train(recipe, seed=0)
        return [rate / recipe.rate for rate in seen]

    late = rates(replace(TINY, decay_from=12, warmup=1))
    assert late[:13] == pytest.approx([1.0] * 13)
    assert late[12:] == pytest.approx([0.05 + 0.95 * (1 + math.cos(math.pi * k / 8)) / 2 for k in range(8)])
    assert replace(TINY, decay_from=12).shortened(0.5).decay_from == 6
    with pytest.raises(InputError, match="decay_from: got 20"):
        replace(TINY, decay_from=20)


def test_a_stage_can_change_the_task(monkeypatch):
    seen = []
    drawn = KHop.sample
    monkeypatch.setattr(
        KHop, "sample", lambda task, *args, **options: seen.append(task) or drawn(task, *args, **options)
    )
    stages = (Stage(2, (SAMPLED,), n=8, task_options={"asked_to": 1}), Stage(1, (SAMPLED,)))
    task = KHop(n=12, hops=3)
    model = replace(TINY.model, input_vocab=task.input_vocab, target_vocab=task.target_vocab, length=12)
    recipe = replace(TINY, task="k_hop", task_options={"n": 12, "hops": 3}, model=model, stages=stages)
    train(recipe, seed=0)
    assert seen == [KHop(n=8, hops=3, asked_to=1)] * 2 + [task]
    assert read_recipe(json.loads(json.dumps(write_recipe(recipe)))) == recipe
    with pytest.raises(InputError, match="vocabularies of 10 and 6, expected the task's, 9 and 6"):
        replace(recipe, stages=(Stage(1, (SAMPLED,), task_options={"hops": 2}),))


def test_recipes_survive_json():
    for recipe in (*RECIPES.values(), TINY):
        assert read_recipe(json.loads(json.dumps(write_recipe(recipe)))) == recipe


def test_impossible_recipes_are_refused():
    with pytest.raises(InputError, match="task"):
        replace(TINY, task="match3")
    with pytest.raises(InputError, match="stage: got 0 mechanisms"):
        replace(TINY, stages=(Stage(1, ()),))
    with pytest.raises(InputError, match="one per layer"):
        replace(TINY, stages=(Stage(1, (SAMPLED, SAMPLED)),))
    with pytest.raises(InputError, match="stages"):
        replace(TINY, stages=())
    with pytest.raises(InputError, match="steps: got -5"):
        replace(TINY, stages=(Stage(-5, (SAMPLED,)), Stage(8, (SAMPLED,))))
    with pytest.raises(InputError, match="noise of a stage"):
        replace(TINY, stages=(Stage(5, (SAMPLED,), (0.0,)),))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="task_options"):
        replace(TINY, task_options={"letters": 4})
    with pytest.raises(InputError, match="vocabularies of 6 and 2, expected the task's, 38 and 2"):
        replace(TINY, task_options={})
    for options in ({"batch": 0}, {"warmup": -5}, {"dataset": 0}, {"rate": float("nan")}, {"rate": -1}, {"clip": "a"}):
        with pytest.raises(InputError, match=f"{next(iter(options))}: got"):
            replace(TINY, **options)


def test_errors_are_shares_of_wrong_tokens_over_draws():
    longer = replace(TINY, task_options={"n": 12, "modulus": 23}, model=replace(TINY.model, input_vocab=24, length=12))
    task = longer.make_task()
    model = train(longer, seed=0)
    error = measure(model, task, samples=20, draws=3, batch=7)
    data = task.sample(20, (0, 2), split="test")
    assert len(error.draws) == 3
    for share in error.draws:
        assert 0 <= share <= 1
        assert round(share * data.targets.size) == pytest.approx(share * data.targets.size)
    assert measure(model, task, samples=20, draws=3) == error
    with pytest.raises(InputError, match="vocabularies"):
        measure(model, TINY.make_task())
    wrong: list[dict[str, Any]] = [{"batch": -1}, {"batch": 0}, {"draws": 0}, {"samples": 0}]
    for options in wrong:
        with pytest.raises(InputError, match=f"{next(iter(options))}: got"):
            measure(model, task, **options)
    with pytest.raises(InputError, match="data: got 0 sequences"):
        measure(model, task, data=task.sample(0, 0))
    x = torch.from_numpy(data.inputs)
    before = model.draw(5)(x)
    measure(model, task, samples=20, draws=2)
    assert torch.equal(model(x), before)
    exact = measure(model, task, samples=20, draws=1, data=data)
    assert exact.draws[0] == error.draws[0]
