"""Training by torchrun: the weights of one process, and the same bits after the death of any rank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from annattn.experiments import RECIPES, train
from tests.experiments.several import RECIPE

ROOT = Path(__file__).parents[2]
NOBODY = (-1, 0)


def torchrun(*arguments: object, restarts: int = 0, processes: int = 2) -> subprocess.CompletedProcess[str]:
    command = ["-m", "torch.distributed.run", "--standalone", f"--max-restarts={restarts}"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, *command, f"--nproc-per-node={processes}", "-m", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
    )


def trained(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "state.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = torchrun("tests.experiments.several", folder, *NOBODY)
    assert done.returncode == 0, done.stderr
    return trained(folder)


@pytest.mark.slow
def test_two_processes_train_the_weights_of_one(whole, tmp_path):
    train(RECIPE, seed=3, folder=tmp_path)
    one = trained(tmp_path)
    assert one.keys() == whole.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(whole[name], tensor, rtol=1e-4, atol=1e-5)
    train(RECIPE, seed=4, folder=tmp_path / "other")
    name = "model.tokens.weight"
    assert not torch.allclose(trained(tmp_path / "other")[name], one[name], atol=1e-3)


@pytest.mark.slow
def test_torchrun_restarts_after_the_death_of_a_rank_and_the_bits_are_the_same(whole, tmp_path):
    done = torchrun("tests.experiments.several", tmp_path / "run", 1, 11, restarts=1)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run.died").exists()
    found = trained(tmp_path / "run")
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())


@pytest.mark.slow
def test_the_same_command_goes_on_after_the_death_of_the_rank_that_writes(whole, tmp_path):
    failed = torchrun("tests.experiments.several", tmp_path / "run", 0, 14)
    assert failed.returncode != 0
    assert trained(tmp_path / "run")["step"] == 12
    done = torchrun("tests.experiments.several", tmp_path / "run", 0, 14)
    assert done.returncode == 0, done.stderr
    found = trained(tmp_path / "run")
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())


@pytest.mark.slow
def test_the_command_prints_once_and_refuses_a_folder_on_all_processes(tmp_path):
    command = ("annattn", "train", "match2_paper", "--share", "0.0002", "--folder", tmp_path / "run")
    done = torchrun(*command)
    assert done.stdout == f"the model is {tmp_path}/run/model.safetensors\n", done.stderr
    train(RECIPES["match2_paper"].shortened(0.0002), seed=0, folder=tmp_path / "one")
    for name, tensor in trained(tmp_path / "one").items():
        torch.testing.assert_close(trained(tmp_path / "run")[name], tensor, rtol=1e-4, atol=1e-5)
    refused = torchrun(*command, "--seed", 1)
    assert refused.returncode != 0
    assert "which holds another run" in refused.stderr
    assert "rank 0 of 2 raised InputError" in refused.stderr
