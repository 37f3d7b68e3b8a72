"""Synthetic tasks: labelled sequences, and a brute force that computes the right labels. Needs no torch."""

from annattn.tasks.base import Batch, Task
from annattn.tasks.induction import InductionHeads
from annattn.tasks.khop import KHop
from annattn.tasks.listops import ListOps
from annattn.tasks.match2 import Match2
from annattn.tasks.recall import AssociativeRecall
from annattn.tasks.splits import SPLITS
from annattn.tasks.sum import Sum

__all__ = [
    "SPLITS",
    "TASKS",
    "AssociativeRecall",
    "Batch",
    "InductionHeads",
    "KHop",
    "ListOps",
    "Match2",
    "Sum",
    "Task",
]

TASKS: dict[str, type[Task]] = {
    "match2": Match2,
    "induction_heads": InductionHeads,
    "k_hop": KHop,
    "sum": Sum,
    "associative_recall": AssociativeRecall,
    "listops": ListOps,
}
"""Every task by name; the shared tests run over this dict."""
