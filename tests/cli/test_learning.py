"""`annattn train`, `sweep` and `reproduce` as a user would call them."""

import json
import os
import subprocess
import sys

import pytest

from annattn.experiments.reproduce import EXPERIMENTS, PROFILES
from tests.cli.conftest import PROGRAM, SOURCES
from tests.experiments.test_reproduce import HARDLY


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    arguments = ["train", "match2_paper", "--share", "0.001", "--folder", "here"]
    environment = os.environ | {"PYTHONPATH": SOURCES}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.mark.slow
def test_train_writes_a_model_its_log_and_says_where(run):
    folder, done = run
    assert done.stdout.strip() == "the model is here/model.safetensors"
    assert sorted(p.name for p in (folder / "here").iterdir()) == [
        "log.csv",
        "model.json",
        "model.safetensors",
        "run.json",
        "state.safetensors",
    ]
    assert (folder / "here" / "log.csv").read_text().startswith("step,loss,error\n20,")


@pytest.mark.slow
def test_train_again_is_done_at_once_and_another_seed_is_refused(run, command, monkeypatch):
    folder, _ = run
    monkeypatch.chdir(folder)
    before = (folder / "here" / "model.safetensors").read_bytes()
    code, out, errors = command("train", "match2_paper", "--share", "0.001", "--folder", "here", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(out) == {"recipe": "match2_paper", "seed": 0, "steps": 20, "model": "here/model.safetensors"}
    assert (folder / "here" / "model.safetensors").read_bytes() == before
    code, _, errors = command("train", "match2_paper", "--share", "0.001", "--seed", "1", "--folder", "here")
    assert code == 2
    assert "another run" in errors
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.slow
def test_sweep_prints_a_table_and_json(run, command, monkeypatch):
    folder, _ = run
    monkeypatch.chdir(folder)
    options = ("--tables", "1,2", "--hashes", "1,3", "--samples", "8", "--draws", "2")
    code, shown, _ = command("sweep", "here/model", *options)
    assert code == 0
    assert "3 hashes" in shown
    cells = json.loads(command("sweep", "here/model", *options, "--json", "--out", "grid.json")[1])
    assert [(cell["tables"], cell["hashes"]) for cell in cells] == [([1], [1]), ([1], [3]), ([2], [1]), ([2], [3])]
    assert all(0 <= cell["error"] <= 1 for cell in cells)
    assert json.loads((folder / "grid.json").read_text()) == cells


def test_reproduce_leaves_out_what_takes_long_and_says_so(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []
    listed = command("reproduce", "--help")[1]
    assert all(name in listed for name in EXPERIMENTS)
    for name in EXPERIMENTS:
        monkeypatch.setitem(EXPERIMENTS, name, lambda shop, name=name: asked.append(name) or [])
    code, _, errors = command("reproduce")
    assert code == 0
    assert asked == ["match2_paper", "match2_direct", "induction_heads", "betas"]
    long = ", ".join(PROFILES["quick"].leaves_out)
    assert long == "families, k_hop, k_hop_16, ablations, recall, recall_state"
    assert f"left out because they take long: {long}" in " ".join(errors.split())
    asked.clear()
    code, _, errors = command("reproduce", "--profile", "full")
    assert asked == list(EXPERIMENTS)
    assert "left out" not in errors


@pytest.mark.slow
def test_reproduce_runs_to_its_end_and_goes_on_from_there(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PROFILES, "quick", HARDLY)
    code, shown, errors = command("reproduce", "match2_direct", "recall", "--folder", "out")
    assert code == 0
    assert "largest mean error, 4" in shown
    assert "≤ 0" in shown
    assert "±" in shown
    assert "out/quick" in shown
    assert "recall: " in errors
    assert sorted(p.name for p in (tmp_path / "out/quick").iterdir()) == ["match2_direct.json", "recall.json", "runs"]
    before = (tmp_path / "out/quick/recall.json").read_text()
    found = json.loads(command("reproduce", "recall", "--folder", "out", "--json")[1])
    assert (tmp_path / "out/quick/recall.json").read_text() == before
    assert [one["what"] for one in found["recall"]] == [
        f"{name}, accuracy at N = 64" for name in ("anna", "softmax", "low_rank")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("train", "match2_papr"), "did you mean match2_paper?"),
        (("train", "match2_paper", "--seed", "-1"), "seed: got -1"),
        (("sweep", "here/model", "--seed", "-1"), "seed: got -1"),
        (("sweep", "here/model", "--out", "here/model.json"), "belongs to the model"),
        (("sweep", "here/model.json", "--out", "here/../here/model.safetensors"), "belongs to the model"),
        (("sweep", "here/model", "--out", "/dev/null"), "--out: got /dev/null"),
        (("train", "match2_paper", "--folder", "here/log.csv"), "here/log.csv"),
        (("sweep", "nowhere/model"), "nowhere/model, which is no model here"),
        (("sweep", "here/model", "--tables", "1,x"), "tables"),
        (("sweep", "here/model", "--tables", "1:2:3"), "got '1:2:3', expected one number"),
        (("sweep", "here/model", "--hashes", "0"), "hashes"),
        (("sweep", "here/model", "--family", "euclidean"), "family"),
        (("reproduce", "match3"), 'one of "match2_paper"'),
        (("reproduce", "--profile", "slow"), "profile"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, args, message, command, monkeypatch):
    monkeypatch.chdir(run[0])
    code, out, errors = command(*args)
    assert (code, out) == (2, "")
    assert message in errors
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_model_of_the_library_is_swept_by_its_name(command):
    counts = ("--tables", "4", "--hashes", "1,3", "--samples", "4", "--draws", "1")
    code, output, errors = command("sweep", "match2_direct", *counts, "--family", "cross_polytope", "--json")
    assert code == 0, errors
    one, three = (cell["error"] for cell in json.loads(output))
    assert three < 0.01 < one
