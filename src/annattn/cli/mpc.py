"""`annattn mpc`: list the protocols, or run one and check its answer."""

import sys
from typing import Literal

import cyclopts
import numpy as np
from rich.padding import Padding
from rich.text import Text

from annattn.cli.names import known, nearest
from annattn.cli.terminal import AsJson, Whole, is_watched, output, print_json, remarks
from annattn.errors import InputError
from annattn.mpc import Trace, with_partners
from annattn.mpc import run as run_protocol
from annattn.mpc.protocols import PROTOCOLS, Problem

__all__ = ["mpc"]

mpc = cyclopts.App(name="mpc", help="Massively parallel computation: protocols under enforced limits.")

SHOWN = 40
"""Rounds that are printed; of longer runs the first and the last half of these."""


@mpc.command(name="list")
def list_protocols(*, as_json: AsJson = False) -> None:
    """List the protocols, what they compute, what they can be told and the published bound on their rounds.

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
    console = output()
    for name, problem in PROTOCOLS.items():
        what, bound, options = _summary(problem), problem.bound, _options(problem)
        console.print(Text(name, style="bold"))
        # Plain text: brackets in it are no markup.
        for line in (what, f"published rounds: {bound}", f"parameters: {', '.join(options)}" if options else ""):
            if line:
                console.print(Padding(Text(line), (0, 0, 0, 4)))


def _summary(problem: type[Problem]) -> str:
    return (problem.__doc__ or "").split("\n")[0].replace("`", "")


def _options(problem: type[Problem]) -> list[str]:
    """The parameters that can be given on a command line, as they are given."""
    names = problem.parameters()
    # A function cannot be; and the length of its rows says nothing without it.
    hidden = {"hasher", "dim", "seed"} if "hasher" in names else {"seed"}
    return [_option(name) for name in names if name not in hidden]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@mpc.command(name="run")
def run(
    protocol: str,
    *,
    n: Whole = 1024,
    memory: Whole | None = None,
    engine: Literal["local", "ray"] = "local",
    partners: Whole | None = None,
    seed: Whole = 0,
    as_json: AsJson = False,
    **parameters: str,
) -> None:
    """Run a protocol on a random input, check its answer with the oracle, and print the load of every round.

    Example: annattn mpc run KHop --n 4096 --k 4 --memory 1024

    Args:
        protocol: a name from `annattn mpc list`.
        n: how many records the input has.
        memory: words a machine can hold; by default twice the least that will do.
        engine: in this process, or on Ray.
        partners: how many others a machine may send to and hear from in a round; no limit unless given.
        seed: decides the input.
        as_json: print JSON, the load of every round included.
        parameters: further parameters of the protocol, such as --k or --tables: see `annattn mpc list`.
    """
    known("protocol", protocol, PROTOCOLS, "see annattn mpc list")
    if seed < 0:
        raise InputError("seed", given=seed, expected="an integer of at least 0")
    kind = PROTOCOLS[protocol]
    chosen = _chosen(kind, parameters)
    words = 2 * kind.least_memory(n, **chosen) if memory is None else memory
    problem = kind(n, words, **chosen)
    runs = problem if partners is None else with_partners(problem, partners, seed=seed)
    given = problem.sample(np.random.default_rng(seed))
    answer, trace = run_protocol(runs, given, engine=engine, progress=is_watched(remarks()))
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


def _chosen(kind: type[Problem], given: dict[str, str]) -> dict[str, int]:
    """The protocol's own parameters; a mistyped option of the command ends up among them."""
    options = ["--n", "--memory", "--engine", "--partners", "--seed", "--json"]
    chosen = {}
    for name, text in given.items():
        name = name.replace("-", "_")
        if name not in kind.parameters():
            near = nearest(_option(name), options + _options(kind), 0.75)
            if near:
                raise InputError("option", given=_option(name), expected=f"one that {kind.__name__} has", hint=near)
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
    """The summary, without the rounds in the middle of a long run."""
    head, *rounds = trace.summary().splitlines()
    if len(rounds) > SHOWN + 2:
        left_out = len(rounds) - 1 - SHOWN
        rounds = [*rounds[: 1 + SHOWN // 2], f"… {left_out} rounds more …", *rounds[-(SHOWN // 2) :]]
    return "\n".join([head, *rounds])
