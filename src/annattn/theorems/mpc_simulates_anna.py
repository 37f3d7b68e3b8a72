"""Theorem "MPC simulates ANNA": as for EMA, on O(N^(1+ε−ε'+3ρ)) machines for the ℓ = N^(3ρ) tables of Algorithm 1.

Every machine holds the same hash functions: the shared random seeds. The theorem writes 3/c² for 3ρ, with the ρ of the
best family. Here ρ is the family's own, and ℓ, which has one more factor of log N, is what `aa.plan` asks for.

The paper spreads a token's ℓ records over a tree. Here the token's machine sends them itself, which needs
s ≥ 2ℓH(m+5) words. That is within O(N^ε') as long as ε' > ε + 3ρ.
"""

import math

from annattn.attention import plan
from annattn.compiler import Anna, Transformer
from annattn.compiler.to_protocol import TransformerProtocol
from annattn.lsh import Hasher, Hyperplane
from annattn.theorems.integers import integer_transformer
from annattn.theorems.mpc_simulates_ema import (
    HEADS,
    as_protocol,
    head_width,
    rounds_bound,
    run_both,
    sorts_by_samples,
)
from annattn.theorems.verdict import Bound, Effort, Progress, Trials, Verdict, at_most, exponent, silent

__all__ = ["row"]

RADIUS, APPROXIMATION, ROOM = 0.1, 12.0, 96
PAIRS = ((1 / 4, 3 / 4), (1 / 4, 5 / 8), (1 / 8, 1 / 2), (1 / 4, 1 / 2))
"""The pairs (ε, ε') that are built. ε' > ε + 3ρ for each of them."""
PLANNED = [2**e for e in range(8, 19, 2)]
CASES = {"tiny": {256: 1}, "quick": {256: 2, 1024: 1}, "full": {256: 10, 1024: 3, 4096: 1}}


def hasher(n: int, epsilon: float, seed: int) -> Hasher:
    """Hash functions for N tokens by the LSH guarantee.

    >>> hasher(256, 1 / 4, seed=0).tables
    35
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
                protocol = as_protocol(transformer, n, pair, ROOM)
                run_both(trials, transformer, protocol, seed)
                bounds.append(_rounds(protocol, transformer, layers, pair))
        machines = []
        for n in PLANNED:
            progress(f"building, N = {n:,}, ε = {epsilon:g}, ε' = {prime:g}")
            transformer = anna(n, epsilon, 2, seed=0)
            protocol, tables = as_protocol(transformer, n, pair, ROOM), hasher(n, epsilon, seed=0).tables
            machines.append(protocol.limits.machines / math.log(n))
            by_samples = sorts_by_samples(protocol)
            limit = tables * n ** (1 + epsilon - prime) / (2 if by_samples else 4)
            bounds.append(_rounds(protocol, transformer, 2, pair))
            at = f"N = {n:,}, ε = {epsilon:g}, ε' = {prime:g}"
            bounds.append(
                at_most(
                    "machines",
                    protocol.limits.machines,
                    limit,
                    "ℓ·N^(1+ε−ε')/2" if by_samples else "ℓ·N^(1+ε−ε')/4",
                    at,
                )
            )
        what = f"machines/ln N, ε = {epsilon:g}, ε' = {prime:g}"
        exponents.append(exponent(what, PLANNED, machines, 1 + epsilon - prime + 3 * quality, "1+ε−ε'+3ρ"))
    return trials.verdict(
        "MPC simulates ANNA, for ε' > ε + 3ρ",
        f"random transformers of 1 or 2 layers, {HEADS} heads, mH = N^ε, c = {APPROXIMATION:g}, ρ = {quality:.3f}, to "
        f"protocols with s = {ROOM}·N^ε', for {len(PAIRS)} pairs (ε, ε')",
        sizes=list(CASES[effort]),
        planned=PLANNED,
        bounds=bounds,
        exponents=exponents,
    )


def _rounds(protocol: TransformerProtocol, transformer: Transformer, layers: int, pair: tuple[float, float]) -> Bound:
    attention = transformer.layers[0].attention
    assert isinstance(attention, Anna)
    # A record is head and table, bucket code, token, value and count.
    width = head_width(protocol.n, pair[0]) + 4
    return rounds_bound(protocol, layers, 2 * HEADS * attention.hasher.tables * protocol.n, width, pair)
