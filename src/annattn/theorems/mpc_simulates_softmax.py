"""Softmax attention on machines takes N² of them, ANNA close to N: the gap that the paper closes, in built protocols.

The known simulation of a transformer gives every pair of tokens a machine (`SoftmaxAttention`). With the same memory,
s = 96·N^(3/4), a layer of ANNA takes ℓ·N^(1/4) machines, where ℓ = O(N^(3ρ) log N) is the number of tables of the LSH
guarantee. Both take a constant number of rounds.
"""

import math

import numpy as np
import torch

from annattn.attention import plan
from annattn.lsh import Hyperplane
from annattn.mpc import run
from annattn.mpc.model import word_reals
from annattn.mpc.protocols import AnnaAttention, SoftmaxAttention
from annattn.theorems.fewest import fewest, tree_of
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_least, at_most, exactly, exponent, silent

__all__ = ["row"]

DIM, ROOM, EPSILON_PRIME = 4, 96, 0.75
RADIUS, APPROXIMATION = 0.1, 12.0
PLANNED = [2**e for e in range(8, 19, 2)]
CASES = {"tiny": {8: 2}, "quick": {8: 10, 32: 4, 128: 1}, "full": {8: 40, 32: 10, 128: 4, 512: 1}}


def softmax(n: int) -> SoftmaxAttention:
    """Softmax attention of n tokens on machines of 96·N^(3/4) words.

    >>> softmax(16).limits.machines
    256
    """
    return SoftmaxAttention(n, int(ROOM * n**EPSILON_PRIME), dim=DIM, value_dim=DIM)


def anna(n: int) -> AnnaAttention:
    """ANNA with the tables of the LSH guarantee on machines of the same memory.

    >>> anna(256).tables
    35
    """
    planned = plan(n, Hyperplane(DIM), RADIUS, APPROXIMATION)
    return AnnaAttention(n, int(ROOM * n**EPSILON_PRIME), tables=planned.tables, value_dim=DIM)


def _enough(n: int, tables: int) -> int:
    """⌈N/⌊s/2ℓw⌋⌉ machines for tokens or, if that is more, the fewest that sort 2ℓN records of w words, with a tree.

    A record is table, code, token, value and count. Each is O(ℓ·N^(1−ε')).
    """
    held = int(ROOM * n**EPSILON_PRIME) // (DIM + 4)
    sort = fewest(2 * tables * n, held - 1)
    _, nodes = tree_of(-(-2 * tables * n // sort.rows), held - 1)
    return max(-(-n // (held // (2 * tables))), sort.machines + nodes)


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Softmax attention to machines, N² of them, beside ANNA's count with the same memory.

    >>> row("tiny").holds
    True
    """
    trials, bounds, notes = Trials(), [], []
    for n, count in CASES[effort].items():
        progress(f"N = {n:,}")
        protocol = softmax(n)
        for seed in range(count):
            words = protocol.sample(np.random.default_rng(seed))
            query, key, value = torch.from_numpy(word_reals(words)).split([DIM, DIM, DIM], dim=1)
            output, trace = run(protocol, words)
            expected = torch.softmax(query @ key.T, dim=1) @ value
            trials.add(protocol.agrees(output, expected.numpy()) and trace.rounds == protocol.rounds)
    counts = []
    for n in PLANNED:
        exact, near, at = softmax(n), anna(n), f"N = {n:,}"
        depth, _ = tree_of(n, exact.limits.memory_words // (2 * (1 + 2 * DIM)))
        counts.append(near.limits.machines)
        bounds += [
            exactly("machines for softmax", exact.limits.machines, n**2, "N²", at),
            exactly("rounds for softmax", exact.rounds, 2 * depth + 1, "2⌈log_a N⌉ + 1, a = ⌊s/(2 + 4m)⌋", at),
            at_most("machines for ANNA", counts[-1], _enough(n, near.tables), "max(tokens, sort + tree)", at),
            at_least("softmax machines per ANNA machine", n**2 / counts[-1], n, "N", at),
        ]
        notes.append(f"N = {n:,}: {n**2:,} machines for softmax, {counts[-1]:,} for ANNA with {near.tables} tables")
    quality = Hyperplane(DIM).quality(RADIUS, APPROXIMATION)
    per_log = [count / math.log(n) for count, n in zip(counts, PLANNED, strict=True)]
    return trials.verdict(
        "MPC simulates softmax attention, on N² machines",
        f"softmax attention of one head, m = {DIM}, one machine per pair of tokens; ANNA with c = {APPROXIMATION:g}, "
        f"ρ = {quality:.3f} on machines of the same {ROOM}·N^{EPSILON_PRIME:g} words",
        sizes=list(CASES[effort]),
        planned=PLANNED,
        bounds=bounds,
        exponents=[
            exponent("ANNA's machines/ln N", PLANNED, per_log, 1 - EPSILON_PRIME + 3 * quality, "1−ε'+3ρ"),
            exponent("softmax's machines", PLANNED, [softmax(n).limits.machines for n in PLANNED], 2, "2"),
        ],
        notes=notes[:: len(notes) - 1],
    )
