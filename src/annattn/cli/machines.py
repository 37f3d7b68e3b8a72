"""`annattn mpc`: list the protocols, or run one and check its answer."""

import difflib
from typing import Literal

import cyclopts
import numpy as np
from rich.console import Console
from rich.table import Table

from annattn.errors import InputError
from annattn.mpc import run as run_protocol
from annattn.mpc import with_partners
from annattn.mpc.protocols import PROTOCOLS

__all__ = ["mpc"]

mpc = cyclopts.App(name="mpc", help="Massively parallel computation: protocols under enforced limits.")


@mpc.command(name="list")
def list_protocols() -> None:
    """List the protocols, what they compute and the published bound on their rounds.

    Example: annattn mpc list
    """
    table = Table("protocol", "what it computes", "published rounds")
    for name, problem in PROTOCOLS.items():
        table.add_row(name, (problem.__doc__ or "").split("\n")[0], getattr(problem, "bound", ""))
    Console().print(table)


@mpc.command(name="run")
def run(
    protocol: str,
    *,
    n: int = 1024,
    memory: int | None = None,
    engine: Literal["local", "ray"] = "local",
    partners: int | None = None,
    seed: int = 0,
    **parameters: int,
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
        parameters: further parameters of the protocol, such as --k or --tables.
    """
    if protocol not in PROTOCOLS:
        near = difflib.get_close_matches(protocol, PROTOCOLS, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else "see annattn mpc list"
        raise InputError("protocol", given=repr(protocol), expected=f"one of {', '.join(PROTOCOLS)}", hint=hint)
    kind = PROTOCOLS[protocol]
    try:
        words = 2 * kind.least_memory(n, **parameters) if memory is None else memory
        problem = kind(n, words, **parameters)
    except TypeError as wrong:
        raise InputError("parameters", given=parameters, expected=f"those of {protocol}", hint=str(wrong)) from None
    given = problem.sample(np.random.default_rng(seed))
    runs = problem if partners is None else with_partners(problem, partners, seed=seed)
    output, trace = run_protocol(runs, given, engine=engine)
    right = problem.agrees(output, problem.oracle(given))
    console = Console(highlight=False)
    console.print(trace.summary())
    console.print(f"rounds {trace.rounds}; published: {problem.bound}")
    console.print("the answer equals the oracle's" if right else "[bold]the answer is WRONG[/bold]")
    if not right:
        raise SystemExit(1)
