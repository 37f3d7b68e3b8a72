"""Protocols, one a file: `PROTOCOLS` lists them by name."""

from annattn.mpc.model import Protocol
from annattn.mpc.protocols.broadcast import Broadcast
from annattn.mpc.protocols.permute import Permute
from annattn.mpc.protocols.prefix_sum import PrefixSum
from annattn.mpc.protocols.sort import Sort
from annattn.mpc.protocols.sums import Sum

PROTOCOLS: dict[str, type[Protocol]] = {
    "Sum": Sum,
    "Broadcast": Broadcast,
    "PrefixSum": PrefixSum,
    "Sort": Sort,
    "Permute": Permute,
}

__all__ = ["PROTOCOLS", "Broadcast", "Permute", "PrefixSum", "Sort", "Sum"]
