"""Trees of machines: combining one summary per machine, and telling every machine what came before it.

The leaves are machines 0 … leaves-1 and hold data. The nodes are further machines, so a node's work never adds to a
leaf's load. While a tree works, each leaf mails its data to itself; a record from another machine belongs to the tree.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np

from annattn.mpc.model import Mail, Numbers, Words
from annattn.mpc.parts.stages import fold, index_within, join_mail, unfold

__all__ = [
    "Combine",
    "Scan",
    "Summary",
    "Tree",
    "children_of",
    "exclusive_scan",
    "reduce_groups",
    "tree_depth",
    "tree_rounds",
]

Combine = Callable[[Words, Words], Words]
"""Combines two arrays of summaries, of which the left ones are earlier; must be associative."""


class Tree:
    """A tree of arity a over `leaves` machines; its nodes are the machines from `base`.

    >>> tree = Tree(leaves=10, arity=3, base=10)
    >>> tree.sizes, tree.depth, tree.machines
    ((10, 4, 2, 1), 3, 7)
    """

    def __init__(self, leaves: int, arity: int, base: int) -> None:
        sizes = [leaves]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // arity))
        self.sizes, self.arity, self.base = tuple(sizes), arity, base

    @property
    def depth(self) -> int:
        """The number of levels above the leaves: ⌈log_a(leaves)⌉."""
        return len(self.sizes) - 1

    @property
    def machines(self) -> int:
        """The number of machines besides the leaves."""
        return sum(self.sizes[1:])

    def first(self, level: int) -> int:
        """The first machine of a level; the leaves are level 0."""
        return 0 if level == 0 else self.base + sum(self.sizes[1:level])

    def level(self, machine: Numbers) -> Numbers:
        """The level each machine belongs to."""
        firsts = [self.first(level) for level in range(1, self.depth + 1)]
        return np.searchsorted(firsts, machine, side="right")

    def parent(self, level: int, machine: Numbers) -> Numbers:
        """The parents of the given machines of one level."""
        return self.first(level + 1) + (machine - self.first(level)) // self.arity

    def children(self, level: int, machine: Numbers) -> tuple[Numbers, Numbers]:
        """Pairs (index of a given machine, a machine below it), for given machines of one level."""
        which, child = children_of(machine - self.first(level), self.sizes[level - 1], self.arity)
        return which, child + self.first(level - 1)


def children_of(node: Numbers, below: int | Numbers, arity: int) -> tuple[Numbers, Numbers]:
    """Pairs (index of a node, its child), where a node's tree has `below` nodes one level down.

    >>> children_of(np.array([0, 1]), below=5, arity=3)
    (array([0, 0, 0, 1, 1]), array([0, 1, 2, 3, 4]))
    """
    first = node * arity
    count = np.clip(below - first, 0, arity)
    which = np.repeat(np.arange(len(node)), count)
    return which, first[which] + np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)


class Summary(ABC):
    """What a machine tells later ones about its records, as some words; all zeros mean nothing."""

    length: int

    @abstractmethod
    def of(self, mail: Mail) -> tuple[Numbers, Words]:
        """The machines that have mail, in order, and their summaries."""

    @abstractmethod
    def combine(self, left: Words, right: Words) -> Words:
        """Summaries of two neighbouring ranges of machines, the left one earlier, as one summary; associative."""


class Scan:
    """Give every leaf the combined summary of all leaves before it, in 2·depth rounds.

    A summary of `length` words travels as `folds` records, each as wide as the data. A node holds the summaries of its
    children and, on the way down, one from its parent: (arity + 1) · folds · width ≤ s. A leaf needs room for `folds`
    records besides its data.
    """

    def __init__(self, *, leaves: int, width: int, length: int, memory_words: int, base: int) -> None:
        self.folds = -(-length // width)
        self.width, self.length = width, length
        self.arity = memory_words // (self.folds * width) - 1
        self.tree = Tree(leaves, max(self.arity, 2), base)

    @staticmethod
    def fits(*, width: int, length: int, memory_words: int) -> bool:
        """Whether a node can hold two children."""
        return memory_words >= 3 * -(-length // width) * width

    @property
    def rounds(self) -> int:
        """Up the tree and down again."""
        return 2 * self.tree.depth

    def step(self, i: int, mail: Mail, summary: Summary) -> Mail:
        """Round i, first up the tree and then down."""
        tree = self.tree
        level = tree.level(mail.dest)
        keep = mail.take(level == 0)
        parts = [Mail(keep.dest, keep.dest, keep.words)]
        if i == 0:
            leaves, summaries = summary.of(keep)
            parts.append(self._send(leaves, tree.parent(0, leaves), summaries))
        for depth in range(1, tree.depth + 1):
            held = mail.take(level == depth)
            if len(held) and i >= depth:
                parts.extend(self._node(i, depth, held, summary.combine))
        return join_mail(*parts)

    def _node(self, i: int, depth: int, held: Mail, combine: Combine) -> list[Mail]:
        tree = self.tree
        top = tree.depth
        down = i - top == top - depth
        above = tree.first(depth + 1) if depth < top else None
        from_above = held.src >= above if above is not None else np.zeros(len(held), bool)
        own = held.take(~from_above)
        child_of, summaries = own.dest[:: self.folds], unfold(own.words, self.length)
        if i == depth:
            child_of, summaries = self._with_missing(depth, own.src[:: self.folds], child_of, summaries)
        parts: list[Mail] = []
        if i == depth < top:
            nodes, total = reduce_groups(child_of, summaries, combine)
            parts.append(self._send(nodes, tree.parent(depth, nodes), total))
        if down:
            before = None
            if above is not None:
                told = held.take(from_above)
                # A node below which nobody has mail is told something too, and has no one to tell.
                before = unfold(told.words, self.length)[np.isin(told.dest[:: self.folds], child_of)]
            carried = exclusive_scan(child_of, summaries, combine, before)
            children = (child_of - tree.first(depth)) * tree.arity + index_within(child_of) + tree.first(depth - 1)
            parts.append(self._send(child_of, children, carried))
        elif i < 2 * top - depth:
            parts.append(self._send(child_of, child_of, summaries))
        return parts

    def _with_missing(self, depth: int, child: Numbers, child_of: Numbers, summaries: Words) -> tuple[Numbers, Words]:
        """The nodes and summaries of all children, with zeros for those that had no mail and so sent nothing."""
        nodes = np.unique(child_of)
        which, every = self.tree.children(depth, nodes)
        filled = np.zeros((len(every), self.length), np.uint64)
        filled[np.searchsorted(every, child)] = summaries
        return nodes[which], filled

    def _send(self, src: Numbers, dest: Numbers, summaries: Words) -> Mail:
        return Mail(np.repeat(dest, self.folds), np.repeat(src, self.folds), fold(summaries, self.width))

    def receive(self, mail: Mail) -> tuple[Mail, Words]:
        """The leaves' own records, and for each the summary its machine was told; zeros on the first machine."""
        if self.tree.depth == 0:
            return mail, np.zeros((len(mail), self.length), np.uint64)
        told = mail.take(mail.src != mail.dest)
        data = mail.take(mail.src == mail.dest)
        machines = told.dest[:: self.folds]
        carried = unfold(told.words, self.length)
        return data, np.take(carried, np.searchsorted(machines, data.dest), axis=0)


