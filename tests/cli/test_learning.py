"""`annattn train`, `sweep` and `reproduce` as a user would call them."""

import json
import subprocess
import sys

import pytest

from annattn.experiments import RECIPES


def annattn(*args, cwd):
    command = [sys.executable, "-c", "from annattn.cli import main; main()", *map(str, args)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    done = annattn("train", "match2_paper", "--share", "0.001", "--folder", "here", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done


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


def test_train_again_is_done_at_once_and_another_seed_is_refused(run):
    folder, _ = run
    before = (folder / "here" / "model.safetensors").read_bytes()
    assert annattn("train", "match2_paper", "--share", "0.001", "--folder", "here", cwd=folder).returncode == 0
    assert (folder / "here" / "model.safetensors").read_bytes() == before
    other = annattn("train", "match2_paper", "--share", "0.001", "--seed", "1", "--folder", "here", cwd=folder)
    assert other.returncode == 2
    assert "another run" in other.stderr
    assert len(other.stderr.strip().splitlines()) == 1


def test_sweep_prints_a_table_and_json(run):
    folder, _ = run
    options = ("--tables", "1,2", "--hashes", "1,3", "--samples", "8", "--draws", "2")
    shown = annattn("sweep", "here/model", *options, cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert "3 hashes" in shown.stdout
    printed = annattn("sweep", "here/model", *options, "--json", "--out", "grid.json", cwd=folder)
    cells = json.loads(printed.stdout)
    assert [(cell["tables"], cell["hashes"]) for cell in cells] == [([1], [1]), ([1], [3]), ([2], [1]), ([2], [3])]
    assert all(0 <= cell["error"] <= 1 for cell in cells)
    assert json.loads((folder / "grid.json").read_text()) == cells


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("train", "match2_papr"), "did you mean match2_paper?"),
        (("sweep", "nowhere/model"), "nowhere"),
        (("sweep", "here/model", "--tables", "1,x"), "tables"),
        (("sweep", "here/model", "--tables", "1:2:3"), "one a layer"),
        (("sweep", "here/model", "--hashes", "0"), "hashes"),
        (("sweep", "here/model", "--family", "euclidean"), "family"),
        (("reproduce", "match3"), "one of match2_paper"),
        (("reproduce", "--profile", "slow"), "profile"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, args, message):
    folder, _ = run
    failed = annattn(*args, cwd=folder)
    assert failed.returncode == 2
    assert message in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1


def test_help_lists_examples(tmp_path):
    for command in ("train", "sweep", "reproduce"):
        shown = annattn(command, "--help", cwd=tmp_path)
        assert shown.returncode == 0
        assert f"Example: annattn {command}" in shown.stdout
    assert RECIPES
