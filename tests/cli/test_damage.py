"""Damaged files and impossible numbers: one line, exit code 2, and nothing is written."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import annattn as aa

TRAIN = ("train", "match2_paper", "--share", "1e-4", "--folder", "run")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(answer, *words: str) -> None:
    code, out, errors = answer
    assert (code, out) == (2, "")
    assert len(errors.splitlines()) == 1
    assert all(word in errors for word in words)


def test_exact_match_of_many_heads_on_several_threads(folder, command):
    query = np.random.default_rng(0).integers(0, 2, (2, 8, 20, 2)).astype(np.float32)
    np.save("q.npy", query)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert command("attend", "q.npy", "q.npy", "q.npy", "-o", "o.npy", "--mechanism", "exact_match")[0] == 0
    finally:
        torch.set_num_threads(threads)
    given = torch.from_numpy(query)
    assert np.array_equal(np.load("o.npy"), aa.exact_match_attention(given, given, given).numpy())


def test_a_header_that_is_no_shape(folder, command):
    np.save("q.npy", np.zeros((2, 3, 20, 8), np.float32))
    data = (folder / "q.npy").read_bytes()
    (folder / "bad.npy").write_bytes(data.replace(b"(2, 3, 20, 8)", b"(True,3,20,8)"))
    refused(command("attend", "bad.npy", "q.npy", "q.npy", "-o", "o.npy"), "bad.npy")


@pytest.mark.parametrize(
    "options",
    [
        ("--n", 2**63 - 1, "-r", 0.1, "-c", 1.0001),
        ("--n", 4096, "-r", 0.1, "-c", 1.0000001),
        ("--n", 4096, "-r", 0.1, "-c", 10, "--failure", 5e-324),
    ],
)
def test_a_plan_beyond_all_numbers(options, command):
    refused(command("plan", *options), "guarantee")


def test_a_number_of_more_than_64_bits(command):
    refused(command("plan", "--n", 10**400, "-r", 0.1, "-c", 10), "more than 64 bits")


def test_a_plan_with_slabs_so_wide_that_every_pair_collides(command):
    options = ("--n", 4096, "-r", 0.1, "-c", 10, "--family", "euclidean", "--width", 1e300)
    refused(command("plan", *options, "--json"), "p1 = 1, p2 = 1, expected near pairs to collide more often than far")


def test_a_plan_in_which_no_key_is_far(command):
    code, out, errors = command("plan", "--n", 4096, "-r", 0.1, "-c", "inf", "--json")
    assert (code, errors) == (0, "")
    found = json.loads(out)
    # One hash per table is enough, and what is left to bound is 4096² · (1 − p1)^tables.
    assert (found["approximation"], found["p2"], found["far_failure"], found["hashes"]) == (None, 0, 0, 1)
    p1 = 1 - 2 * math.asin(0.05) / math.pi  # of two unit vectors at distance 0.1
    assert found["tables"] == math.ceil(math.log(4096**2 / 0.1) / -math.log(1 - p1))


@pytest.mark.parametrize(
    "options", [("--share", "nan"), ("--share", "inf"), ("--share", 0), ("--share", -1), ("--save-every", 0)]
)
def test_a_run_of_no_steps(options, folder, command):
    refused(command("train", "match2_paper", *options))
    assert not list(folder.iterdir())


@pytest.fixture
def run(folder, command):
    assert command(*TRAIN)[0] == 0
    return folder / "run"


def test_a_damaged_state_is_refused_and_kept(run, command):
    state = load_file(run / "state.safetensors")
    for damage in (
        {"step": None}, {"step": torch.tensor(-5)}, {"step": torch.tensor(500)}, {"step": torch.zeros(3)},
        {"step": torch.tensor(torch.nan)}, {"adam.x.step": torch.zeros(())}, {"adam.0.exp_avg": None},
        {"adam.0.exp_avg": torch.zeros(1, 3)},
    ):  # fmt: skip
        save_file({k: x for k, x in (state | damage).items() if x is not None}, run / "state.safetensors")
        before = (run / "state.safetensors").read_bytes()
        refused(command(*TRAIN), "state.safetensors")
        assert (run / "state.safetensors").read_bytes() == before
    save_file(state, run / "state.safetensors")
    (run / "log.csv").write_bytes(b"\xff\nb,c\n")
    assert command(*TRAIN)[0] == 0
    (run / "run.json").write_text("[" * 100_000)
    refused(command(*TRAIN), "run.json")


def test_damaged_notes_are_refused(run, command):
    model = json.loads((run / "model.json").read_text())
    recipe = model["notes"]["recipe"]
    for notes in (
        None, 3, "recipe", {"recipe": 3}, {"recipe": {}}, {"recipe": recipe | {"stages": [3]}},
        {"recipe": recipe | {"task": {}}}, {"recipe": recipe | {"task_options": 3}}, {"recipe": recipe | {"more": 1}},
    ):  # fmt: skip
        (run / "model.json").write_text(json.dumps(model | {"notes": notes}))
        refused(command("sweep", "run/model"))
    (run / "model.json").write_text("[" * 100_000)
    refused(command("sweep", "run/model"), "model.json")


@pytest.mark.parametrize(
    "options",
    [("--tables", "²"), ("--tables", "9" * 5000), ("--samples", 0), ("--draws", 0), ("--out", "no/x"), ("--out", ".")],
)
def test_a_sweep_is_refused_before_it_measures(options, command, monkeypatch):
    from annattn.experiments.checkpoints import FOLDER

    monkeypatch.setattr("annattn.cli.sweep.grid", None)
    refused(command("sweep", FOLDER / "match2_direct", *options), options[0].strip("-"))


def test_a_sweep_of_no_name(command):
    refused(command("sweep", "/"), "checkpoint")
