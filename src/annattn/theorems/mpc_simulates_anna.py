"""Theorem "MPC simulates ANNA": as for EMA, on O(N^(1+ε−ε'+3ρ)) machines for the ℓ = N^(3ρ) tables of Algorithm 1.

Every machine holds the same hash functions: the shared random seeds. The theorem writes 3/c² for 3ρ, with the ρ of the
best family. Here ρ is the family's own, and ℓ, which has one more factor of log N, is what `aa.plan` asks for.

A token machine without room for its 2ℓH records sends its row down the paper's tree to copies that make the records of
some tables each, and the sums come back the same way. So any ε' > ε is enough: nothing in s depends on ℓ.
"""

import math

from annattn.attention import plan
from annattn.compiler import Anna, Transformer
from annattn.compiler.collision_layer import CollisionShape
from annattn.lsh import Hasher, Hyperplane
from annattn.theorems.integers import integer_transformer
from annattn.theorems.mpc_simulates_ema import HEADS, head_width, planned_bounds, planned_sizes, run_built
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, exponent, silent

__all__ = ["row"]

RADIUS, APPROXIMATION, ROOM = 0.2, 6.0, 128
PAIRS = ((1 / 4, 3 / 4), (1 / 4, 1 / 2), (1 / 4, 3 / 8), (1 / 2, 5 / 8))
"""The pairs (ε, ε') that are built: 3ρ = 3/8, so ε' > ε + 3ρ only for the first, and ε'−ε = 1/8 for the last two."""
PLANNED = [2**e for e in range(8, 13, 2)]
FAR = [2**e for e in range(22, 43, 4)]
CASES = {"tiny": {64: 1}, "quick": {64: 4, 256: 1}, "full": {64: 10, 256: 4, 1024: 1}}


def hasher(n: int, epsilon: float, seed: int) -> Hasher:
    """Hash functions for N tokens by the LSH guarantee.

    >>> hasher(256, 1 / 4, seed=0).tables
    145
    """
    planned = plan(n, Hyperplane(head_width(n, epsilon)), RADIUS, APPROXIMATION)
    return planned.family.sample(tables=planned.tables, hashes=planned.hashes, seed=seed)


def anna(n: int, epsilon: float, layers: int, seed: int) -> Transformer:
    """A random L-layer ANNA-transformer of two heads with mH = N^ε.

    >>> anna(256, 1 / 4, 2, seed=0).sizes.heads
    2
    """
    attention = Anna(hasher(n, epsilon, seed))
    width = head_width(n, epsilon)
    return integer_transformer(attention, layers=layers, heads=HEADS, width=width, seed=seed)


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "MPC simulates ANNA": O(L/(ε'−ε)) rounds, N^(1+ε−ε'+3ρ) machines, and the numbers of Algorithm 1.

    >>> row("tiny").holds
    True
    """
    trials, bounds, exponents = Trials(), [], []
    quality = Hyperplane(8).quality(RADIUS, APPROXIMATION)
    for pair in PAIRS:
        epsilon, prime = pair
        for n, count in CASES[effort].items():
            for seed in range(count):
                layers = 1 + seed % 2
                progress(f"N = {n:,}, ε = {epsilon:g}, ε' = {prime:g}, L = {layers}, {seed + 1} of {count}")
                transformer = anna(n, epsilon, layers, seed)
                bounds.extend(run_built(trials, transformer, n, pair, ROOM, seed))
        sizes = planned_sizes(PLANNED, FAR, lambda n, pair=pair: (_shape(n, pair[0]), int(ROOM * n ** pair[1])))
        bounds.extend(planned_bounds(sizes, pair))
        what = f"machines/ln N, ε = {epsilon:g}, ε' = {prime:g}"
        machines = [built.machines / math.log(n) for n, (built, _, _) in sizes.items()]
        exponents.append(exponent(what, list(sizes), machines, 1 + epsilon - prime + 3 * quality, "1+ε−ε'+3ρ"))
    return trials.verdict(
        "MPC simulates ANNA",
        f"random transformers of 1 or 2 layers, {HEADS} heads, mH = N^ε, c = {APPROXIMATION:g}, 3ρ = {3 * quality:.3f}"
        f", to protocols with s = {ROOM}·N^ε', for {len(PAIRS)} pairs (ε, ε')",
        sizes=list(CASES[effort]),
        planned=(*PLANNED, *FAR),
        bounds=bounds,
        exponents=exponents,
    )


def _shape(n: int, epsilon: float) -> CollisionShape:
    """A record is head and table, bucket code, token, value and count; a word has 63 hyperplanes' signs."""
    planned = plan(n, Hyperplane(head_width(n, epsilon)), RADIUS, APPROXIMATION)
    return CollisionShape(planned.tables, HEADS, -(-planned.hashes // 63), head_width(n, epsilon))
