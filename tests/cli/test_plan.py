"""`annattn plan`: the library's plan, explained."""

import json

import pytest

import annattn as aa

ASKED = ("plan", "--n", 256, "--radius", 0.1, "--approximation", 10, "--dim", 16)


def test_json_has_every_number_of_the_plan(command):
    code, out, errors = command(*ASKED, "--json")
    assert (code, errors) == (0, "")
    found, plan = json.loads(out), aa.plan(256, aa.lsh.Hyperplane(16), radius=0.1, approximation=10)
    for name in ("n", "tables", "hashes", "p1", "p2", "quality", "near_failure", "far_failure", "work", "memory"):
        assert found[name] == getattr(plan, name)
    assert found["applies"] is True
    assert found["family"] == {"name": "Hyperplane", "dim": 16}
    # Looking at all pairs: a product of 16 numbers and a sum of 16 numbers for each of 256 · 256.
    assert found["all_pairs_work"] == 256 * 256 * (16 + 16)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_table_explains_the_plan(columns, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = command(*ASKED)
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns
    shown = " ".join(out.replace("│", " ").split())
    assert shown.startswith("53 tables of 44 hashes")
    assert "p1 0.9682" in shown
    assert "far pairs met" in shown


def test_conditions_of_the_theorem_that_do_not_hold_are_said(command):
    code, out, _ = command("plan", "--n", 256, "--radius", 0.5, "--approximation", 1.5)
    assert code == 0
    assert "note: c = 1.5 is not above √3" in out


def test_the_family_has_its_width(command):
    _, out, _ = command(*ASKED, "--family", "euclidean", "--width", 2, "--json")
    assert json.loads(out)["family"] == {"name": "Euclidean", "dim": 16, "width": 2.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--n", 256, "--radius", 0.1), "--approximation"),
        (("--n", 0, "--radius", 0.1, "--approximation", 10), "n: got 0"),
        (("--n", 9, "--radius", -1, "--approximation", 10), "radius: got -1.0"),
        (("--n", 9, "--radius", "nan", "--approximation", 10), "radius: got nan"),
        (("--n", 9, "--radius", 2, "--approximation", 2), "near pairs to collide more often than far ones"),
        (("--n", 9, "--radius", 0.1, "--approximation", 10, "--failure", 2), "failure: got 2"),
        (("--n", 9, "--radius", 0.1, "--approximation", 10, "--family", "euclid"), 'Did you mean "euclidean"?'),
        (("--n", 9, "--radius", 0.1, "--approximation", 10, "--width", 1), "--width: got 1 with hyperplane"),
        (("--n", 9, "--radius", 0.1, "--aproximation", 10), "Did you mean --approximation instead of --aproximation?"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, command):
    code, out, errors = command("plan", *arguments)
    assert (code, out) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1
