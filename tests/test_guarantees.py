"""The page of guarantees names tests that exist, and those promises that have no better place are held here."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import annattn

ROOT = Path(__file__).parents[1]
PACKAGE = Path(annattn.__file__).parent
PAGE = (ROOT / "docs" / "guarantees.md").read_text()

PROGRAM = """
import socket, sys
def refuse(*_, **__):
    raise AssertionError("a connection was opened")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import torch, annattn as aa
from annattn.experiments import RECIPES, train
x = torch.randn(3, 1, 2, 8, 4)
aa.anna_attention(*x, aa.lsh.Hyperplane(4).sample(tables=2, hashes=2))
train(RECIPES["match2_direct"].shortened(0.001), folder=sys.argv[1])
"""


def test_every_test_that_the_page_names_exists():
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert len(named) > 10
    for path in named:
        assert (ROOT / path).is_file(), path
    for line in PAGE.splitlines():
        if line.startswith("| ") and "---" not in line and not line.startswith("| promise"):
            assert "`tests/" in line, line


def test_nothing_in_the_library_can_load_a_pickle():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "cloudpickle", "shelve", "marshal", "dill", "joblib"} & set(names), path
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
                assert "allow_pickle=False" in map(ast.unparse, node.keywords), f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) != "torch.load", f"{path}:{node.lineno}"


@pytest.mark.slow
def test_no_connection_is_opened_and_nothing_is_written_outside_the_folder(tmp_path):
    inside, outside = tmp_path / "run", tmp_path / "elsewhere"
    outside.mkdir()
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(inside)], capture_output=True, text=True, cwd=outside)
    assert ended.returncode == 0, ended.stderr
    assert not list(outside.iterdir())
    assert {path.name for path in inside.iterdir()} == {
        "log.csv", "model.json", "model.safetensors", "run.json", "state.safetensors",
    }  # fmt: skip