def reduce_groups(group: Numbers, rows: Words, combine: Combine) -> tuple[Numbers, Words]:
    """The rows of each group combined in order; a group is a run of equal numbers.

    >>> add = lambda left, right: left + right
    >>> reduce_groups(np.array([3, 3, 5]), np.array([[1], [2], [4]], dtype=np.uint64), add)
    (array([3, 5]), array([[3], [4]], dtype=uint64))
    """
    slot = index_within(group)
    first = np.flatnonzero(slot == 0)
    total = rows[first].copy()
    index = np.cumsum(slot == 0) - 1
    for position, where in _by_slot(slot):
        if position:
            total[index[where]] = combine(total[index[where]], rows[where])
    return group[first], total


def exclusive_scan(group: Numbers, rows: Words, combine: Combine, before: Words | None = None) -> Words:
    """For each row, the row of its group in `before` combined with the group's earlier rows; zeros mean nothing.

    >>> add = lambda left, right: left + right
    >>> exclusive_scan(np.array([3, 3, 5]), np.array([[1], [2], [4]], dtype=np.uint64), add).ravel()
    array([0, 1, 0], dtype=uint64)
    """
    slot = index_within(group)
    index = np.cumsum(slot == 0) - 1
    groups = int(index[-1]) + 1 if len(index) else 0
    so_far = np.zeros((groups, rows.shape[1]), np.uint64) if before is None else before.copy()
    out = np.empty_like(rows)
    for _, where in _by_slot(slot):
        out[where] = so_far[index[where]]
        so_far[index[where]] = combine(so_far[index[where]], rows[where])
    return out


def _by_slot(slot: Numbers) -> Iterator[tuple[int, Numbers]]:
    """The records at index 0 of their groups, then those at index 1, and so on: each for all groups at once."""
    order = np.argsort(slot, kind="stable")
    ends = np.cumsum(np.bincount(slot)) if len(slot) else []
    start = 0
    for position, end in enumerate(ends):
        yield position, order[start:end]
        start = int(end)


def tree_rounds(n: int, arity: int) -> int:
    """max(1, ⌈log_a n⌉), in integers.

    >>> tree_rounds(16, 4), tree_rounds(17, 4)
    (2, 3)
    """
    return max(1, tree_depth(n, arity))


def tree_depth(leaves: int, arity: int) -> int:
    """⌈log_a leaves⌉, in integers.

    >>> tree_depth(1, 4), tree_depth(16, 4), tree_depth(17, 4)
    (0, 2, 3)
    """
    depth, reach = 0, 1
    while reach < leaves:
        depth, reach = depth + 1, reach * arity
    return depth
