"""The paper's tree for ANNA: copies of a home machine's records, which share its work, and sums on the way back.

Theorem "MPC simulates ANNA": "Because ℓ = N^(3ρ), we use the s/m-ary tree to propagate the queries and keys". A home
sends its records to some machines, these send them on, and so on to the copies. Later the copies send what they learned
along the same tree, and every node adds up what it hears.
"""

from dataclasses import dataclass

import numpy as np

from annattn.mpc.model import Mail, Numbers, real_words, word_reals
from annattn.mpc.parts.runs import run_starts
from annattn.mpc.parts.stages import in_order
from annattn.mpc.parts.tree import children_of, tree_depth

__all__ = ["Copies"]


@dataclass(frozen=True)
class Copies:
    """`copies` machines for each of `homes` homes, `depth` rounds away from it by a tree of the given arity.

    Only one level of the tree is at work in a round, so all levels share machines: node j of a level of home h is
    number h·copies + j. The home is the root. One copy means the home itself: depth 0 and no machines.

    >>> tree = Copies(homes=10, copies=7, arity=3)
    >>> tree.sizes, tree.depth, tree.machines
    ((7, 3, 1), 2, 70)
    """

    homes: int
    copies: int
    arity: int

    @property
    def depth(self) -> int:
        """⌈log_a(copies)⌉."""
        return tree_depth(self.copies, self.arity)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The nodes of each level for one home, copies first, home last."""
        return tuple(-(-self.copies // self.arity**level) for level in range(self.depth + 1))

    @property
    def machines(self) -> int:
        """The machines besides the homes."""
        return self.homes * self.copies if self.depth else 0

    def home_and_node(self, machine: Numbers) -> tuple[Numbers, Numbers]:
        """The home of each machine and its number among that home's nodes."""
        return np.divmod(machine, self.copies)

    def below(self, level: int, home: Numbers, node: Numbers) -> tuple[Numbers, Numbers]:
        """Pairs (index of a record, a machine below its holder), for records that nodes of one level hold.

        >>> Copies(homes=2, copies=7, arity=3).below(1, np.array([1, 1]), np.array([1, 2]))
        (array([0, 0, 0, 1]), array([10, 11, 12, 13]))
        """
        which, child = children_of(node, self.sizes[level - 1], self.arity)
        return which, home[which] * self.copies + child

    def above(self, home: Numbers, node: Numbers) -> Numbers:
        """The machine above each node, where that is not its home."""
        return home * self.copies + node // self.arity

    def add(self, mail: Mail, keys: int) -> Mail:
        """Each machine's sums of the real columns after the first `keys`, over its records with equal keys."""
        mail = in_order(mail, range(keys))
        starts, _ = run_starts(mail, range(keys))
        words = mail.words[starts]
        if len(words):
            words[:, keys:] = real_words(np.add.reduceat(word_reals(mail.words[:, keys:]), starts, axis=0))
        return Mail(mail.dest[starts], mail.dest[starts], words)
