"""Folders that one process holds at a time."""

import subprocess
import sys

import pytest

from annattn.errors import InputError
from annattn.experiments import RECIPES, train
from annattn.files import held

HOLDER = """
import sys, time
from pathlib import Path
from annattn.files import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_held_by_one_process_and_free_when_that_is_killed(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=rf"in use by process {holder.pid} on .*, since .*; wait for that process"):
            train(RECIPES["match2_direct"].shortened(0.001), folder=tmp_path)
        assert [one.name for one in tmp_path.iterdir()] == ["lock"]
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with held(tmp_path):
        assert (tmp_path / "lock").exists()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_wrote_in_part_is_deleted_by_whoever_holds_the_folder_next(tmp_path):
    (tmp_path / ".state.safetensors.123.partial").write_bytes(b"half of it")
    (tmp_path / "state.safetensors").write_bytes(b"whole")
    with held(tmp_path):
        assert {one.name for one in tmp_path.iterdir()} == {"lock", "state.safetensors"}


def test_a_file_cannot_be_held_as_a_folder(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(InputError, match="a file or inside one, expected a folder"), held(path):
            pass
