"""Autocast, DDP and FSDP2, each in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).parent / "processes.py")
# In some virtual machines instructions for bfloat16 are advertised but not there.
SAFE = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}


def started(*words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=SAFE
    )


def finished(*running: subprocess.Popen) -> None:
    said = [one.communicate(timeout=300)[0] for one in running]
    for one, words in zip(running, said, strict=True):
        assert one.returncode == 0, words


@pytest.mark.slow
def test_autocast_leaves_hashes_and_softmax_alone():
    finished(started("autocast"))


@pytest.mark.slow
def test_two_processes_train_as_one_with_ddp_and_fsdp2(tmp_path):
    finished(*(started("ranks", str(tmp_path), str(rank)) for rank in range(2)))
