"""Massively parallel computation: protocols under enforced limits, run in this process or on a cluster."""

from annattn.mpc import programs, protocols
from annattn.mpc.engines import ENGINES, Engine
from annattn.mpc.model import (
    Limits,
    Mail,
    Protocol,
    Result,
    as_words,
    real_words,
    word_reals,
)
from annattn.mpc.part_files import PartFiles
from annattn.mpc.partners import with_partners
from annattn.mpc.per_machine import PerMachine
from annattn.mpc.running import run
from annattn.mpc.sharding import check_sharding
from annattn.mpc.trace import RoundLoad, Trace

__all__ = [
    "ENGINES",
    "Engine",
    "Limits",
    "Mail",
    "PartFiles",
    "PerMachine",
    "Protocol",
    "Result",
    "RoundLoad",
    "Trace",
    "as_words",
    "check_sharding",
    "programs",
    "protocols",
    "real_words",
    "run",
    "with_partners",
    "word_reals",
]
