"""Calling the command as a user does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import annattn
from annattn.cli import main

SOURCES = str(Path(annattn.__file__).parents[1])  # also when started in another folder
PROGRAM = "from annattn.cli import main; main()"


@pytest.fixture
def command(monkeypatch, capfd):
    """Call the command in this process; gives its exit code, output and errors."""

    def call(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["annattn", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capfd.readouterr()

    return call


@pytest.fixture
def process():
    """Start the command in a process of its own, which ends with the test."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: object, program: str = PROGRAM, **options) -> subprocess.Popen[str]:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES} | options.pop("env", {})
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        running.append(
            subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], env=environment, **piped)
        )
        return running[-1]

    yield start
    for one in running:
        one.kill()
        one.wait()
        for pipe in (one.stdout, one.stderr):
            if pipe is not None:
                pipe.close()
