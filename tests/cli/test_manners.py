"""What every command has in common: help, versions, suggestions, plain output in pipes, exit codes."""

import errno
import inspect
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import annattn
from annattn.cli.app import COMMANDS
from annattn.cli.terminal import progress_bar
from annattn.interrupts import between_steps
from tests.cli.conftest import PROGRAM, SOURCES

PLACES = [(name,) for name in COMMANDS if name != "mpc"] + [("mpc", "list"), ("mpc", "run")]


@pytest.mark.parametrize("columns", [60, 200])
@pytest.mark.parametrize("place", PLACES, ids=" ".join)
def test_help_shows_an_example(place, columns, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, errors = command(*place, "--help")
    assert (code, errors) == (0, "")
    assert f"Example: annattn {' '.join(place)}" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= columns
    assert "\x1b" not in out


@pytest.mark.parametrize("place", PLACES, ids=" ".join)
def test_an_example_is_one_line_of_80_columns_to_copy(place, command, monkeypatch):
    function = "list_protocols" if place == ("mpc", "list") else place[-1]
    written = inspect.getdoc(getattr(import_module(f"annattn.cli.{place[0]}"), function)) or ""
    monkeypatch.setenv("COLUMNS", "80")
    shown = [line.strip() for line in command(*place, "--help")[1].splitlines()]
    examples = [line.strip() for line in written.splitlines() if re.match(r"\s*(Example: annattn|torchrun) ", line)]
    assert examples
    assert all(one in shown for one in examples)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("mpc", "demo")])
def test_a_command_has_json(name, command):
    assert "--json" in command(name, "--help")[1]


def test_the_list_of_commands_says_the_exit_codes(command):
    code, out, _ = command("--help")
    assert code == 0
    assert all(re.search(rf"│ {name} ", out) for name in COMMANDS)
    shown = " ".join(out.split())
    assert "0 done; 1 failed, or a theorem does not hold; 2 bad input; 130 interrupted" in shown


NO_MEMORY = [
    MemoryError(),
    RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    RuntimeError("std::bad_alloc"),
    RuntimeError("can't start new thread"),
    ImportError("libmany.so: failed to map segment from shared object"),
    OSError("libmany.so: failed to map segment from shared object"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
def test_memory_that_runs_out_anywhere_gets_one_line(error, command, monkeypatch):
    def fail() -> None:
        try:
            raise error
        except (ImportError, MemoryError) as first:  # a library may say something else in its place
            raise LookupError("no such thing") from first
        except OSError as first:
            raise OSError("no such file, or no permission") from first

    monkeypatch.setattr("annattn.cli.plan.plan", fail)
    code, shown, errors = command("plan")
    assert (code, shown, len(errors.splitlines())) == (1, "", 1)
    assert "memory" in errors
    assert errors.startswith("annattn: ")


def test_an_error_of_the_library_itself_is_not_hidden(command, monkeypatch):
    def fail() -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("annattn.cli.plan.plan", fail)
    with pytest.raises(RuntimeError, match="a mistake"):
        command("plan")


def test_every_listed_command_is_there():
    for name, line in COMMANDS.items():
        assert hasattr(import_module(f"annattn.cli.{name}"), name), name
        assert line.endswith(".")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("atend",), 'Did you mean "attend"?'),
        (("theorms",), 'Did you mean "theorems"?'),
        (("--vrsion",), "did you mean --version?"),
        (("mpc", "run", "KHop", "--ngine", "ray"), "did you mean --engine?"),
        (("mpc", "run", "Sort", "--word-bit", "8"), "did you mean --word-bits?"),
        (("theorems", "match"), "did you mean match2?"),
        (("theorems", "--quik"), "Did you mean --quick?"),
        (("train", "match2_paper", "--seed", "1.5"), "'1.5' is not an integer"),
        (("reproduce", "--json", "match2_papr"), "did you mean match2_paper?"),
    ],
)
def test_a_typo_is_one_line_that_suggests_the_nearest(arguments, message, command):
    code, out, errors = command(*arguments)
    assert (code, out) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_a_nul_in_an_argument_is_one_line(command):
    code, _, errors = command("report", "--from", "a\0b.json")
    assert code == 2
    assert errors == "annattn: an argument with a NUL character in it: no file has such a name\n"


def test_help_and_version_do_not_wait_for_torch(process):
    program = f"""
import sys
try:
    {PROGRAM}
finally:
    assert not {{"torch", "numba"}} & set(sys.modules)
"""
    for argument, shown in (("--version", annattn.__version__), ("--help", "Usage: annattn")):
        started = process(argument, program=program)
        out, errors = started.communicate(timeout=60)
        assert (started.returncode, errors) == (0, "")
        assert out.startswith(shown)


def test_json_of_protocols(command):
    from annattn.mpc.protocols import PROTOCOLS

    listed = json.loads(command("mpc", "list", "--json")[1])
    assert list(listed) == list(PROTOCOLS)
    assert listed["Sort"]["options"] == ["--width", "--word-bits"]
    code, out, errors = command("mpc", "run", "KHop", "--n", 256, "--k", 2, "--json")
    assert (code, errors) == (0, "")
    told = json.loads(out)
    assert told["right"] is True
    assert len(told["loads"]) == told["rounds"]
    assert max(load["inbox"] for load in told["loads"]) <= told["memory_words"]


