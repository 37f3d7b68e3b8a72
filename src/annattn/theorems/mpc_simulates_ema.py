"""Theorem "MPC simulates EMA": O(L/(ε'−ε)) rounds, s = O(N^ε') words, O(N^(1+ε−ε')) machines for mH = N^ε.

Random L-layer transformers with two heads become protocols, which are run under their limits and compared with the
transformers, bit for bit, for several pairs (ε, ε'). The paper counts the machines for the sorted lists, mN/s, but also
names a token machine and a meta-information machine for each of the N tokens. Each of those needs only O(m) words, so
s/m of them can share a machine, as they do here. Taken literally they would be N machines, more than N^(1+ε−ε').
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from annattn.compiler import ExactMatch, Transformer, to_protocol
from annattn.compiler.collision_layer import CollisionShape
from annattn.compiler.to_protocol import TransformerProtocol
from annattn.compiler.token_placement import TokenPlacement
from annattn.mpc import run
from annattn.mpc.parts.match import Match
from annattn.mpc.parts.runs import RunSums
from annattn.mpc.parts.samplesort import Samplesort
from annattn.theorems.fewest import Fewest, fewest, tree_of
from annattn.theorems.integers import integer_rows, integer_transformer
from annattn.theorems.verdict import Bound, Effort, Progress, Trials, Verdict, at_most, exactly, exponent, silent

__all__ = [
    "HEADS",
    "Built",
    "as_protocol",
    "at",
    "built_bounds",
    "copy_rounds",
    "head_width",
    "layer_rounds",
    "machines_bound",
    "on_machines",
    "planned_bounds",
    "planned_sizes",
    "rounds_bound",
    "row",
    "run_both",
    "run_built",
]

HEADS, ROOM = 2, 128
PAIRS = ((1 / 4, 3 / 4), (1 / 4, 1 / 2), (1 / 4, 3 / 8), (1 / 2, 5 / 8))
"""The pairs (ε, ε') that are built; the last two have ε'−ε = 1/8."""
PLANNED = [2**e for e in range(8, 33, 4)]
FAR = [2**e for e in range(36, 97, 4)]
"""Where the sizes are bounded as well, for pairs that leave fewer than `PLANNABLE` records per machine."""
PLANNABLE = 2**16
CASES = {"tiny": {256: 1}, "quick": {256: 4, 1024: 2, 4096: 1}, "full": {256: 30, 1024: 12, 4096: 6, 16_384: 2}}


@dataclass(frozen=True)
class Built:
    """The sizes of an L-layer transformer on machines, by the formulas of its parts."""

    rounds: int
    machines: int
    by_samples: bool


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


def on_machines(shape: CollisionShape, n: int, memory_words: int, width: int, layers: int) -> Built:
    """What `to_protocol` builds for layers of this shape and rows of this width, without the transformer.

    >>> model = ema(256, 1 / 4, 2, seed=0)
    >>> protocol = as_protocol(model, 256, (1 / 4, 3 / 8), ROOM)
    >>> built = on_machines(CollisionShape.of(model.layers[0]), 256, ROOM * 8, 4, layers=2)
    >>> (built.rounds, built.machines) == (protocol.rounds, protocol.limits.machines)
    True
    """
    held = max(1, min(n, memory_words // _token_words(shape, width)))
    placement = TokenPlacement(n, held)
    copies = shape.copies(placement, width, memory_words)
    assert copies is not None, "the rows choose enough memory"
    match = Match(
        n=shape.records(n),
        width=shape.record,
        keys=range(1),
        # Only its length counts here, which is that of a record.
        summary=RunSums(keys=range(1), columns=slice(2, shape.record)),
        memory_words=memory_words,
    )
    rounds = layers * (match.rounds + 1 + 2 * copies.depth) + 1
    machines = placement.machines + max(match.machines, copies.machines)
    return Built(rounds, machines, isinstance(match.sort, Samplesort))


def _token_words(shape: CollisionShape, width: int) -> int:
    """What a token machine sends for one token: its records, and its row in as many records as that takes."""
    return (shape.records(1) + -(-width // shape.record)) * shape.record


def layer_rounds(shape: CollisionShape, n: int, memory_words: int) -> int:
    """The rounds for a layer: a sort in the fewest rounds, a tree up and down, one to deal out and one to answer.

    In terms of ε that is O(1/(ε'−ε)), because records are N^ε and machines N^ε' words large.

    >>> layer_rounds(CollisionShape(1, heads=2, code_words=2, value_words=2), 256, 16 * ROOM)
    8
    """
    sort, (depth, _) = _sorting(shape, n, memory_words)
    return sort.rounds + 2 * depth + 2


def _sorting(shape: CollisionShape, n: int, memory_words: int) -> tuple[Fewest, tuple[int, int]]:
    """The sort of one layer's records, with room for one more per machine, and depth and nodes of the tree of sums."""
    records, held = shape.records(n), memory_words // shape.record
    sort = fewest(records, held - 1)
    return sort, tree_of(-(-records // sort.rows), held - 1)


def copy_rounds(shape: CollisionShape, memory_words: int, width: int) -> int:
    """Down and up the paper's tree: 2⌈log_a C⌉ for C copies of s words each, as many as one token's records take.

    a is what s words hold of rows, and of sums for all heads. There are at most 2·(2ℓHw)/s + 1 copies of w words per
    record, and a is about N^(ε'−ε), so this is O(3ρ/(ε'−ε)).

    >>> shape = CollisionShape(tables=145, heads=2, code_words=1, value_words=2)
    >>> copy_rounds(shape, 128 * 16, 4), copy_rounds(shape, 10_000, 4)
    (2, 0)
    """
    if memory_words >= _token_words(shape, width):
        return 0
    copies = 2 * shape.records(1) * shape.record / memory_words + 1
    arity = memory_words / max(width + shape.record, shape.heads * shape.answer) - 2
    return 2 * math.ceil(math.log(copies) / math.log(arity))


def rounds_bound(rounds: int, layers: int, shape: CollisionShape, n: int, memory_words: int, at: str) -> Bound:
    """The rounds for L layers of this shape, whose rows are as wide as their values, and one more for ψ.

    >>> shape = CollisionShape.of(ema(256, 1 / 4, 2, seed=0).layers[0])
    >>> print(rounds_bound(17, 2, shape, 256, 16 * ROOM, "N = 256"))
    rounds 17 ≤ 17 = L·(sort + 2·tree + 2 + copies) + 1 at N = 256
    """
    copying = copy_rounds(shape, memory_words, shape.heads * shape.value_words)
    limit = layers * (layer_rounds(shape, n, memory_words) + copying) + 1
    return at_most("rounds", rounds, limit, "L·(sort + 2·tree + 2 + copies) + 1", at)


def machines_bound(built: Built, shape: CollisionShape, n: int, memory_words: int, at: str) -> Bound:
    """N/⌊s/t⌋ token machines for the t words that one token sends; besides these, the records or the copies.

    If t > s there are N token machines with ⌈ℓ/⌊s/2Hw⌋⌉ copies each. The records are sorted on the fewest machines that
    the conditions of a sort allow, a constant times 2ℓHNw/s. All of it is O(ℓ·N^(1+ε−ε')), for w = O(N^ε) and s = N^ε'
    words.

    >>> shape = CollisionShape.of(ema(256, 1 / 4, 2, seed=0).layers[0])
    >>> print(machines_bound(on_machines(shape, 256, 8192, 4, 1), shape, 256, 8192, "N = 256"))
    machines 3 ≤ 3 = tokens + max(copies, sort + tree) at N = 256
    """
    words = _token_words(shape, shape.heads * shape.value_words)
    homes, copies = -(-n // max(1, memory_words // words)), 0
    if words > memory_words:
        copies = n * -(-shape.tables // (memory_words // (2 * shape.heads * shape.record)))
    sort, (_, nodes) = _sorting(shape, n, memory_words)
    limit = homes + max(copies, sort.machines + nodes)
    return at_most("machines", built.machines, limit, "tokens + max(copies, sort + tree)", at)


def at(n: int, layers: int, pair: tuple[float, float]) -> str:
    """Where a bound is measured.

    >>> at(256, 2, (1 / 4, 3 / 4))
    "N = 256, L = 2, ε = 0.25, ε' = 0.75"
    """
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
                bounds.extend(run_built(trials, transformer, n, pair, ROOM, seed))
        sizes = planned_sizes(PLANNED, FAR, lambda n, pair=pair: (_shape(n, pair[0]), int(ROOM * n ** pair[1])))
        bounds.extend(planned_bounds(sizes, pair))
        # One kind of sort takes several times the machines of the other: the slope is that of the commoner one.
        samples = sum(built.by_samples for built, _, _ in sizes.values()) > len(sizes) / 2
        machines = {n: built.machines for n, (built, _, _) in sizes.items() if built.by_samples == samples}
        what = f"machines, ε = {epsilon:g}, ε' = {prime:g}"
        exponents.append(exponent(what, list(machines), list(machines.values()), 1 + epsilon - prime, "1+ε−ε'"))
    return trials.verdict(
        "MPC simulates EMA",
        f"random transformers of 1 to 3 layers, {HEADS} heads, mH = N^ε, to protocols with s = {ROOM}·N^ε', for "
        f"{len(PAIRS)} pairs (ε, ε')",
        sizes=list(CASES[effort]),
        planned=sorted({*PLANNED, *FAR}),
        bounds=bounds,
        exponents=exponents,
    )


def built_bounds(protocol: TransformerProtocol, transformer: Transformer, at: str) -> list[Bound]:
    """The bounds of a protocol that was built, which must have the sizes of the formulas.

    >>> model = ema(256, 1 / 4, 1, seed=0)
    >>> all(bound.holds for bound in built_bounds(as_protocol(model, 256, (1 / 4, 3 / 4), ROOM), model, "N = 256"))
    True
    """
    n, memory, layers = protocol.n, protocol.limits.memory_words, len(transformer.layers)
    shape = CollisionShape.of(transformer.layers[0])
    built = on_machines(shape, n, memory, protocol.widths[0], layers)
    return [
        exactly("built machines", protocol.limits.machines, built.machines, "formula", at),
        rounds_bound(protocol.rounds, layers, shape, n, memory, at),
        machines_bound(built, shape, n, memory, at),
    ]


def run_built(
    trials: Trials, transformer: Transformer, n: int, pair: tuple[float, float], room: int, seed: int
) -> list[Bound]:
    """Build the transformer's protocol, run both, and hold what was built to the bounds.

    >>> trials, model = Trials(), ema(256, 1 / 4, 1, seed=0)
    >>> all(bound.holds for bound in run_built(trials, model, 256, (1 / 4, 3 / 4), ROOM, seed=0)), trials.equal
    (True, 1)
    """
    protocol = as_protocol(transformer, n, pair, room)
    run_both(trials, transformer, protocol, seed)
    return built_bounds(protocol, transformer, at(n, transformer.sizes.layers, pair))


def planned_bounds(sizes: dict[int, tuple[Built, CollisionShape, int]], pair: tuple[float, float]) -> list[Bound]:
    """The bounds on rounds and machines of all `planned_sizes`, which are of two layers."""
    return [
        bound
        for n, (built, shape, memory) in sizes.items()
        for bound in (
            rounds_bound(built.rounds, 2, shape, n, memory, at(n, 2, pair)),
            machines_bound(built, shape, n, memory, at(n, 2, pair)),
        )
    ]


def planned_sizes(
    near: Sequence[int], far: Sequence[int], setting: Callable[[int], tuple[CollisionShape, int]]
) -> dict[int, tuple[Built, CollisionShape, int]]:
    """The sizes of two layers at each N, with their shape and s as the setting says.

    Of the further N, those where machines hold few enough records for a quick plan.

    >>> list(planned_sizes([256], [2**40], lambda n: (_shape(n, 1 / 4), int(ROOM * n ** (3 / 4)))))
    [256]
    """
    sizes = {}
    for n in (*near, *far):
        shape, memory = setting(n)
        if n in near or memory < PLANNABLE * shape.record:
            sizes[n] = on_machines(shape, n, memory, shape.heads * shape.value_words, layers=2), shape, memory
    return sizes


def _shape(n: int, epsilon: float) -> CollisionShape:
    """A record is head, key, token, value and count."""
    return CollisionShape(1, HEADS, head_width(n, epsilon), head_width(n, epsilon))
