"""Induction heads: complete the most recent bigram."""

from dataclasses import dataclass, field
from typing import final

from annattn.tasks.khop import KHop

__all__ = ["InductionHeads"]


@final
@dataclass(frozen=True)
class InductionHeads(KHop):
    """Definition Induction heads: the target at letter i is w_{σ(w,i)}, and null where that does not exist.

    It is `KHop` with at most one hop. The defaults are those of the paper's experiment: a first token that asks for 0
    or 1 hops in training and for 1 hop in held-out data, then 99 letters from an alphabet of 4. See `KHop` for symbols,
    σ and splits.

    >>> task = InductionHeads(n=10, letters=3)
    >>> task.decode(task.solve(task.encode("aabcbabca", hops=1)))
    '_.a..cbabb'

    Args:
        n: length of a sequence, including the first token.
        letters: size of the alphabet.
        repeats: whether a letter may equal the one before it.
        asked_from: the smallest hop count in training batches: 1 asks for a hop every time.
        asked_to: the largest one there; None is 1.
    """

    hops: int = field(default=1, init=False)

    def _solve_one(self, x: list[int]) -> list[int]:
        null, blank = self.special["null"], self.special["blank"]
        asks_for_a_hop = x[0] != self.special["zero_hops"]
        targets = [blank]
        for i in range(1, len(x)):
            answer = null if asks_for_a_hop else x[i]
            for j in range(2, i + 1):
                if asks_for_a_hop and x[j - 1] == x[i]:
                    answer = x[j]  # the largest j comes last
            targets.append(answer)
        return targets
