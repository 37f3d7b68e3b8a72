"""Theorem "MPC simulates ANNA": as for EMA, on O(N^(1+ε−ε'+3ρ)) machines for the ℓ = N^(3ρ) tables of Algorithm 1.

Every machine holds the same hash functions: the shared random seeds. The theorem writes 3/c² for 3ρ, with the ρ of the
best family. Here ρ is the family's own, and ℓ, which has one more factor of log N, is what `aa.plan` asks for.

The paper spreads a token's ℓ records over a tree. Here the token's machine sends them itself, which needs
s ≥ 2ℓH(m+5) words. That is within O(N^ε') as long as ε' > ε + 3ρ.
"""

import math

from annattn.attention import plan
from annattn.compiler import Anna, Transformer
from annattn.lsh import Hasher, Hyperplane
from annattn.theorems.integers import integer_transformer
from annattn.theorems.mpc_simulates_ema import (
    EPSILON,
    EPSILON_PRIME,
    HEADS,
    ROUNDS,
    as_protocol,
    head_width,
    rounds_bound,
    run_both,
)
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_most, exponent, silent

__all__ = ["row"]

RADIUS, APPROXIMATION, ROOM = 0.1, 12.0, 96
PLANNED = [(2 * m) ** 4 for m in range(2, 13)]
CASES = {"tiny": {256: 1}, "quick": {256: 4, 1296: 1}, "full": {256: 30, 1296: 8, 4096: 1}}


def hasher(n: int, seed: int) -> Hasher:
    """Hash functions for N tokens by the LSH guarantee.

    >>> hasher(256, seed=0).tables
    35
    """
    planned = plan(n, Hyperplane(head_width(n)), RADIUS, APPROXIMATION)
    return planned.family.sample(tables=planned.tables, hashes=planned.hashes, seed=seed)


def anna(n: int, layers: int, seed: int) -> Transformer:
    """A random L-layer ANNA-transformer of two heads with mH = N^ε.

    >>> anna(256, 2, seed=0).sizes.heads
    2
    """
    attention = Anna(hasher(n, seed))
    return integer_transformer(attention, layers=layers, heads=HEADS, width=head_width(n), seed=seed)


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "MPC simulates ANNA": constant rounds, N^(1+ε−ε'+3ρ) machines, and the numbers of Algorithm 1.

    >>> row("tiny").holds
    True
    """
    trials, bounds, notes, machines = Trials(), [], [], []
    for n, count in CASES[effort].items():
        for seed in range(count):
            layers = 1 + seed % 2
            progress(f"N = {n:,}, L = {layers}, {seed + 1} of {count}")
            transformer = anna(n, layers, seed)
            protocol = as_protocol(transformer, n, ROOM)
            run_both(trials, transformer, protocol, seed)
            bounds.append(rounds_bound(protocol, layers, ROUNDS))
    for n in PLANNED:
        progress(f"building, N = {n:,}")
        protocol, tables = as_protocol(anna(n, 2, seed=0), n, ROOM), hasher(n, seed=0).tables
        machines.append(protocol.limits.machines)
        at, limit = f"N = {n:,}", tables * n ** (1 + EPSILON - EPSILON_PRIME)
        bounds.append(rounds_bound(protocol, 2, ROUNDS))
        bounds.append(at_most("machines", machines[-1], limit, "ℓ·N^(1+ε−ε')", at))
        notes.append(f"N = {n:,}: ℓ = {tables}, {machines[-1]:,} machines")
    quality = Hyperplane(8).quality(RADIUS, APPROXIMATION)
    per_log = [count / math.log(n) for count, n in zip(machines, PLANNED, strict=True)]
    limit = 1 + EPSILON - EPSILON_PRIME + 3 * quality
    return trials.verdict(
        "MPC simulates ANNA",
        f"random transformers of 1 or 2 layers, {HEADS} heads, mH = N^{EPSILON:g}, c = {APPROXIMATION:g}, "
        f"ρ = {quality:.3f}, to protocols with s = {ROOM}·N^{EPSILON_PRIME:g}",
        sizes=list(CASES[effort]),
        planned=PLANNED,
        bounds=bounds,
        exponents=[exponent("machines/ln N", PLANNED, per_log, limit, "1+ε−ε'+3ρ")],
        notes=notes[:: len(notes) - 1],
    )
