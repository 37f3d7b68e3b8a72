"""Theorem "MPC simulates EMA": O(1/(ε'−ε)) rounds a layer, s = O(N^ε') words, O(N^(1+ε−ε')) machines for mH = N^ε.

The paper counts machines for the sorted lists, mN/s, but also names a token machine and a meta-information machine for
each of the N tokens. Each of those needs O(m) words only, so s/m of them share a machine, as they do here; taken
literally they would be N machines, more than N^(1+ε−ε').
"""

from collections.abc import Sequence

import numpy as np
import torch

from annattn.attention import exact_match_attention
from annattn.mpc import run
from annattn.mpc.protocols import ExactMatchAttention
from annattn.theorems.verdict import Bound, Effort, Progress, Trials, Verdict, at_most, exponent, silent

__all__ = ["machine_bounds", "row"]

EPSILON, EPSILON_PRIME = 0.25, 0.75
ROOM, ROUNDS, MACHINES = 24, 12, 1
BUILT = [2**e for e in range(8, 21, 2)]
RUN = {"tiny": (64, 256), "quick": (256, 1024, 4096), "full": (256, 1024, 4096, 16_384)}


def built(n: int) -> ExactMatchAttention:
    """The protocol for N tokens of width m = N^ε on machines of 24·N^ε' words.

    >>> built(256).limits.memory_words
    1536
    """
    width = round(n**EPSILON)
    return ExactMatchAttention(n, int(ROOM * n**EPSILON_PRIME), dim=width, value_dim=width)


def machine_bounds(sizes: Sequence[int], rounds: Sequence[int], machines: Sequence[int]) -> list[Bound]:
    """Rounds and machines of one layer at every size against the theorem's, with the constants 12 and 1.

    >>> [bound.holds for bound in machine_bounds([256], [9], [17])]
    [True, False]
    """
    bounds = []
    for n, taken, used in zip(sizes, rounds, machines, strict=True):
        at = f"N = {n:,}"
        bounds += [
            at_most("rounds a layer", taken, ROUNDS / (EPSILON_PRIME - EPSILON), "12/(ε'−ε)", at),
            at_most("machines", used, MACHINES * n ** (1 + EPSILON - EPSILON_PRIME), "N^(1+ε−ε')", at),
        ]
    return bounds


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "MPC simulates EMA": rounds that do not grow, machines as N^(1+ε−ε'), and EMA's own numbers.

    >>> row("tiny").holds
    True
    """
    trials = Trials()
    for n in RUN[effort]:
        progress(f"N = {n:,}")
        protocol = built(n)
        rng = np.random.default_rng(n)
        for letters in (2, n):
            query, key = rng.integers(0, letters, (2, n, protocol.bucket_words)).astype(float)
            query[::2] = key[rng.permutation(n)][::2]
            value = rng.integers(-1000, 1000, (n, protocol.value_dim)).astype(float)
            output, trace = run(protocol, protocol.encode(query, key, value))
            direct = exact_match_attention(*(torch.from_numpy(x)[None, None] for x in (query, key, value)))[0, 0]
            # Sums of small integers are exact, so both divide the same numbers.
            trials.add(np.array_equal(output, direct.numpy()) and trace.rounds == protocol.rounds)
    protocols = [built(n) for n in BUILT]
    machines = [protocol.limits.machines for protocol in protocols]
    return trials.verdict(
        "MPC simulates EMA",
        f"m = N^{EPSILON:g}, s = {ROOM}·N^{EPSILON_PRIME:g}: sort by key, carry sums along a tree, send them home",
        sizes=RUN[effort],
        planned=BUILT,
        bounds=machine_bounds(BUILT, [protocol.rounds for protocol in protocols], machines),
        exponents=[exponent("machines", BUILT, machines, 1 + EPSILON - EPSILON_PRIME, "1+ε−ε'")],
    )
