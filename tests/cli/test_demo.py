"""`annattn demo`, `report` and `bench`: what they print and write, and how they stop."""

import io
import json
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from annattn.cli import main
from annattn.cli.part_tables import TABLES
from annattn.measure import measure_speed
from annattn.report.attention import pictures
from annattn.report.models import errors
from annattn.report.needles import needles
from annattn.report.page import headlines
from annattn.report.recall import recall
from annattn.report.results import PARTS
from annattn.report.theorems import rows
from annattn.report.theory import k_hop
from annattn.theorems import THEOREMS


@pytest.fixture(scope="module")
def numbers():
    """Every part, small."""
    return {
        "speed": measure_speed([128, 256], tables=2, hashes=2, dim=8),
        "attention": pictures(tokens=6),
        "models": errors(samples=1, draws=1),
        "recall": recall(lengths=(256,)),
        "needles": needles(lengths=(1024,)),
        "theory": k_hop(n=9, k=2, memory_words=30, words=1),
        "theorems": rows(effort="tiny", names=["mpc-simulates-ema"]),
    }


@pytest.fixture
def command(monkeypatch, capsys, numbers, tmp_path):
    """Call the command in this process and in an empty folder, with parts that are measured already."""
    for name, data in numbers.items():
        monkeypatch.setitem(PARTS, name, replace(PARTS[name], measure=lambda settings, progress, data=data: data))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["annattn", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return call


@pytest.mark.slow
def test_demo_prints_every_part_and_writes_the_page_and_its_numbers(command, numbers, tmp_path):
    code, output, errors = command("demo", "--output", "out/page.html")
    assert code == 0
    for expected in (
        "Milliseconds per call",
        "Weights of a trained head",
        "Wrong tokens",
        "2-hop of 9 letters",
        "Theorems, tiny",
    ):
        assert expected in output
    assert output.rstrip().endswith("page.html")
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["page.html", "page.json"]
    saved = json.loads((tmp_path / "out" / "page.json").read_text())
    assert {name: saved[name] for name in numbers} == json.loads(json.dumps(numbers))
    assert "\x1b" not in output + errors


def test_report_draws_saved_numbers_again(command, tmp_path):
    assert command("demo", "--json")[0] == 0
    code, output, _ = command("report", "--from", "report.json", "--output", "again.html")
    assert code == 0
    assert "again.html" in output
    assert (tmp_path / "again.html").read_text() == (tmp_path / "report.html").read_text()


def test_json_is_all_there_is_on_stdout(command, numbers):
    code, output, _ = command("demo", "--json")
    assert code == 0
    assert set(json.loads(output)) == {"format", "machine", *numbers}


def test_a_theorem_that_does_not_hold_gives_exit_code_1_and_is_named(command, numbers, monkeypatch):
    row = numbers["theorems"]["rows"][0] | {"holds": False}
    broken = {"effort": "tiny", "rows": [row]}
    monkeypatch.setitem(PARTS, "theorems", replace(PARTS["theorems"], measure=lambda settings, progress: broken))
    code, output, _ = command("demo")
    assert code == 1
    assert "NO" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--longest", "100"), "longest: got 100"),
        (("demo", "--seed", "-1"), "seed: got -1"),
        (("demo", "sped"), "part: got "),
        (("demo", "--output", "report.json"), "ends in .html"),
        (("demo", "--output", "."), "the folder ."),
        (("demo", "--output", "/dev/null/report.html"), "which /dev/null forbids"),
        (("report", "--from", "none.json"), "none.json"),
        (("bench", "--longest", "10"), "longest: got 10"),
        (("bench", "--tables", "0", "--longest", "64"), "tables"),
        (("bench", "--heads", "0", "--longest", "64"), "heads: got 0"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2_before_anything_is_measured(arguments, message, command, tmp_path):
    code, output, errors = command(*arguments)
    assert code == 2
    assert message in errors
    assert len([line for line in errors.splitlines() if line.startswith("annattn: ") and "compiling" not in line]) == 1
    assert output == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_bench_says_from_which_length_anna_is_faster(command):
    code, output, _ = command("bench", "--longest", "128", "--tables", "2", "--dim", "8")
    assert code == 0
    assert "faster than softmax attention" in output
    assert "true match" in output
    assert "1 head of width 8, 2 tables of 8 hashes" in output
    assert "3 × 2 heads" in command("bench", "--longest", "64", "--heads", "2", "--batch", "3", "--dim", "8")[1]
    found = json.loads(command("bench", "--longest", "128", "--heads", "2", "--dim", "8", "--json")[1])
    assert [row["tokens"] for row in found["rows"]] == [64, 128]
    assert found["settings"]["heads"] == 2
    assert found["machine"]["versions"]["torch"]


@pytest.mark.parametrize("name", ["demo", "report", "bench"])
def test_help_shows_an_example(name, command):
    code, output, _ = command(name, "--help")
    assert code == 0
    assert f"Example: annattn {name}" in " ".join(output.split())


@pytest.mark.slow
def test_a_demo_interrupted_in_its_first_part_leaves_no_file_and_exits_with_130(tmp_path):
    program = [sys.executable, "-c", "from annattn.cli import main; main()"]
    page = str(tmp_path / "report.html")
    with subprocess.Popen([*program, "demo", "--output", page], stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        for line in started.stderr:
            if "Speed" in line:
                started.send_signal(signal.SIGINT)
                break
        told = started.stderr.read()
        assert started.wait(timeout=60) == 130
    assert "nothing was written" in told
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_demo_writes_the_parts_that_were_finished(command, monkeypatch, tmp_path):
    def interrupted(settings, progress):
        raise KeyboardInterrupt

    monkeypatch.setitem(PARTS, "models", replace(PARTS["models"], measure=interrupted))
    code, _, errors = command("demo")
    assert code == 130
    assert "report.html has the parts that were finished: speed, attention" in " ".join(errors.split())
    saved = json.loads((tmp_path / "report.json").read_text())
    assert set(saved) == {"format", "machine", "speed", "attention"}
    code, output, _ = command("report", "--from", "report.json", "--output", "again.html", "--json")
    assert "again.html" in output


@pytest.mark.parametrize("name", PARTS)
def test_each_part_runs_alone(command, name, tmp_path):
    code, output, _ = command("demo", name)
    assert code == 0, output
    assert set(json.loads((tmp_path / "report.json").read_text())) == {"format", "machine", name}
    page = (tmp_path / "report.html").read_text()
    assert [other for other in PARTS if f'<section id="{other}"' in page] == [name]


def test_the_quick_demo_times_no_long_softmax(command, monkeypatch, numbers):
    given = []
    speed = replace(PARTS["speed"], measure=lambda settings, progress: given.append(settings) or numbers["speed"])
    monkeypatch.setitem(PARTS, "speed", speed)
    assert command("demo", "--quick")[0] == 0
    assert given[0].longest == 8192


def test_every_theorem_has_its_share_of_the_bar():
    from annattn.report.theorems import _TIME

    assert set(_TIME) == set(THEOREMS)


def test_the_table_and_the_headline_cut_a_share_of_right_answers_alike():
    row = {"tokens": 4096, "pairs": 256, "queries": 3584, "right": 0.99916, "seconds": 0.07}
    part = {"trained_at": 256, "rows": [row]}
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(TABLES["recall"](part))
    assert "99.91 %" in drawn.getvalue()
    assert headlines({"recall": part})[0][0] == "99.91 %"
