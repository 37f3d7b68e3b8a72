"""Theorem "MPC simulates ANNA": as for EMA, on O(N^(1+ε−ε'+3ρ)) machines for the ℓ = N^(3ρ) tables of Algorithm 1.

Every machine draws the same hash functions from the shared seed. The theorem writes 3/c² for 3ρ, the best family's ρ;
here ρ is the family's own, and ℓ, which has a factor log N more, is what `aa.plan` asks for.

The paper spreads a token's ℓ records over a tree; here its home sends them itself, which needs s ≥ 2ℓ(m+4) words. That
is within O(N^ε') as long as ε' > ε + 3ρ.
"""

import math

import numpy as np
import torch

from annattn.attention import anna_attention, plan
from annattn.lsh import Hasher, Hyperplane
from annattn.mpc import run
from annattn.mpc.protocols import AnnaAttention
from annattn.theorems.mpc_simulates_ema import EPSILON, EPSILON_PRIME, ROOM, ROUNDS
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_most, exponent, silent

__all__ = ["row"]

RADIUS, APPROXIMATION = 0.1, 12.0
BUILT = [2**e for e in range(8, 17, 2)]
RUN = {"tiny": (64,), "quick": (256, 1024), "full": (256, 1024, 4096)}


def built(n: int) -> tuple[AnnaAttention, Hasher]:
    """The protocol for N tokens of width m = N^ε on machines of 24·N^ε' words, and the hash functions it shares.

    >>> built(256)[1].tables
    35
    """
    width = round(n**EPSILON)
    planned = plan(n, Hyperplane(width), RADIUS, APPROXIMATION)
    hasher = planned.family.sample(tables=planned.tables, hashes=planned.hashes, seed=n)

    def codes(rows: np.ndarray) -> np.ndarray:
        return hasher(torch.from_numpy(np.ascontiguousarray(rows))).numpy()

    words = int(ROOM * n**EPSILON_PRIME)
    return AnnaAttention(n, words, tables=hasher.tables, value_dim=width, hasher=codes, dim=width), hasher


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "MPC simulates ANNA": rounds that do not grow, machines as N^(1+ε−ε'+3ρ), and Algorithm 1's numbers.

    >>> row("tiny").holds
    True
    """
    trials, bounds, notes = Trials(), [], []
    for n in RUN[effort]:
        progress(f"N = {n:,}")
        protocol, hasher = built(n)
        rng = np.random.default_rng(n)
        query = rng.standard_normal((n, protocol.side_words))
        key = query[rng.permutation(n)] + 0.01 * rng.standard_normal(query.shape)
        value = rng.integers(-1000, 1000, (n, protocol.value_dim)).astype(float)
        output, trace = run(protocol, protocol.encode(query, key, value))
        rows = [torch.from_numpy(x)[None, None] for x in (query, key, value)]
        # Sums of small integers are exact, so both divide the same numbers.
        direct = anna_attention(rows[0], rows[1], rows[2], hasher)[0, 0].numpy()
        trials.add(np.array_equal(output, direct) and trace.rounds == protocol.rounds)
    machines = []
    for n in BUILT:
        progress(f"building, N = {n:,}")
        protocol, hasher = built(n)
        machines.append(protocol.limits.machines)
        at, share = f"N = {n:,}", n ** (1 + EPSILON - EPSILON_PRIME)
        bounds += [
            at_most("rounds a layer", protocol.rounds, ROUNDS / (EPSILON_PRIME - EPSILON), "12/(ε'−ε)", at),
            at_most("machines", machines[-1], hasher.tables * share, "ℓ·N^(1+ε−ε')", at),
        ]
        notes.append(f"N = {n:,}: ℓ = {hasher.tables}, z = {hasher.hashes}, {machines[-1]:,} machines")
    quality = Hyperplane(8).quality(RADIUS, APPROXIMATION)
    per_log = [count / math.log(n) for count, n in zip(machines, BUILT, strict=True)]
    limit = 1 + EPSILON - EPSILON_PRIME + 3 * quality
    return trials.verdict(
        "MPC simulates ANNA",
        f"m = N^{EPSILON:g}, s = {ROOM}·N^{EPSILON_PRIME:g}, Algorithm 1 with c = {APPROXIMATION:g}, ρ = {quality:.3f}",
        sizes=RUN[effort],
        planned=BUILT,
        bounds=bounds,
        exponents=[exponent("machines/ln N", BUILT, per_log, limit, "1+ε−ε'+3ρ")],
        notes=notes,
    )