def test_a_wrong_answer_is_exit_code_1(command, monkeypatch):
    from annattn.mpc.protocols import PROTOCOLS

    monkeypatch.setattr(PROTOCOLS["Sum"], "oracle", lambda self, words: -1)
    assert command("mpc", "run", "Sum", "--n", 16)[0] == 1
    code, out, _ = command("mpc", "run", "Sum", "--n", 16, "--json")
    assert (code, json.loads(out)["right"]) == (1, False)


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(process):
    started = process("mpc", "list", "--json")
    assert started.stdout.read(1) == "{"
    started.stdout.close()
    assert started.stderr.read() == ""
    assert started.wait(60) in (0, 1)
    # The same when the reader was never there.
    read, write = os.pipe()
    os.close(read)
    started = process("mpc", "list", stdout=write)
    os.close(write)
    assert started.stderr.read() == ""
    assert started.wait(60) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_standard_output_is_one_line(process):
    with open("/dev/full", "w") as full:
        started = process("--help", stdout=full)
        errors = started.stderr.read().splitlines()
        assert len(errors) == 1
        assert errors[0].endswith("the disk is full")
        assert started.wait(60) == 1


@pytest.fixture
def terminal(tmp_path):
    """A terminal of a given width; gives functions that type into it and read it."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed, so there is no terminal to test in")
    tmux = ["tmux", "-L", f"annattn-{tmp_path.name}"]
    run = f"PYTHONPATH={SOURCES} OMP_NUM_THREADS=1 {sys.executable} -c '{PROGRAM}'"

    class Terminal:
        def start(self, line: str, columns: int = 60, env: str = "") -> None:
            script = tmp_path / "run.sh"
            script.write_text(f"trap : INT\ncd {tmp_path}\n{env} {run} {line}\necho left with $?\nsleep 60\n")
            size = ["-x", str(columns), "-y", "40"]
            subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", *size, "sh", str(script)], check=True)

        def screen(self, *options: str) -> str:
            return subprocess.run([*tmux, "capture-pane", "-p", *options], capture_output=True, text=True).stdout

        def wait(self, text: str, seconds: float = 90) -> str:
            for _ in range(int(seconds * 10)):
                if text in self.screen():
                    return self.screen()
                time.sleep(0.1)
            raise AssertionError(f"{text!r} never showed:\n{self.screen()}")

        def press(self, key: str) -> None:
            subprocess.run([*tmux, "send-keys", key], check=True)

    yield Terminal()
    subprocess.run([*tmux, "kill-server"], capture_output=True)


@pytest.mark.slow
def test_ctrl_c_in_attend(terminal, tmp_path):
    for name in "qkv":
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).standard_normal((400, 4000, 8), dtype=np.float32))
    terminal.start("attend q.npy k.npy v.npy -o out.npy --mechanism softmax --memory 1")
    shown = terminal.wait("softmax")
    assert "%" in shown
    terminal.press("C-c")
    shown = terminal.wait("left with")
    assert "annattn: interrupted" in shown
    assert "left with 130" in shown
    assert "Traceback" not in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.npy", "q.npy", "run.sh", "v.npy"]


@pytest.mark.slow
def test_ctrl_c_in_train_keeps_a_whole_state(terminal, tmp_path):
    terminal.start("train match2_paper --folder here", env="")
    terminal.wait("loss")
    terminal.press("C-c")
    shown = terminal.wait("left with")
    assert "stopped; the same command continues from here" in " ".join(shown.split())
    assert "left with 130" in shown
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["log.csv", "run.json", "state.safetensors"]
    # What was kept is what an uninterrupted run has at that step, bit for bit.
    from annattn.experiments import RECIPES, train
    from annattn.nn.checkpoint import read_tensors

    kept, recipe = read_tensors(tmp_path / "here" / "state.safetensors"), RECIPES["match2_paper"]
    step = int(kept["step"])
    assert step == json.loads((tmp_path / "here" / "run.json").read_text())["step"]
    assert 0 < step < recipe.steps
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the terminal: torch's summation order depends on the number of threads
    try:
        train(recipe, folder=tmp_path / "again", stop_at=step)
    finally:
        torch.set_num_threads(threads)
    again = read_tensors(tmp_path / "again" / "state.safetensors")
    assert kept.keys() == again.keys()
    assert all(np.array_equal(kept[name].numpy(), again[name].numpy()) for name in kept)


@pytest.mark.slow
@pytest.mark.parametrize("plain", ["NO_COLOR=1", "TERM=dumb", ""])
def test_a_terminal_that_wants_it_plain_gets_no_colour_and_no_progress(plain, terminal):
    terminal.start("mpc run KHop --n 64 --k 2 2>&1", columns=80, env=plain)
    shown = terminal.wait("left with 0")
    assert "the answer equals the oracle's" in shown
    # One line for all rounds, and none where progress is not wanted.
    assert [line.startswith("KHop ") for line in terminal.screen("-S", "-").splitlines()].count(True) == (plain == "")


@pytest.mark.parametrize(
    ("environment", "watched"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_bar_is_drawn_only_where_it_can_be_and_is_wanted(environment, watched, monkeypatch):
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    screen = io.StringIO()
    with progress_bar(Console(file=screen, force_terminal=True, width=60)) as progress:
        progress.add_task("work", total=1, note="loss 0.1")
    assert ("loss 0.1" in screen.getvalue()) == watched
    with progress_bar(Console(file=(piped := io.StringIO()), force_terminal=False)) as progress:
        progress.add_task("work", total=1, note="loss 0.1")
    assert piped.getvalue().strip() == ""


def test_an_interrupt_waits_for_the_end_of_a_step():
    ended = []
    # A shell lets a job in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def steps() -> None:
        with between_steps() as stop_if_asked:
            for step in range(3):
                if step == 1:
                    signal.raise_signal(signal.SIGINT)
                    signal.raise_signal(signal.SIGINT)
                ended.append(step)
                stop_if_asked()

    with pytest.raises(KeyboardInterrupt):
        steps()
    assert ended == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
