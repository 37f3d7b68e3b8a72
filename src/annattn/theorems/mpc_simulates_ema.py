"""Theorem "MPC simulates EMA": O(L/(ε'−ε)) rounds, s = O(N^ε') words, O(N^(1+ε−ε')) machines for mH = N^ε.

Random L-layer transformers with two heads become protocols, which are run under their limits and compared with the
transformers, bit for bit, for several pairs (ε, ε'). The paper counts the machines for the sorted lists, mN/s, but also
names a token machine and a meta-information machine for each of the N tokens. Each of those needs only O(m) words, so
s/m of them can share a machine, as they do here. Taken literally they would be N machines, more than N^(1+ε−ε').
"""

import math

import numpy as np

from annattn.compiler import ExactMatch, Transformer, to_protocol
from annattn.compiler.collision_layer import CollisionLayer
from annattn.compiler.to_protocol import TransformerProtocol
from annattn.mpc import run
from annattn.mpc.parts.samplesort import Samplesort
from annattn.theorems.integers import integer_rows, integer_transformer
from annattn.theorems.verdict import Bound, Effort, Progress, Trials, Verdict, at_most, exponent, silent

__all__ = [
    "HEADS",
    "as_protocol",
    "head_width",
    "layer_rounds",
    "rounds_bound",
    "row",
    "run_both",
    "sorts_by_samples",
]

HEADS, ROOM = 2, 128
PAIRS = ((1 / 4, 3 / 4), (1 / 4, 1 / 2), (1 / 4, 3 / 8), (1 / 2, 5 / 8))
"""The pairs (ε, ε') that are built; the last two have ε'−ε = 1/8."""
PLANNED = [2**e for e in range(8, 33, 4)]
WIDEST = 512
"""The largest mH of a transformer that is built, though only its sizes matter."""
CASES = {"tiny": {256: 1}, "quick": {256: 4, 1024: 2, 4096: 1}, "full": {256: 30, 1024: 12, 4096: 6, 16_384: 2}}


