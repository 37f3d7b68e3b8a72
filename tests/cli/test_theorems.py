"""`annattn theorems` as a user meets it; the rows here are small ones, put in place of the real."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from annattn.cli import theorems as command
from annattn.errors import CollisionError, InputError
from annattn.theorems import THEOREMS
from annattn.theorems.verdict import Trials, at_most, exponent


def row(effort="quick", progress=print):
    """A row with one bound at two sizes."""
    trials = Trials()
    trials.add(True)
    bounds = [at_most("machines", 3, 4, "N/2", "N = 8"), at_most("machines", 7.9, 8, "N/2", "N = 16")]
    growth = [exponent("machines", [8, 16], [3, 4], 1, "1")]
    return trials.verdict("Theorem", f"a [thing], {effort}", sizes=[8, 16], bounds=bounds, exponents=growth)


@pytest.fixture
def rows(monkeypatch):
    """A table of one good row, to add others to."""
    table = {"good": row}
    monkeypatch.setattr(command, "THEOREMS", table)
    monkeypatch.setenv("COLUMNS", "70")
    return table


def test_the_table_shows_the_bound_nearest_to_breaking(rows, capsys):
    command.theorems(quick=True)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "machines 7.9 ≤ 8 = N/2 at N = 16" in shown
    assert "N = 8 • machines ~ N^0.415 ≤ 1" not in shown
    assert "a [thing], quick" in shown
    assert "1 of 1 right" in shown
    assert "every row holds" in shown


def test_json_has_every_bound_and_nothing_else_on_standard_output(rows, capsys):
    command.theorems("good", as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["holds"] is True
    assert document["effort"] == "full"
    assert [bound["measured"] for bound in document["rows"]["good"]["bounds"]] == [3.0, 7.9]


def test_a_row_that_does_not_hold_ends_with_exit_code_1(rows, capsys):
    rows["bad"] = lambda effort, progress: replace(row(), bounds=(at_most("heads", 5, 4, "N^ε"),))
    rows["wrong"] = lambda effort, progress: replace(row(), equal=0)
    with pytest.raises(SystemExit) as left:
        command.theorems()
    assert left.value.code == 1
    shown = capsys.readouterr().out
    assert "does not hold: heads 5 > 4 = N^ε" in shown
    assert "bad, wrong DO NOT HOLD" in shown


def test_a_row_that_stops_does_not_hold_and_the_others_still_run(rows, capsys):
    def stops(effort, progress):
        raise CollisionError(layer=1, head=2, token=3, detail="too few slots")

    rows["stops"] = stops
    rows["after"] = row
    with pytest.raises(SystemExit):
        command.theorems(as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert [document["rows"][name]["holds"] for name in ("good", "stops", "after")] == [True, False, True]
    assert "too few slots" in document["rows"]["stops"]["notes"][0]


def test_a_mistyped_row_is_named_with_the_nearest_one():
    with pytest.raises(InputError, match="did you mean k-hop"):
        command.theorems("khop")


@pytest.mark.slow
def test_the_command_runs_a_real_row_through_a_pipe():
    program = "from annattn.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "theorems", "mpc-simulates-ema", "--quick"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mpc-simulates-ema holds" in done.stderr
    assert "every row holds" in done.stdout


def test_every_row_is_explained():
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "theorems.md").read_text()
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    for name in THEOREMS:
        assert any(name in heading[3:].split(", ") for heading in headings), name
