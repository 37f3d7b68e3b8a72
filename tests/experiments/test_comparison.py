"""The comparison with hardly any steps: what is planned, run, kept, chosen and shown."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from annattn.errors import InputError, RankError
from annattn.experiments.comparison import (
    CONTENDERS,
    PROFILES,
    Profile,
    Run,
    all_runs,
    frontier,
    next_runs,
    planned_runs,
    read_runs,
    run_all,
    run_one,
    running,
    summary,
)
from annattn.experiments.recipe import write_recipe
from annattn.files import held
from annattn.nn import Transformer

TASKS = {name: replace(PROFILES["small"].tasks[name], steps=4, batch=2) for name in ("match2", "k_hop")}
ANY = CONTENDERS["softmax"].layers(1, 8)
HARDLY = Profile(TASKS, rates=(3e-3, 1e-3), samples=2, draws=1)


@pytest.mark.parametrize("profile", PROFILES)
def test_models_of_a_task_differ_in_their_attention_alone(profile):
    for task in PROFILES[profile].tasks.values():
        configs = []
        for contender in CONTENDERS.values():
            if contender.missing(task.layers, task.n, is_causal=task.is_causal) is None:
                recipe = task.recipe(contender, 3e-3)
                assert (recipe.steps, recipe.batch) == (task.steps, task.batch)
                configs.append(replace(recipe.model, attention=ANY * task.layers))
        assert all(config == configs[0] for config in configs)


def test_parameter_counts_are_equal_but_for_maps_of_their_own():
    for task in PROFILES["small"].tasks.values():
        counts = {}
        for name, contender in CONTENDERS.items():
            if contender.missing(task.layers, task.n, is_causal=task.is_causal) is None:
                model = Transformer(task.recipe(contender, 3e-3).model)
                counts[name] = sum(weight.numel() for weight in model.parameters())
        same = counts["softmax"]
        assert all(count == same for name, count in counts.items() if name not in ("linformer", "based"))
        assert all(count < 1.03 * same for count in counts.values())


def test_every_contender_runs_where_it_has_the_form_for_it():
    planned = {(run.task, run.contender) for run in planned_runs(PROFILES["quick"])}
    assert ("match2", "linformer") in planned
    assert ("recall", "linformer") not in planned
    assert ("recall", "kdeformer") not in planned
    assert ("sum", "latest_match") not in planned
    assert len(planned) == 3 * 17 + 4 * 15


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTENDERS)
def test_a_run_writes_its_result_and_is_not_repeated(name, tmp_path):
    task = "match2" if name != "latest_match" else "k_hop"
    run = Run(task, name, 3e-3, 0)
    data = run_one(HARDLY, run, tmp_path)
    assert data is not None
    assert set(data["errors"]) == set(TASKS[task].columns(task))
    assert all(0 <= error["mean"] <= 1 for error in data["errors"].values())
    assert json.loads((tmp_path / "runs" / f"{run.name}.json").read_text()) == data
    assert not list((tmp_path / "state" / task).iterdir())
    assert run_one(HARDLY, run, tmp_path) is None
    found = read_runs(HARDLY, tmp_path)
    assert list(found) == [run]
    assert run not in next_runs(HARDLY, found)


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_ends_as_if_it_had_not_been_stopped(tmp_path, monkeypatch):
    run = Run("match2", "performer", 3e-3, 0)
    right = running.train

    def stops(*arguments, **options):
        right(*arguments, **options, stop_at=2)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        run_one(HARDLY, run, tmp_path / "stopped")
    assert not read_runs(HARDLY, tmp_path / "stopped")
    monkeypatch.setattr(running, "train", right)
    stopped, whole = (run_one(HARDLY, run, tmp_path / name) for name in ("stopped", "whole"))
    assert stopped is not None
    assert whole is not None
    assert stopped["errors"] == whole["errors"]


def test_a_run_that_another_process_is_at_is_left_to_it(tmp_path):
    run = Run("match2", "softmax", 3e-3, 0)
    with held(tmp_path / "state" / f"{run.name}.run"):
        assert run_one(HARDLY, run, tmp_path) is None


@pytest.mark.slow
def test_processes_share_the_runs_and_find_what_one_finds(tmp_path):
    profile = replace(HARDLY, tasks={"match2": TASKS["match2"]}, rates=(3e-3,))
    told, threads = [], torch.get_num_threads()
    run_all(profile, ["match2"], tmp_path / "two", jobs=2, report=lambda *now: told.append(now))
    torch.set_num_threads(1)
    try:
        run_all(profile, ["match2"], tmp_path / "one")
    finally:
        torch.set_num_threads(threads)
    one, two = (read_runs(profile, tmp_path / name) for name in ("one", "two"))
    assert len(two) == 17
    assert {run: data["errors"] for run, data in one.items()} == {run: data["errors"] for run, data in two.items()}
    assert told[-1] == (17, 17, None, None)
    told.clear()
    run_all(profile, ["match2"], tmp_path / "two", jobs=2, report=lambda *now: told.append(now))
    assert told == [(0, 0, None, None)]


@pytest.mark.slow
def test_the_other_process_does_the_runs_that_this_one_does_not(tmp_path, monkeypatch):
    profile = replace(HARDLY, tasks={"match2": TASKS["match2"]}, rates=(3e-3,))
    monkeypatch.setattr(all_runs, "run_one", lambda *_: None)  # here alone
    run_all(profile, ["match2"], tmp_path, jobs=2)
    assert len(read_runs(profile, tmp_path)) == 17


@pytest.mark.slow
def test_what_stops_one_process_of_several_is_raised(tmp_path, monkeypatch):
    profile = replace(HARDLY, tasks={"match2": TASKS["match2"]}, rates=(3e-3,))
    path = tmp_path / "state" / "match2" / "softmax-0.003-0"
    path.mkdir(parents=True)
    (path / "model.json").write_text("{}")
    monkeypatch.setattr(all_runs, "run_one", lambda *_: None)  # here, so that the other process comes to it
    with pytest.raises(InputError, match="expected an empty folder or a whole run"):
        run_all(profile, ["match2"], tmp_path, jobs=2)


@pytest.mark.slow
def test_a_process_of_several_that_dies_is_named(tmp_path, monkeypatch):
    profile = replace(HARDLY, tasks={"match2": TASKS["match2"]}, rates=(3e-3,))

    def wait_and_kill(*_):
        wait_until(lambda: list(tmp_path.glob("state/match2/*.run/lock")))
        for child in multiprocessing.active_children():
            child.kill()

    monkeypatch.setattr(all_runs, "run_one", wait_and_kill)
    with pytest.raises(RankError, match="a process of the comparison died; the same command"):
        run_all(profile, ["match2"], tmp_path, jobs=2)


RUNS_ALL = """
from dataclasses import replace
from pathlib import Path
from annattn.experiments.comparison import PROFILES, Profile, run_all
if __name__ == "__main__":
    task = replace(PROFILES["small"].tasks["match2"], steps=100_000, batch=2)
    run_all(Profile({"match2": task}, (3e-3,), 2, 1), ["match2"], Path(sys.argv[1]), jobs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_the_one_that_started_them(how, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys" + RUNS_ALL)
    started = subprocess.Popen([sys.executable, str(program), str(tmp_path / "out")], stderr=subprocess.DEVNULL)
    locks = lambda: list((tmp_path / "out").glob("state/match2/*.run/lock"))  # noqa: E731
    wait_until(lambda: len(locks()) == 2)
    holders = [int(lock.read_text().split()[1]) for lock in locks()]
    assert started.pid in holders
    started.send_signal(how)
    started.wait(60)
    for holder in holders:
        wait_until(lambda holder=holder: not is_alive(holder))


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()


def results(**errors: float) -> dict[Run, dict]:
    """Results of softmax on Match2 with these validation errors, by rate and seed as in r3_0."""
    rates = {"r3": 3e-3, "r1": 1e-3}
    found = {}
    for name, error in errors.items():
        rate, seed = name.split("_")
        found[Run("match2", "softmax", rates[rate], int(seed))] = {
            "recipe": {"rate": rates[rate]},
            "parameters": 1,
            "validation": error,
            "errors": {"match2": {"mean": 2 * error, "spread": 0.0}},
        }
    return found


def test_the_rate_is_chosen_on_validation_data_and_further_seeds_use_it():
    profile = replace(HARDLY, tasks={"match2": replace(TASKS["match2"], seeds=3)})
    one = results(r3_0=0.2)
    assert Run("match2", "softmax", 1e-3, 0) in next_runs(profile, one)
    assert not [run for run in next_runs(profile, one) if run.seed]
    both = results(r3_0=0.2, r1_0=0.1)
    assert [run for run in next_runs(profile, both) if run.seed] == [
        Run("match2", "softmax", 1e-3, seed) for seed in (1, 2)
    ]
    cell = summary(profile, results(r3_0=0.2, r1_0=0.1, r1_1=0.3))["rows"][0]["cells"]["match2"]
    assert cell == {"error": 0.4, "spread": pytest.approx(0.2), "seeds": 2, "rate": 1e-3, "rates_tried": 2}


def test_a_result_of_other_settings_is_refused(tmp_path):
    path = tmp_path / "runs" / "match2" / "softmax-0.003-0.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"recipe": {"task": "match2"}}')
    with pytest.raises(InputError, match="run with other settings"):
        read_runs(HARDLY, tmp_path)
    path.write_text("{")
    with pytest.raises(InputError, match="expected the JSON of a run"):
        read_runs(HARDLY, tmp_path)


def test_a_result_without_a_field_that_came_later_is_of_the_same_settings(tmp_path):
    path = tmp_path / "runs" / "match2" / "softmax-0.003-0.json"
    path.parent.mkdir(parents=True)
    recipe = write_recipe(HARDLY.tasks["match2"].recipe(CONTENDERS["softmax"], 3e-3))
    data = {"recipe": recipe, "seed": 0, "parameters": 1, "seconds": 1.0, "validation": 0.5}
    data["errors"] = {"match2": {"mean": 0.5, "spread": 0.0}}
    for stage in recipe["stages"]:
        del stage["copies"], stage["task_options"]
    path.write_text(json.dumps(data))
    assert read_runs(HARDLY, tmp_path)
    recipe["stages"][0]["steps"] += 1
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"run with other settings: its stages\[0\].steps is 5, not 4"):
        read_runs(HARDLY, tmp_path)


@pytest.mark.parametrize("name", ["softmax", "anna_direct", "latest_match"])
@pytest.mark.parametrize(("task", "deepest"), [("k_hop", 4), ("k_hop_16", 6)])
def test_hops_are_learnt_one_doubling_at_a_time(name, task, deepest):
    compared = PROFILES["quick"].tasks[task]
    plain = CONTENDERS[name].stages(compared.steps, deepest, compared.n)
    stages = compared.recipe(CONTENDERS[name], 3e-3).stages
    assert sum(one.steps for one in stages) == compared.steps
    assert stages[deepest - 1 :] == plain[1:]
    growing = stages[: deepest - 1]
    assert [len(one.attention) for one in growing] == list(range(2, deepest + 1))
    assert [one.task_options.get("asked_to") for one in growing] == [2**k for k in range(deepest - 2)] + [None]
    assert [one.copies for one in growing] == [False, False] + [True] * (deepest - 3)
    assert growing[-1].n is None
    assert growing[-1].steps >= plain[0].steps / 2
    short = replace(compared, steps=deepest - 2).recipe(CONTENDERS["softmax"], 3e-3).stages
    assert [one.steps for one in short] == [deepest - 2]


def test_the_frontier_holds_whoever_nobody_beats():
    points = {"cheap": (1.0, 0.9), "beaten": (2.0, 0.9), "middle": (2.0, 0.5), "same": (2.0, 0.5), "exact": (9.0, 0.0)}
    assert frontier(points) == ["cheap", "middle", "same", "exact"]
