"""Depth lower bounds that follow from "MPC simulates ANNA", and the depth that is built.

The one-cycle/two-cycle conjecture: no protocol with s = O(N^(1−δ)) words per machine and polynomially many machines
tells one cycle of N edges from two of N/2 in o(log N) rounds. `to_protocol` turns an L-layer transformer of H heads of
width m into a protocol of exactly c·L + 1 rounds, where c depends on N, H, m, ℓ and s but not on L. So if all such
protocols take at least R rounds, then c·L + 1 ≥ R: every such transformer that solves the problem has
L ≥ ⌈(R − 1)/c⌉. k-hop follows because it solves cycles of length k: R = Ω(log k).

The conjecture does not name its constant. Here R = log2 N, and log2 k for k-hop, so that numbers can be compared. The
upper bounds are the layers of the built protocols, `Connectivity` and `KHop`, compiled: rounds + 1.
"""

import math
from dataclasses import dataclass

import numpy as np

from annattn.attention import plan
from annattn.compiler import Anna, Attention, ExactMatch, to_protocol
from annattn.lsh import Hyperplane
from annattn.mpc import run
from annattn.mpc.model import Words
from annattn.mpc.protocols import Connectivity, KHop
from annattn.theorems.integers import integer_transformer
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_least, at_most, exactly, exponent, silent

__all__ = ["AsProtocol", "cycles", "least_depth", "row", "what_follows"]

EPSILON_PRIME, ROOM, BUILT_ROOM = 0.75, 96, 24
RADIUS, APPROXIMATION = 0.1, 12.0
PLANNED = [2**e for e in range(8, 21, 2)]
HOPS = [4, 16, 64]
RUNS = {"tiny": [8], "quick": [16, 32], "full": [16, 64, 256]}


@dataclass(frozen=True)
class AsProtocol:
    """The protocol that an L-layer transformer would give: rounds, machines, memory, and the rounds per layer."""

    rounds: int
    machines: int
    memory_words: int
    per_layer: int


def what_follows(n: int, *, layers: int, heads: int, width: int, memory_words: int, tables: int = 0) -> AsProtocol:
    """What would follow from an L-layer transformer of H heads of width m on n tokens: a protocol with these limits.

    With tables = ℓ it is an ANNA-transformer, without an EMA-transformer.

    >>> what_follows(256, layers=3, heads=2, width=2, memory_words=3072)
    AsProtocol(rounds=25, machines=7, memory_words=3072, per_layer=8)
    """
    attention: Attention = ExactMatch()
    if tables:
        attention = Anna(Hyperplane(width).sample(tables=tables, hashes=8, seed=0))
    transformer = integer_transformer(attention, layers=layers, heads=heads, width=width, seed=0)
    protocol = to_protocol(transformer, n, memory_words, dim=heads * width)
    (per_layer,) = {part.rounds for part in protocol.parts}
    return AsProtocol(protocol.rounds, protocol.limits.machines, memory_words, per_layer)


def least_depth(rounds: float, per_layer: int) -> int:
    """The least L with per_layer·L + 1 ≥ rounds: the depth that a lower bound on rounds implies.

    >>> least_depth(20, per_layer=8), least_depth(1, per_layer=8)
    (3, 0)
    """
    return max(0, math.ceil((rounds - 1) / per_layer))


def cycles(vertices: int, number: int, seed: int) -> Words:
    """The edges, in random order, of one cycle or several of equal length, with randomly named vertices.

    >>> cycles(4, 2, seed=0).shape
    (4, 2)
    """
    rng = np.random.default_rng(seed)
    place, length = np.arange(vertices), vertices // number
    after = place // length * length + (place + 1) % length
    names = rng.permutation(vertices)
    return rng.permutation(np.column_stack([names[place], names[after]])).astype(np.uint64)


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Depth lower bounds under the one-cycle/two-cycle conjecture, by exact arithmetic, beside what is built.

    >>> row("tiny").holds
    True
    """
    trials, bounds, notes = Trials(), [], []
    for vertices in RUNS[effort]:
        progress(f"one cycle or two, N = {vertices}")
        protocol = Connectivity(vertices, int(BUILT_ROOM * vertices**EPSILON_PRIME))
        for number in (1, 2):
            labels = run(protocol, cycles(vertices, number, seed=vertices)).output
            trials.add(len(np.unique(labels)) == number)
    ratios = []
    for n in PLANNED:
        progress(f"sizes, N = {n:,}")
        memory, at = int(ROOM * n**EPSILON_PRIME), f"N = {n:,}"
        width = round(n**0.25) // 2
        tables = plan(n, Hyperplane(width), RADIUS, APPROXIMATION).tables
        followed = [
            what_follows(n, layers=layers, heads=2, width=width, memory_words=memory, tables=tables)
            for layers in (1, 2, 3)
        ]
        per_layer = followed[0].per_layer
        for layers, made in enumerate(followed, start=1):
            bounds.append(
                exactly("rounds of L layers", made.rounds, per_layer * layers + 1, "c·L + 1", f"{at}, L = {layers}")
            )
        room = int(BUILT_ROOM * n**EPSILON_PRIME)
        built = Connectivity(n, room).rounds + 1
        ratios.append(built / math.log2(n))
        lower = least_depth(math.log2(n), per_layer)
        phases = math.ceil(math.log(n, 4 / 3)) + 13
        bounds += [
            at_least("layers for connectivity", built, lower, "⌈(log2 N − 1)/c⌉", at),
            at_most("layers for connectivity, built", built, 7 * phases + 1, "7(⌈log_(4/3) N⌉ + 13) + 1", at),
        ]
        for k in HOPS:
            hops, least = KHop(n, room, k=k).rounds + 1, least_depth(math.log2(k), per_layer)
            where = f"{at}, k = {k}"
            bounds += [
                at_least("layers for k-hop", hops, least, "⌈(log2 k − 1)/c⌉", where),
                at_most("layers for k-hop, built", hops, 2 * math.log2(k) + 9, "2·log2 k + 9", where),
            ]
        notes.append(
            f"N = {n:,}: {per_layer} rounds per layer of {tables} tables; connectivity takes at least {lower} layers "
            f"if machines need log2 N rounds, and {built} are built"
        )
    return trials.verdict(
        "Depth lower bounds under the one-cycle/two-cycle conjecture",
        f"transformers of two heads, mH = N^0.25, with the tables of c = {APPROXIMATION:g}, as protocols with s = "
        f"{ROOM}·N^{EPSILON_PRIME:g}; the conjecture's constant taken as 1; one cycle told from two, and k-hop, with "
        f"s = {BUILT_ROOM}·N^{EPSILON_PRIME:g}",
        sizes=RUNS[effort],
        planned=PLANNED,
        bounds=bounds,
        exponents=[exponent("layers for connectivity/log2 N", PLANNED, ratios, 0, "0")],
        notes=notes[:: len(notes) - 1],
    )
