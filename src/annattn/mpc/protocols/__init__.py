"""Protocols, one per file: `PROTOCOLS` lists them by name. To add one, write a `Problem` and add its line."""

from annattn.mpc.protocols.anna import AnnaAttention
from annattn.mpc.protocols.broadcast import Broadcast
from annattn.mpc.protocols.connectivity import Connectivity
from annattn.mpc.protocols.exact_match import ExactMatchAttention
from annattn.mpc.protocols.induction_head import InductionHead
from annattn.mpc.protocols.join import Join
from annattn.mpc.protocols.k_hop import KHop
from annattn.mpc.protocols.low_rank import LowRankAttention
from annattn.mpc.protocols.permute import Permute
from annattn.mpc.protocols.prefix_sum import PrefixSum
from annattn.mpc.protocols.problem import Problem
from annattn.mpc.protocols.softmax import SoftmaxAttention
from annattn.mpc.protocols.sort import Sort
from annattn.mpc.protocols.sum import Sum
from annattn.mpc.protocols.three_sum import ThreeSum

PROTOCOLS: dict[str, type[Problem]] = {
    "Sum": Sum,
    "Broadcast": Broadcast,
    "PrefixSum": PrefixSum,
    "Sort": Sort,
    "Permute": Permute,
    "Join": Join,
    "InductionHead": InductionHead,
    "KHop": KHop,
    "Connectivity": Connectivity,
    "ThreeSum": ThreeSum,
    "LowRankAttention": LowRankAttention,
    "ExactMatchAttention": ExactMatchAttention,
    "AnnaAttention": AnnaAttention,
    "SoftmaxAttention": SoftmaxAttention,
}
"""Every protocol by name; the shared tests run over it."""

__all__ = [
    "PROTOCOLS",
    "AnnaAttention",
    "Broadcast",
    "Connectivity",
    "ExactMatchAttention",
    "InductionHead",
    "Join",
    "KHop",
    "LowRankAttention",
    "Permute",
    "PrefixSum",
    "Problem",
    "SoftmaxAttention",
    "Sort",
    "Sum",
    "ThreeSum",
]
