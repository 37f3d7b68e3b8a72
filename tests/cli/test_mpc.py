"""`annattn mpc` as a user meets it: what it prints, and how it exits."""

import subprocess
import sys

import numpy as np
import pytest

from annattn.mpc import PartFiles


def annattn(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from annattn.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300)


def test_mpc_lists_every_protocol():
    from annattn.mpc.protocols import PROTOCOLS

    done = annattn("mpc", "list")
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in PROTOCOLS)
    assert "out[place] = word" in done.stdout
    assert "--value-dim" in done.stdout


def test_options_are_written_with_hyphens(command):
    assert command("mpc", "run", "Sort", "--n", "100", "--word-bits", "8")[0] == 0


def test_of_a_long_run_the_first_and_last_rounds_are_printed(command):
    code, output, _ = command("mpc", "run", "Connectivity", "--n", "64")
    assert code == 0
    assert "more rounds" in output
    assert len(output.splitlines()) < 50


def test_more_records_than_this_machine_holds_get_one_line(command):
    code, _, errors = command("mpc", "run", "Sum", "--n", str(10**14))
    assert code == 1
    assert errors.startswith("annattn: not enough memory here")
    assert len(errors.splitlines()) == 1


@pytest.mark.slow
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
        (("mpc", "run", "Sort", "--tables", "3"), "parameter of Sort: got tables, expected one of width, word_bits"),
        (("mpc", "run", "KHop", "--k", "2.5"), "--k: got '2.5', expected an integer"),
        (("mpc", "run", "KHop", "--n", "abc"), "'abc' is not an integer"),
        (("mpc", "run", "Sort", "--width", "-1"), "width: got -1"),
        (("mpc", "run", "Sum", "--seed", "-1"), "seed: got -1"),
        (("mpc", "run", "AnnaAttention", "--hasher", "3", "--dim", "4"), "hasher: got 3"),
        (("mpc", "lsit"), 'Did you mean "list"?'),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(arguments, message, command):
    code, _, errors = command(*arguments)
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_input_and_output_in_folders(command, tmp_path):
    words = np.random.default_rng(0).integers(0, 2**64, (30, 2), dtype=np.uint64)
    (tmp_path / "in").mkdir()
    for number, part in enumerate(np.split(words, [7, 20])):
        np.save(tmp_path / "in" / f"part-{number}.npy", part)
    folders = ("--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"))
    code, output, errors = command("mpc", "run", "Sort", *folders, "--width", "2")
    assert code == 0, errors
    assert "the answer was not checked; --check reads all of it into this process" in output
    written = PartFiles.open(tmp_path / "out").whole()
    assert np.array_equal(written, words[np.argsort(words[:, 0], kind="stable")])
    code, _, errors = command("mpc", "run", "Sort", *folders, "--width", "2")
    assert code == 2
    assert "out, which is there already, expected a new or an empty folder" in errors
    _, output, _ = command("mpc", "run", "Sort", *folders[:2], "--width", "2", "--check")
    assert output.endswith("the answer equals the oracle's\n")
