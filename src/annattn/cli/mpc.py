"""`annattn mpc`: list the protocols, or run one and check its answer."""

import sys
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import numpy as np
from rich.padding import Padding
from rich.progress import MofNCompleteColumn
from rich.text import Text

from annattn.checks import did_you_mean, require_choice
from annattn.cli.terminal import Flag, Integer, JsonFlag, print_json, progress_bar, stderr_console, stdout_console
from annattn.errors import InputError
from annattn.mpc import ENGINES, PartFiles, RoundLoad, Trace, as_words, with_partners
from annattn.mpc import run as run_protocol
from annattn.mpc.protocols import PROTOCOLS, Problem
from annattn.seeds import check_seed

__all__ = ["mpc"]

mpc = cyclopts.App(name="mpc", help="Massively parallel computation: protocols under enforced limits.")

SHOWN_ROUNDS = 40
"""Rounds that are printed; a longer run shows half of them at its start and half at its end."""


@mpc.command(name="list")
def list_protocols(*, as_json: JsonFlag = False) -> None:
    """List the protocols: what each computes, its parameters, and the published bound on its rounds.

    Example: annattn mpc list

    Args:
        as_json: print JSON.
    """
    if as_json:
        listed = {
            name: {"what": _summary(one), "bound": one.bound, "options": _options(one)}
            for name, one in PROTOCOLS.items()
        }
        print_json(listed)
        return
    console = stdout_console()
    for name, problem in PROTOCOLS.items():
        what, bound, options = _summary(problem), problem.bound, _options(problem)
        console.print(Text(name, style="bold"))
        # As Text, so that brackets are not taken for markup.
        for line in (what, f"published rounds: {bound}", f"parameters: {', '.join(options)}" if options else ""):
            if line:
                console.print(Padding(Text(line), (0, 0, 0, 4)))


def _summary(problem: type[Problem]) -> str:
    return (problem.__doc__ or "").split("\n")[0].replace("`", "")


def _options(problem: type[Problem]) -> list[str]:
    """The parameters that a command line can give, written as options."""
    names = problem.parameters()
    # A hasher is a function, which cannot be typed; without one there is no use for the length of its rows.
    hidden = {"hasher", "dim", "seed"} if "hasher" in names else {"seed"}
    return [_option(name) for name in names if name not in hidden]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@mpc.command(name="run")