def head_width(n: int, epsilon: float) -> int:
    """The width m of a head, such that two heads make mH = N^ε.

    >>> head_width(4096, 1 / 4)
    4
    """
    return max(1, round(n**epsilon) // HEADS)


def ema(n: int, epsilon: float, layers: int, seed: int) -> Transformer:
    """A random L-layer EMA-transformer of two heads with mH = N^ε.

    >>> ema(256, 1 / 4, 3, seed=0).sizes.layers
    3
    """
    return integer_transformer(ExactMatch(), layers=layers, heads=HEADS, width=head_width(n, epsilon), seed=seed)


def as_protocol(transformer: Transformer, n: int, pair: tuple[float, float], room: int) -> TransformerProtocol:
    """The transformer as a protocol on machines of room·N^ε' words.

    >>> as_protocol(ema(256, 1 / 4, 2, seed=0), 256, (1 / 4, 3 / 4), ROOM).limits.memory_words
    8192
    """
    epsilon, prime = pair
    return to_protocol(transformer, n, int(room * n**prime), dim=HEADS * head_width(n, epsilon))


def run_both(trials: Trials, transformer: Transformer, protocol: TransformerProtocol, seed: int) -> None:
    """Run the transformer and the protocol on one input; the trace must have the protocol's number of rounds.

    >>> trials, model = Trials(), ema(256, 1 / 4, 1, seed=0)
    >>> run_both(trials, model, as_protocol(model, 256, (1 / 4, 3 / 4), ROOM), seed=0)
    >>> trials.equal
    1
    """
    rows = integer_rows(protocol.n, protocol.widths[0], seed)
    output, trace = run(protocol, protocol.encode(rows))
    trials.add(np.array_equal(output, transformer(rows).numpy()) and trace.rounds == protocol.rounds)


def layer_rounds(records: float, capacity: float) -> int:
    """The rounds for a layer whose records are sorted with this many per machine, by the figures of `docs/sorting.md`.

    A sort takes 4 rounds from 1.4·n^(2/3) records per machine, 16 from 1.6·n^(4/9), else 11·log n/log c or at most 64.
    A layer is a sort, a tree up and down, one round to deal out and one to answer. In terms of ε that is O(1/(ε'−ε)),
    because records are N^ε and machines N^ε' words large.

    >>> layer_rounds(1000, 200), layer_rounds(10**6, 500), layer_rounds(1000, 2000)
    (8, 31, 3)
    """
    if capacity >= records:
        return 1 + 2
    levels = [4 if capacity >= 1.4 * records ** (2 / 3) else 16 if capacity >= 1.6 * records ** (4 / 9) else 64]
    if levels[0] == 64:
        levels.append(math.ceil(11 * math.log(records) / math.log(capacity)))
    leaves = math.ceil(records / capacity)
    return min(levels) + 2 * max(1, math.ceil(math.log(2 * leaves) / math.log(capacity - 2))) + 2


def rounds_bound(
    protocol: TransformerProtocol, layers: int, records: int, width: int, pair: tuple[float, float]
) -> Bound:
    """The rounds for L layers that sort this many records of this width, and one more for ψ.

    >>> model = ema(256, 1 / 4, 2, seed=0)
    >>> print(rounds_bound(as_protocol(model, 256, (1 / 4, 1 / 2), ROOM), 2, 1024, 7, (1 / 4, 1 / 2)))
    rounds 17 ≤ 17 = L·(sort + 2·tree + 2) + 1 at N = 256, L = 2, ε = 0.25, ε' = 0.5
    """
    limit = layers * layer_rounds(records, protocol.limits.memory_words / width - 2) + 1
    return at_most("rounds", protocol.rounds, limit, "L·(sort + 2·tree + 2) + 1", _at(protocol.n, layers, pair))


def sorts_by_samples(protocol: TransformerProtocol) -> bool:
    """Whether a layer of the protocol sorts by samples.

    >>> sorts_by_samples(as_protocol(ema(256, 1 / 4, 2, seed=0), 256, (1 / 4, 3 / 4), ROOM))
    False
    """
    layers = [part for part in protocol.parts if isinstance(part, CollisionLayer)]
    return any(isinstance(layer.match.sort, Samplesort) for layer in layers)


def _at(n: int, layers: int, pair: tuple[float, float]) -> str:
    return f"N = {n:,}, L = {layers}, ε = {pair[0]:g}, ε' = {pair[1]:g}"


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "MPC simulates EMA": O(L/(ε'−ε)) rounds, N^(1+ε−ε') machines, and the transformer's own numbers.

    >>> row("tiny").holds
    True
    """
    trials, bounds, exponents = Trials(), [], []
    for pair in PAIRS:
        epsilon, prime = pair
        for n, count in CASES[effort].items():
            progress(f"N = {n:,}, ε = {epsilon:g}, ε' = {prime:g}")
            for seed in range(count):
                layers = 1 + seed % 3
                transformer = ema(n, epsilon, layers, seed)
                protocol = as_protocol(transformer, n, pair, ROOM)
                run_both(trials, transformer, protocol, seed)
                bounds.append(rounds_bound(protocol, layers, 2 * HEADS * n, _record(n, epsilon), pair))
        machines, by_samples, planned = [], [], [n for n in PLANNED if n**epsilon <= WIDEST]
        for n in planned:
            protocol = as_protocol(ema(n, epsilon, 2, seed=0), n, pair, ROOM)
            machines.append(protocol.limits.machines)
            bounds.append(rounds_bound(protocol, 2, 2 * HEADS * n, _record(n, epsilon), pair))
            limit = n ** (1 + epsilon - prime)
            # Sorting by samples leaves room for uneven buckets, so it takes a few times as many machines.
            by_samples.append(sorts_by_samples(protocol))
            constant, formula = (1 / 2, "N^(1+ε−ε')/2 + 2") if by_samples[-1] else (1 / 8, "N^(1+ε−ε')/8 + 2")
            bounds.append(at_most("machines", machines[-1], constant * limit + 2, formula, _at(n, 2, pair)))
        if not any(by_samples):
            what = f"machines, ε = {epsilon:g}, ε' = {prime:g}"
            exponents.append(exponent(what, planned, machines, 1 + epsilon - prime, "1+ε−ε'"))
    return trials.verdict(
        "MPC simulates EMA",
        f"random transformers of 1 to 3 layers, {HEADS} heads, mH = N^ε, to protocols with s = {ROOM}·N^ε', for "
        f"{len(PAIRS)} pairs (ε, ε')",
        sizes=list(CASES[effort]),
        planned=PLANNED,
        bounds=bounds,
        exponents=exponents,
    )


def _record(n: int, epsilon: float) -> int:
    """The words of a record: head, key, token, value, count."""
    return 2 * head_width(n, epsilon) + 3
