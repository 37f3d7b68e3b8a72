"""Theorem "EMA simulates MPC with improved embedding dimension": O(N^((ε'−ε)/4)) heads and width O(N^ε').

First the protocol is rewritten so that a machine talks to at most k = N^ρ others per round, ρ = (ε'−ε)/4. One round
becomes 2⌈log_(k+1) N⌉ − 1 rounds, at most 2/ρ − 1, where Proposition 24 of Sanford et al. has O(1/ρ²). Then α = k + 1,
because a machine may also write to itself, and the lemma's width is 12·(k+1)⁴·ln q slots of Δ = 6 + 2·s' numbers, where
s' = 3s + 32·digits is the memory of the rewritten protocol.
"""

import math
from functools import partial

import numpy as np

from annattn.mpc import with_partners
from annattn.theorems.exchange import full_exchange
from annattn.theorems.simulation import PredictedSizes, few_partners_width, simulate, size_exponents
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_most, silent

__all__ = ["row"]

EPSILON, RHO = 3 / 8, 1 / 8
ROUNDS = 2
PLANNED = [k**8 for k in range(2, 13)]
CASES = {"tiny": {256: (1, 0)}, "quick": {256: (3, 3)}, "full": {256: (15, 15), 1024: (3, 3)}}

exchange = partial(full_exchange, epsilon=EPSILON, rounds=ROUNDS)


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem and corollary "… with improved embedding dimension": sizes and outputs with k = N^ρ partners.

    >>> row("tiny").holds
    True
    """
    trials, bounds = Trials(), []
    for n, counts in CASES[effort].items():
        for attention, count in zip(("ema", "anna"), counts, strict=True):
            for seed in range(count):
                progress(f"N = {n:,} on {attention.upper()}, {seed + 1} of {count}")
                words = [exchange(n).sample(np.random.default_rng(seed))]
                simulate(trials, exchange(n, seed=seed), words, attention=attention, partners=_partners(n))
    predictions = {n: PredictedSizes.of(with_partners(exchange(n), _partners(n))) for n in PLANNED}
    for n, predicted in predictions.items():
        at, k = f"N = {n:,}", _partners(n)
        limit = few_partners_width(k, n**EPSILON, digits=1 / RHO, machines=n)
        bounds += [
            at_most("layers", predicted.layers, (2 / RHO - 1) * ROUNDS + 1, "(2/ρ − 1)·R + 1", at),
            at_most("heads", predicted.heads, k + 1, "N^((ε'−ε)/4) + 1", at),
            at_most(
                "query and key width", predicted.query_width, math.log2(n * (k + 1)) + 2, "log2(N^(1+ρ) + N) + 2", at
            ),
            at_most("value width", predicted.lemma_width, limit, "12(N^ρ+1)⁴(6N^ε+64/ρ+6)·ln(N^(1+ρ)+N)", at),
        ]
    largest = predictions[PLANNED[-1]]
    return trials.verdict(
        "EMA and ANNA simulate MPC with improved embedding dimension",
        f"N machines of s = N^(3/8) words, N^(1/8) partners, ε' = ε + 4ρ = 7/8; {ROUNDS} rounds of s messages each",
        sizes=list(CASES[effort]),
        planned=PLANNED,
        bounds=bounds,
        exponents=size_exponents(predictions, heads=(RHO, "(ε'−ε)/4"), width=(EPSILON + 4 * RHO, "ε'")),
        notes=[
            f"N = {PLANNED[-1]:,}: values {largest.lemma_width:,} wide by the lemma, "
            f"{largest.practical_width:,} in practice"
        ],
    )


def _partners(n: int) -> int:
    return round(n**RHO)