def run(
    protocol: str,
    *,
    n: Integer | None = None,
    memory: Integer | None = None,
    engine: str = "local",
    partners: Integer | None = None,
    seed: Integer = 0,
    input_: Annotated[Path | None, cyclopts.Parameter(name="--input")] = None,
    output: Path | None = None,
    check: Flag = False,
    shards: Integer | None = None,
    address: str | None = None,
    checkpoints: Path | None = None,
    as_json: JsonFlag = False,
    **parameters: str,
) -> None:
    """Run a protocol under its limits and print the load of every round.

    A random input is made in this process, and its answer is checked against the oracle. An input in files stays there:
    with --engine ray it never passes through this process, and neither does output that goes to a folder.

    Example: annattn mpc run KHop --n 4096 --k 4 --memory 1024

    Example: annattn mpc run Sort --engine ray --input parts --output sorted

    Args:
        protocol: a name from `annattn mpc list`.
        n: number of records in the input; by default 1024, or as many as the input has.
        memory: words per machine; by default twice the smallest number that works.
        engine: local runs in this process, ray on a Ray cluster.
        partners: how many other machines a machine may send to, and receive from, per round; by default no limit.
        seed: determines the random input.
        input_: a folder of .npy or .parquet files with the input, in the order of their names.
        output: a folder for the output; it must be new or empty.
        check: compare the answer for an input in files with the oracle's too, in this process.
        shards: tasks per round on Ray; by default 4.
        address: a running Ray cluster; without it, Ray starts on this machine.
        checkpoints: a folder in which a run on Ray keeps its last finished round. The same command goes on from there.
        as_json: print JSON, including the load of every round.
        parameters: further parameters of the protocol, such as --k or --tables: see `annattn mpc list`.
    """
    require_choice("protocol", protocol, PROTOCOLS, hint=did_you_mean(protocol, PROTOCOLS) or "see annattn mpc list")
    require_choice("engine", engine, ENGINES)
    check_seed(seed)
    kind = PROTOCOLS[protocol]
    chosen = _parse_parameters(kind, parameters)
    files = None if input_ is None else PartFiles.open(input_)
    if n is None:
        n = 1024 if files is None else files.records
    words = 2 * kind.least_memory(n, **chosen) if memory is None else memory
    problem = kind(n, words, **chosen)
    runs = problem if partners is None else with_partners(problem, partners)
    given = problem.sample(np.random.default_rng(seed)) if files is None else files
    options = {"output": output, "shards": shards, "address": address, "checkpoints": checkpoints}
    options = {name: value for name, value in options.items() if value is not None}
    with progress_bar(stderr_console(), MofNCompleteColumn()) as bar:
        task = bar.add_task(protocol, total=runs.rounds, note="")

        def show(load: RoundLoad, rounds: int) -> None:
            bar.update(task, completed=load.round + 1, note=f"{load.words} words moved")

        answer, trace = run_protocol(runs, given, engine=engine, progress=show, **options)
    right = _is_right(problem, given, answer) if files is None or check else None
    if as_json:
        print_json(_document(protocol, problem, trace, right))
        raise SystemExit(1 if right is False else 0)
    lines = [_shortened(trace), f"rounds {problem.rounds}; published: {problem.bound}"]
    if partners is not None:
        lines.append(f"rounds with {partners} partners {trace.rounds}; published: O(R·(1+γ)²/ρ²) for R rounds")
    if output is not None:
        lines.append(f"the output is in {output}")
    lines.append(
        {
            True: "the answer equals the oracle's",
            False: "the answer is WRONG",
            None: "the answer was not checked; --check reads all of it into this process",
        }[right]
    )
    sys.stdout.write("\n".join(lines) + "\n")
    if right is False:
        raise SystemExit(1)


def _is_right(problem: Problem, given: Any, answer: Any) -> bool:
    """Whether the answer is the oracle's; input and output in files are read."""
    words = as_words(given.whole()) if isinstance(given, PartFiles) else given
    expected = problem.oracle(words)
    if isinstance(answer, PartFiles):
        answer = answer.whole().reshape(np.shape(expected))
    return problem.agrees(answer, expected)


def _parse_parameters(kind: type[Problem], given: dict[str, str]) -> dict[str, int]:
    """The protocol's own parameters; a mistyped option of the command is among them too."""
    options = ["--n", "--memory", "--engine", "--partners", "--seed", "--input", "--output", "--check", "--shards"]
    options += ["--address", "--checkpoints", "--json"]
    chosen = {}
    for name, text in given.items():
        name = name.replace("-", "_")
        if name not in kind.parameters():
            hint = did_you_mean(_option(name), options + _options(kind), likeness=0.75)
            if hint:
                raise InputError("option", given=_option(name), expected=f"one that {kind.__name__} has", hint=hint)
        try:
            chosen[name] = int(text)
        except ValueError:
            raise InputError(_option(name), given=repr(text), expected="an integer") from None
    kind.check_names(chosen)
    return chosen


def _document(name: str, problem: Problem, trace: Trace, right: bool | None) -> dict[str, object]:
    limits = trace.limits
    return {
        "protocol": name,
        "n": problem.n,
        "machines": limits.machines,
        "memory_words": limits.memory_words,
        "partners": limits.partners,
        "rounds": trace.rounds,
        "bound": problem.bound,
        "words": trace.words,
        "right": right,
        "loads": [
            {"round": x.round, "words": x.words, "inbox": x.inbox, "outbox": x.outbox, "busiest": x.busiest}
            for x in trace.loads
        ],
    }


def _shortened(trace: Trace) -> str:
    """The summary of a run; a long one without the rounds in the middle."""
    head, *rounds = trace.summary().splitlines()
    if len(rounds) > SHOWN_ROUNDS + 2:
        left_out = len(rounds) - 1 - SHOWN_ROUNDS
        rounds = [*rounds[: 1 + SHOWN_ROUNDS // 2], f"… {left_out} more rounds …", *rounds[-(SHOWN_ROUNDS // 2) :]]
    return "\n".join([head, *rounds])
