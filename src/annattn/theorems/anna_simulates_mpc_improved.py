"""Theorem "EMA simulates MPC with improved embedding dimension": O(N^((ε'−ε)/4)) heads and width O(N^ε').

First the protocol is rewritten so that a machine talks to at most k = N^ρ others per round. One round becomes at most
L(L+1)/2 rounds with L = ⌈log_(k+1) N⌉ ≤ 1/ρ, for every input; Proposition 24 of Sanford et al. has O(1/ρ²). Then
α = k + 1, because a machine may also write to itself, and the lemma's width is 12·(k+1)⁴·ln q slots of Δ = 6 + 2·s'
numbers, where s' = 2s + max(s, 2k²L) up to rounding is the memory of the rewritten protocol.

The paper takes ρ = (ε'−ε)/4, and its N^(ε+4ρ)·log N is then not O(N^ε'). Any smaller ρ will do: here ρ = 1/10 for
ε = 3/8 and ε' = 4/5, and nothing is divided by a logarithm.
"""

import math
from functools import partial

import numpy as np

from annattn.errors import LimitError
from annattn.mpc import run, with_partners
from annattn.theorems.exchange import DigitReversal, full_exchange
from annattn.theorems.simulation import FewPartners, PredictedSizes, simulate, size_exponents
from annattn.theorems.verdict import Bound, Effort, Progress, Trials, Verdict, at_most, silent

__all__ = ["row"]

EPSILON, EPSILON_PRIME, RHO = 3 / 8, 4 / 5, 1 / 10
ROUNDS = 2
PLANNED = [k**10 for k in range(2, 13)]
CASES = {"tiny": {64: (1, 0)}, "quick": {64: (2, 2), 256: (1, 1)}, "full": {64: (15, 15), 256: (10, 10), 1024: (3, 3)}}
REVERSED = {"tiny": (256,), "quick": (256, 2187), "full": (256, 2187, 6561)}
LEMMA = {"tiny": (), "quick": (27,), "full": (27, 81)}

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
    for n in LEMMA[effort]:
        progress(f"the lemma's widths, N = {n}")
        words = [exchange(n).sample(np.random.default_rng(0))]
        simulate(trials, exchange(n), words, mode="theorem", partners=_partners(n))
    for n in REVERSED[effort]:
        progress(f"digits reversed, N = {n:,}")
        bounds.append(_worst_load(trials, n))
    predictions = {n: PredictedSizes.of(with_partners(exchange(n), _partners(n))) for n in PLANNED}
    for n, predicted in predictions.items():
        at, k = f"N = {n:,}", _partners(n)
        proven = FewPartners.of(exchange(n).limits, k)
        bounds += proven.bounds(ROUNDS, k, predicted, at)
        bounds += [
            at_most("digits", proven.digits, 1 / RHO, "1/ρ", at),
            at_most("machines", predicted.machines, n * (k + 1), "N^(1+ρ) + N", at),
            at_most("query and key width", predicted.query_width, math.log2(predicted.machines) + 2, "log2 q + 2", at),
        ]
    largest = predictions[PLANNED[-1]]
    return trials.verdict(
        "EMA and ANNA simulate MPC with improved embedding dimension",
        f"N machines of s = N^(3/8) words, N^(1/10) partners, ε' = 4/5; {ROUNDS} rounds of s messages, every input",
        sizes=sorted({*CASES[effort], *REVERSED[effort], *LEMMA[effort]}),
        planned=PLANNED,
        bounds=bounds,
        exponents=size_exponents(
            predictions, heads=((EPSILON_PRIME - EPSILON) / 4, "(ε'−ε)/4"), width=(EPSILON_PRIME, "ε'")
        ),
        notes=[
            f"N = {PLANNED[-1]:,}: values {largest.lemma_width:,} wide by the lemma, "
            f"{largest.practical_width:,} in practice"
        ],
    )


def _worst_load(trials: Trials, n: int) -> Bound:
    """The largest load when all machines send s words to the machine with their digits reversed."""
    k, s = _partners(n), predicted_memory(n)
    protocol = DigitReversal(n, s, base=k + 1, rounds=ROUNDS)
    words, load = protocol.sample(np.random.default_rng(n)), math.inf
    try:
        output, trace = run(with_partners(protocol, k), words)
        load = trace.largest_load
        trials.add(np.array_equal(output, run(protocol, words).output))
    except LimitError:
        trials.add(False)
    limit = FewPartners.of(protocol.limits, k).memory_words
    return at_most("largest load, digits reversed", load, limit, "s' = (1+w)s + max(s, (1+w)E)", f"N = {n:,}")


def predicted_memory(n: int) -> int:
    """Words per machine of the original protocol: N^ε.

    >>> predicted_memory(256)
    8
    """
    return round(n**EPSILON)


def _partners(n: int) -> int:
    return max(2, round(n**RHO))
