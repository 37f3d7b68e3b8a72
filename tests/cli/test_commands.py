"""The command line as a user meets it: what it prints, and how it exits."""

import subprocess
import sys

import pytest


def annattn(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from annattn.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300)


def test_demo_checks_its_answers_and_prints_a_table():
    done = annattn("demo", "--longest", "2048")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "│" in line]
    assert [row.split("│")[1].strip() for row in rows[-2:]] == ["1,024", "2,048"]
    assert all(float(row.split("│")[-2]) < 1e-5 for row in rows[-2:])


def test_mpc_lists_every_protocol():
    from annattn.mpc.protocols import PROTOCOLS

    done = annattn("mpc", "list")
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in PROTOCOLS)


@pytest.mark.parametrize("further", [(), ("--partners", "8")])
def test_mpc_runs_a_protocol_and_checks_its_answer(further):
    done = annattn("mpc", "run", "KHop", "--n", "512", "--k", "4", "--memory", "512", *further)
    assert done.returncode == 0, done.stderr
    assert "the answer equals the oracle's" in done.stdout
    assert "published: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mpc", "run", "KHopp"), "did you mean KHop?"),
        (("mpc", "run", "KHop", "--memory", "2"), "KHop"),
        (("mpc", "run", "Sort", "--tables", "3"), "parameters"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(arguments, message):
    done = annattn(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
