"""A symbol keeps its case at the start of a sentence: w is a word and s a memory, W and S are something else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import annattn

ROOT = Path(annattn.__file__).parent
FILES = [
    file
    for folder in ("mpc", "compiler", "theorems", "tasks", "experiments")
    for file in ROOT.glob(f"{folder}/**/*.py")
]
LOWER_CASE_SYMBOLS = "CDKQSWZ"
"""The paper writes these small; none of them is a word, as A and I are."""

raised = re.compile(rf"(?:^|[.:;] )([{LOWER_CASE_SYMBOLS}] [a-zσ])")


def prose(file: Path) -> Iterator[str]:
    """The docstrings and the comments of a file, each as one line."""
    source = file.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield re.sub(r"\s+", " ", node.value.value.split(">>>")[0])
    yield from re.findall(r"^\s*# (.*)$", source, re.MULTILINE)


def test_the_search_finds_what_it_should():
    for wrong in ("W at σ^k(w, i)", "It holds. S words fit", "D log p of a pair"):
        assert raised.search(wrong)
    for right in ("A word w", "The letters w_i", "N words", "Words of s"):
        assert not raised.search(right)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_sentence_starts_with_a_small_symbol_made_large(file):
    for text in prose(file):
        assert not raised.search(text), text
