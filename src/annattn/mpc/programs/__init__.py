"""Protocols whose steps are written in a small language, so that they compile to weights; `PROGRAMS` lists some."""

from collections.abc import Callable

from annattn.mpc.programs.expressions import (
    Expression,
    both,
    either,
    equal,
    maximum,
    minimum,
    negation,
    pick,
    select,
    table,
)
from annattn.mpc.programs.k_hop import k_hop_program
from annattn.mpc.programs.match2 import match2_program
from annattn.mpc.programs.program import NOWHERE, Machine, Program, Send, Turn
from annattn.mpc.programs.tree import broadcast_program, sum_program

__all__ = [
    "NOWHERE",
    "PROGRAMS",
    "Expression",
    "Machine",
    "Program",
    "Send",
    "Turn",
    "both",
    "broadcast_program",
    "either",
    "equal",
    "k_hop_program",
    "match2_program",
    "maximum",
    "minimum",
    "negation",
    "pick",
    "select",
    "sum_program",
    "table",
]

PROGRAMS: dict[str, Callable[..., Program]] = {
    "Sum": sum_program,
    "Broadcast": broadcast_program,
    "KHop": k_hop_program,
    "Match2": match2_program,
}
"""Every program by name, as a function of n and its parameters."""
