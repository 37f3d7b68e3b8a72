"""`annattn compare` as a user would call it, with hardly any steps."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

import annattn.cli.compare as module
from annattn.experiments.comparison import CONTENDERS, PROFILES, Profile, running, table
from annattn.files import held
from annattn.measure import contender_costs
from annattn.report.comparison import read_comparison

FEW = ("softmax", "anna_direct", "performer")


@pytest.fixture
def hardly(monkeypatch):
    """Three contenders, four steps, short sequences to time."""
    tasks = {
        name: replace(task, steps=4 if name != "k_hop_16" else 1) for name, task in PROFILES["small"].tasks.items()
    }
    profile = Profile({name: tasks[name] for name in ("match2", "sum", "listops")}, (3e-3,), 4, 1)
    for one in (running, table, contender_costs, module):
        monkeypatch.setattr(one, "CONTENDERS", {name: CONTENDERS[name] for name in FEW})
    monkeypatch.setitem(PROFILES, "small", profile)
    short = contender_costs.contender_costs(lengths=(16,))
    for cost in short["contenders"].values():
        for of_length in cost.values():
            of_length.update({"1024": of_length["16"], "16384": of_length["16"]})
    monkeypatch.setattr(module, "contender_costs", lambda **options: short)


@pytest.mark.slow
def test_compare_runs_prints_and_goes_on(hardly, command, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "out"
    code, shown, errors = command("compare", "--profile", "small", "--folder", folder, "--minutes", "0")
    assert (code, errors) == (0, "")
    assert shown.count("not run") == 9
    assert "0 of 9 runs" in shown
    code, shown, errors = command("compare", "match2", "sum", "--profile", "small", "--folder", folder, "--jobs", "1")
    assert (code, errors) == (0, "")
    assert "6 of 9 runs" in shown
    assert shown.count("not run") == 3
    assert len(list((folder / "small" / "runs").rglob("*.json"))) == 6
    code, shown, _ = command("compare", "--profile", "small", "--folder", folder, "--json", "--jobs", "1")
    found = json.loads(shown)
    assert (code, found["runs"]) == (0, 9)
    assert found == read_comparison(folder / "small" / "comparison.json")
    with held(folder / "small" / "costs.run"):  # as another process that measures them would
        assert json.loads(command("compare", "--profile", "small", "--folder", folder, "--json")[1])["costs"] is None
    assert found["processor_seconds"] > 0
    code, shown, _ = command("compare", "sum", "--profile", "small", "--folder", folder, "--seeds", "2", "--jobs", "1")
    assert (code, shown.count("±")) == (0, 3)
    assert "12 of 18 runs" in shown
    figure = folder / "small" / "frontier.svg"
    assert ElementTree.parse(figure).getroot().tag.endswith("svg")
    assert all(CONTENDERS[name].title in figure.read_text() for name in FEW)


@pytest.mark.slow
def test_damaged_costs_are_named_and_measured_again_if_asked(hardly, command, tmp_path):
    arguments = ("compare", "--profile", "small", "--folder", tmp_path, "--minutes", "0")
    assert command(*arguments)[0] == 0
    costs = tmp_path / "small" / "costs.json"
    whole = json.loads(costs.read_text())
    for broken in ("{", "[]", "{}", '{"contenders": []}', json.dumps(whole | {"contenders": {"softmax": None}})):
        costs.write_text(broken)
        code, _, errors = command(*arguments)
        assert (code, errors.count("\n")) == (2, 1)
        assert "costs.json" in errors
    assert command(*arguments, "--again")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "recal"), "did you mean recall?"),
        (("compare", "--minutes", "-1"), "--minutes"),
        (("compare", "--seeds", "0"), "seeds"),
        (("compare", "--jobs", "0"), "jobs"),
        (("compare", "--seeds", "2.5"), "'2.5' is not an integer"),
        (("compare", "--profile", "slow"), "profile"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, message, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, errors = command(*arguments)
    assert code == 2
    assert message in errors
    assert not list(tmp_path.iterdir())
