"""Connectivity: the connected components of a graph in O(log N) rounds."""

from math import ceil, log
from typing import Any

import numpy as np

from annattn.errors import AnnattnError, InputError
from annattn.mpc.model import Limits, Mail, Words, spread, whole
from annattn.mpc.order import order_within
from annattn.mpc.parts.match import Match
from annattn.mpc.parts.runs import FirstRecords
from annattn.mpc.parts.stages import Stage, index_within
from annattn.mpc.parts.tree import tree_depth
from annattn.mpc.protocols.problem import Problem
from annattn.seeds import scramble

__all__ = ["Connectivity"]

LABEL, TAG, OTHER = 0, 1, 2
QUIET = np.uint64(2**63)
"""The bit of a tag that marks a record without a proposal; the rest of a tag is 2·item + side."""


class Connectivity(Problem):
    """The smallest vertex of each vertex's component, for n edges among V = `vertices` vertices, by random mates.

    Every vertex starts as a component of its own. In each phase every component tosses a coin: a hash of (seed, phase,
    label), which any machine can compute. A component with tails and an edge to one with heads takes that one's label.
    To do so, the ends of all edges and all vertices are sorted by label, proposals first, and the first record of a run
    tells all others the new label. An edge inside a component is dropped. A component with an edge vanishes with
    probability at least 1/4, so after T = ⌈log_(4/3) vertices⌉ + 12 phases an edge is left with probability at most
    (3/4)^12 < 0.04. That is an error that says to take another seed, never a wrong answer. One more phase finds the
    smallest vertices. Rounds: (T + 1)(sort + 2·depth + 1), O(log N).

    >>> from annattn.mpc import run
    >>> run(Connectivity(n=2, memory_words=60, vertices=4), [[3, 1], [1, 0]]).output
    array([0, 0, 2, 0], dtype=uint64)
    """

    input_width = 2
    bound = "O(log N)"
    first_records = FirstRecords(keys=[LABEL], columns=[TAG, OTHER])

    def __init__(self, n: int, memory_words: int, vertices: int | None = None, seed: int = 0) -> None:
        n, memory_words = self._require(n, memory_words, vertices=vertices)
        vertices = n if vertices is None else int(vertices)
        self.n = self.input_records = n
        self.vertices, self.seed = vertices, seed
        # An item is an edge or a vertex and has up to two records.
        self.match = Match(
            n=2 * (n + vertices),
            width=3,
            keys=(LABEL, TAG),
            summary=self.first_records,
            memory_words=memory_words,
            seed=seed,
        )
        self.held = self.match.rows // 2
        self.limits = Limits(self.match.machines, memory_words)
        self.phases = ceil(log(vertices, 4 / 3)) + 12
        self.stages = (Stage((self.phases + 1) * self.match.rounds, self._phase),)

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether two records for every edge and vertex can be sorted."""
        vertices = parameters.get("vertices")
        vertices = n if vertices is None else whole("vertices", vertices)
        length = cls.first_records.length
        return Match.fits(n=2 * (n + vertices), width=3, length=length, memory_words=memory_words)

    def round_formula(self) -> int:
        """(⌈log_(4/3) vertices⌉ + 13)(sort + 2⌈log_a leaves⌉ + 1)."""
        leaves = -(-2 * (self.n + self.vertices) // self.match.rows)
        depth = tree_depth(leaves, self.limits.memory_words // 6 - 1)
        phase = self.match.sort.rounds + 2 * depth + 1
        return (ceil(log(self.vertices, 4 / 3)) + 13) * phase

    def scatter(self, words: Words) -> Mail:
        """The edges, and every vertex as an edge to itself; half as many per machine as it sorts records."""
        edges = words.reshape(self.n, 2)
        if int(edges.max()) >= self.vertices:
            expected = f"a vertex from 0 to {self.vertices - 1}"
            raise InputError("edges", given=int(edges.max()), expected=expected, hint="or pass vertices=…")
        loops = np.repeat(np.arange(self.vertices, dtype=np.uint64)[:, None], 2, axis=1)
        return spread(np.vstack([edges, loops]), self.held)

    def _phase(self, i: int, mail: Mail) -> Mail:
        phase, i = divmod(i, self.match.rounds)
        if phase < self.phases:
            return self.match.step(i, mail, lambda mail: self._propose(phase, mail), self._relabel)
        return self.match.step(i, mail, self._finish, self._smallest)

    def _ends(self, mail: Mail) -> Mail:
        """Records (label, tag without its upper bit, label of the other end) of vertices and of edges not dropped."""
        mail = mail.take(order_within(mail.dest, [mail.words[:, 0]]))
        tag, label = mail.words.T
        other = label.copy()
        pair = np.flatnonzero(tag[1:] == tag[:-1] + (np.uint64(1) - tag[:-1] % np.uint64(2)))
        other[pair], other[pair + 1] = label[pair + 1], label[pair]
        vertex = tag >= np.uint64(2 * self.n)
        return Mail(mail.dest, mail.dest, np.column_stack([label, tag, other])).take(vertex | (label != other))

    def _propose(self, phase: int, mail: Mail) -> Mail:
        if phase == 0:
            item = (mail.dest * self.held + index_within(mail.dest)).astype(np.uint64)
            both = np.repeat(item * np.uint64(2), 2) + np.tile(np.arange(2, dtype=np.uint64), len(item))
            machine = np.repeat(mail.dest, 2)
            mail = Mail(machine, machine, np.column_stack([both, mail.words.reshape(-1)]))
            # A vertex has one record, not two.
            mail = mail.take((both < np.uint64(2 * self.n)) | (both % np.uint64(2) == 0))
        ends = self._ends(mail)
        label, tag, other = ends.words.T
        hook = (label != other) & ~self._heads_up(phase, label) & self._heads_up(phase, other)
        return Mail(ends.dest, ends.dest, np.column_stack([label, np.where(hook, tag, tag + QUIET), other]))

    def _heads_up(self, phase: int, label: Words) -> np.ndarray:
        """A coin for each label, the same on every machine."""
        return scramble(label, self.seed * 1_000_003 + phase) & np.uint64(1) == 1

    def _relabel(self, mail: Mail, carried: Words) -> Mail:
        head, other = self.first_records.known(mail, carried).T
        label = np.where(head < QUIET, other, mail.words[:, LABEL])
        return self._home(mail, mail.words[:, TAG] % QUIET, label)

    def _home(self, mail: Mail, tag: Words, label: Words) -> Mail:
        home = (tag // np.uint64(2 * self.held)).astype(np.int64)
        return Mail(home, mail.dest, np.column_stack([tag, label]))

    def _finish(self, mail: Mail) -> Mail:
        ends = self._ends(mail)
        label, tag, other = ends.words.T
        edge = tag < np.uint64(2 * self.n)
        return Mail(ends.dest, ends.dest, np.column_stack([label, np.where(edge, tag + QUIET, tag), other]))

    def _smallest(self, mail: Mail, carried: Words) -> Mail:
        head, _ = self.first_records.known(mail, carried).T
        return self._home(mail, mail.words[:, TAG] % QUIET, (head % QUIET) // np.uint64(2) - np.uint64(self.n))

    def gather(self, mail: Mail) -> Words:
        """The labels by vertex; an error if an edge between two components is left."""
        if (mail.words[:, 0] < np.uint64(2 * self.n)).any():
            raise AnnattnError(f"Connectivity: seed {self.seed} left components unjoined; run it with another seed")
        return mail.words[np.argsort(mail.words[:, 0]), 1]

    def sample(self, rng: np.random.Generator) -> Words:
        """Random edges."""
        return rng.integers(0, self.vertices, (self.n, 2), dtype=np.uint64)

    def variants(self, rng: np.random.Generator) -> dict[str, Words]:
        """Besides random edges: a path, a cycle, a star, a matching, a tree, two cycles, and nothing but loops."""
        edge, last = np.arange(self.n), self.vertices - 1
        half = max(1, self.vertices // 2)
        graphs = {
            "path": (edge, edge + 1),
            "cycle": (edge % self.vertices, (edge + 1) % self.vertices),
            "two cycles": (edge % half + half * (edge // half % 2), (edge + 1) % half + half * (edge // half % 2)),
            "star": (0 * edge, edge + 1),
            "matching": (2 * edge, 2 * edge + 1),
            "tree": (edge // 2, edge + 1),
            "loops": (edge % self.vertices, edge % self.vertices),
        }
        made = {name: np.column_stack(np.minimum(ends, last)).astype(np.uint64) for name, ends in graphs.items()}
        return super().variants(rng) | made

    def oracle(self, words: Words) -> Words:
        """A walk from every vertex that has not been reached yet, lowest first."""
        beside: list[list[int]] = [[] for _ in range(self.vertices)]
        for a, b in words.tolist():
            beside[a].append(b)
            beside[b].append(a)
        label = [-1] * self.vertices
        for start in range(self.vertices):
            walk = [start]
            while walk:
                vertex = walk.pop()
                if label[vertex] < 0:
                    label[vertex] = start
                    walk.extend(beside[vertex])
        return np.array(label, np.uint64)
