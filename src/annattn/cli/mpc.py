"""`annattn mpc`: list the protocols, or run one and check its answer."""

import sys
from typing import Literal

import cyclopts
import numpy as np
from rich.padding import Padding
from rich.text import Text

from annattn.checks import did_you_mean, require_choice
from annattn.cli.terminal import Integer, JsonFlag, print_json, shows_progress, stderr_console, stdout_console
from annattn.errors import InputError
from annattn.mpc import Trace, with_partners
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
    n: Integer = 1024,
    memory: Integer | None = None,
    engine: Literal["local", "ray"] = "local",
    partners: Integer | None = None,
    seed: Integer = 0,
    as_json: JsonFlag = False,
    **parameters: str,
) -> None:
    """Run a protocol on a random input, check its answer against the oracle, and print the load of every round.

    Example: annattn mpc run KHop --n 4096 --k 4 --memory 1024

    Args:
        protocol: a name from `annattn mpc list`.
        n: number of records in the input.
        memory: words per machine; by default twice the smallest number that works.
        engine: local runs in this process, ray on a Ray cluster.
        partners: how many other machines a machine may send to, and receive from, per round; by default no limit.
        seed: determines the input.
        as_json: print JSON, including the load of every round.
        parameters: further parameters of the protocol, such as --k or --tables: see `annattn mpc list`.
    """
    require_choice("protocol", protocol, PROTOCOLS, hint=did_you_mean(protocol, PROTOCOLS) or "see annattn mpc list")
    check_seed(seed)
    kind = PROTOCOLS[protocol]
    chosen = _parse_parameters(kind, parameters)
    words = 2 * kind.least_memory(n, **chosen) if memory is None else memory
    problem = kind(n, words, **chosen)
    runs = problem if partners is None else with_partners(problem, partners)
    given = problem.sample(np.random.default_rng(seed))
    answer, trace = run_protocol(runs, given, engine=engine, progress=shows_progress(stderr_console()))
    right = problem.agrees(answer, problem.oracle(given))
    if as_json:
        print_json(_document(protocol, problem, trace, right))
        raise SystemExit(0 if right else 1)
    lines = [_shortened(trace), f"rounds {problem.rounds}; published: {problem.bound}"]
    if partners is not None:
        lines.append(f"rounds with {partners} partners {trace.rounds}; published: O(R·(1+γ)²/ρ²) for R rounds")
    lines.append("the answer equals the oracle's" if right else "the answer is WRONG")
    sys.stdout.write("\n".join(lines) + "\n")
    if not right:
        raise SystemExit(1)


def _parse_parameters(kind: type[Problem], given: dict[str, str]) -> dict[str, int]:
    """The protocol's own parameters; a mistyped option of the command is among them too."""
    options = ["--n", "--memory", "--engine", "--partners", "--seed", "--json"]
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


def _document(name: str, problem: Problem, trace: Trace, right: bool) -> dict[str, object]:
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
