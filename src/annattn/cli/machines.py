"""`annattn mpc`: list the protocols, or run one and check its answer."""

import sys
from typing import Literal

import cyclopts
import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from annattn.cli.names import known
from annattn.cli.terminal import Whole
from annattn.errors import InputError
from annattn.mpc import Trace, with_partners
from annattn.mpc import run as run_protocol
from annattn.mpc.protocols import PROTOCOLS, Problem

__all__ = ["mpc"]

mpc = cyclopts.App(name="mpc", help="Massively parallel computation: protocols under enforced limits.")

SHOWN = 40
"""Rounds that are printed; of longer runs the first and the last half of these."""


@mpc.command(name="list")
def list_protocols() -> None:
    """List the protocols, what they compute, what they can be told and the published bound on their rounds.

    Example: annattn mpc list
    """
    console = Console(highlight=False)
    for name, problem in PROTOCOLS.items():
        options = ", ".join(f"--{option.replace('_', '-')}" for option in _options(problem))
        what = (problem.__doc__ or "").split("\n")[0].replace("`", "")
        console.print(Text(name, style="bold"))
        # Plain text: brackets in it are no markup.
        for line in (what, f"published rounds: {problem.bound}", f"parameters: {options}" if options else ""):
            if line:
                console.print(Padding(Text(line), (0, 0, 0, 4)))


def _options(problem: type[Problem]) -> list[str]:
    """The parameters that can be given on a command line."""
    names = problem.parameters()
    # A function cannot be; and the length of its rows says nothing without it.
    hidden = {"hasher", "dim", "seed"} if "hasher" in names else {"seed"}
    return [name for name in names if name not in hidden]


@mpc.command(name="run")
def run(
    protocol: str,
    *,
    n: Whole = 1024,
    memory: Whole | None = None,
    engine: Literal["local", "ray"] = "local",
    partners: Whole | None = None,
    seed: Whole = 0,
    **parameters: Whole,
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
        parameters: further parameters of the protocol, such as --k or --tables: see `annattn mpc list`.
    """
    known("protocol", protocol, PROTOCOLS, "see annattn mpc list")
    if seed < 0:
        raise InputError("seed", given=seed, expected="an integer of at least 0")
    kind = PROTOCOLS[protocol]
    chosen = {name.replace("-", "_"): value for name, value in parameters.items()}
    kind.check_names(chosen)
    words = 2 * kind.least_memory(n, **chosen) if memory is None else memory
    problem = kind(n, words, **chosen)
    runs = problem if partners is None else with_partners(problem, partners, seed=seed)
    given = problem.sample(np.random.default_rng(seed))
    output, trace = run_protocol(runs, given, engine=engine, progress=sys.stderr.isatty())
    right = problem.agrees(output, problem.oracle(given))
    lines = [_shortened(trace), f"rounds {problem.rounds}; published: {problem.bound}"]
    if partners is not None:
        lines.append(f"rounds with {partners} partners {trace.rounds}; published: O(R·(1+γ)²/ρ²) for R rounds")
    lines.append("the answer equals the oracle's" if right else "the answer is WRONG")
    sys.stdout.write("\n".join(lines) + "\n")
    if not right:
        raise SystemExit(1)


def _shortened(trace: Trace) -> str:
    """The summary, without the rounds in the middle of a long run."""
    head, *rounds = trace.summary().splitlines()
    if len(rounds) > SHOWN + 2:
        left_out = len(rounds) - 1 - SHOWN
        rounds = [*rounds[: 1 + SHOWN // 2], f"… {left_out} rounds more …", *rounds[-(SHOWN // 2) :]]
    return "\n".join([head, *rounds])
