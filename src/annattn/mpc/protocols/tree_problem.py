"""What Sum and Broadcast share: all machines form one tree of arity s, and a round is one level of it."""

from abc import abstractmethod
from typing import Any

from annattn.mpc.model import Limits, Mail
from annattn.mpc.parts.stages import Stage
from annattn.mpc.parts.tree import tree_rounds
from annattn.mpc.protocols.problem import Problem

__all__ = ["TreeProblem"]


class TreeProblem(Problem):
    """A problem on ⌈n/s⌉ machines in max(1, ⌈log_s n⌉) rounds; machine j is the parent of machines j·s … j·s + s-1."""

    input_width = 1
    bound = "O(log_s N)"

    def __init__(self, n: int, memory_words: int, word_bits: int = 64) -> None:
        n, memory_words = self._require(n, memory_words)
        self.n = self.input_records = n
        self.limits = Limits(-(-n // memory_words), memory_words, word_bits)
        self.stages = (Stage(self.round_formula(), self._level),)

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """A tree needs two children per node."""
        return memory_words >= 2

    def round_formula(self) -> int:
        """max(1, ⌈log_s n⌉)."""
        return tree_rounds(self.n, self.limits.memory_words)

    @abstractmethod
    def _level(self, i: int, mail: Mail) -> Mail:
        """What one level of the tree sends to the next."""
