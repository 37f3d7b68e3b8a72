"""Theorem "EMA simulates MPC" and its corollary for ANNA: R + 1 layers, O(N^ε) heads, width O(N^(5ε) log N).

The main protocol sends as much as its limits allow, with s = N^ε words on each of N machines; some protocols of the
library are tried as well. Each is compiled, run on exact-match attention and on real hashing, and compared with its own
run on machines. The sizes are the lemma's: α = s, so 12·s⁴·ln N slots of 6 + s numbers. Where values of that width fit
into memory, they are also run. Elsewhere the runs use fewer slots, and the notes say how wide those values are.

The paper's example is 3-SUM in O(1) layers with mH = O(N^(1/2+δ)). As it is, the protocol takes 24 layers at
s = 7·N^(1/2): 16 rounds to sort, 1 to place, and three trees that are at most 2 deep. With k = N^(1/16) partners the
layers are still a constant, at most 23·L(L+1)/2 + 1 for L ≤ 17 digits, and mH is (k+1)⁵ times s times a logarithm,
within N^(1/2+δ) for δ = 0.35.
"""

import math
from functools import partial

import numpy as np

from annattn.mpc import Protocol, with_partners
from annattn.mpc.model import Words
from annattn.mpc.protocols import Broadcast, Connectivity, PrefixSum, Problem, Sort, Sum, ThreeSum
from annattn.theorems.exchange import full_exchange
from annattn.theorems.simulation import FewPartners, PredictedSizes, simulate, size_exponents
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_most, exactly, exponent, silent

__all__ = ["row"]

EPSILON = 1 / 6
ROUNDS = 3
THREE_SUM_ROOT, DELTA = 16, 0.35
"""3-SUM with k = N^(1/16) partners: mH grows like N^(1/2 + 5/16) log N, within N^(1/2 + δ)."""
PLANNED = [s**6 for s in range(2, 17)]
CASES = {"tiny": {64: 2}, "quick": {64: 10, 729: 3, 4096: 1}, "full": {64: 100, 729: 20, 4096: 5, 15_625: 1}}

WIDTH = "⌈12·s⁴·ln N⌉(6 + s), s = N^ε"
"""12·α⁴·ln q slots of 6 + s numbers, for α = s messages of words of 32 bits and q = N machines."""
LEMMA = {"tiny": (64,), "quick": (64, 400), "full": (64, 400, 729)}

exchange = partial(full_exchange, epsilon=EPSILON, rounds=ROUNDS)


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "EMA simulates MPC" and corollary "ANNA simulates MPC": sizes and outputs of compiled protocols.

    >>> row("tiny").holds
    True
    """
    trials, bounds, notes = Trials(), [], []
    for n, count in CASES[effort].items():
        for attention in ("ema", "anna"):
            progress(f"N = {n:,} on {attention.upper()}")
            for seed in range(count):
                protocol = exchange(n, seed=seed)
                simulate(trials, protocol, _inputs(protocol, 1), attention=attention)
    for n in LEMMA[effort]:
        progress(f"the lemma's widths, N = {n}")
        simulate(trials, exchange(n), _inputs(exchange(n), 1), mode="theorem")
    for problem in _library(effort):
        progress(f"{type(problem).__name__}, N = {problem.n}")
        simulate(trials, problem, _inputs(problem, 1), truth=problem.oracle)
        simulate(trials, problem, _inputs(problem, 1), attention="anna", truth=problem.oracle)
    if effort != "tiny":
        progress("ThreeSum with few partners")
        small = ThreeSum(16, 2 * ThreeSum.least_memory(16))
        simulate(trials, small, _inputs(small, 1), partners=2, truth=small.oracle)
    predictions = {n: PredictedSizes.of(exchange(n)) for n in PLANNED}
    for n, predicted in predictions.items():
        s, at = round(n**EPSILON), f"N = {n:,}"
        bounds += [
            exactly("layers", predicted.layers, ROUNDS + 1, "R + 1", at),
            at_most("heads", predicted.heads, s, "N^ε", at),
            at_most("query and key width", predicted.query_width, math.log2(n) + 2, "log2 N + 2", at),
            exactly("value width", predicted.lemma_width, math.ceil(12 * s**4 * math.log(n)) * (6 + s), WIDTH, at),
        ]
        notes.append(
            f"N = {n:,}: values {predicted.lemma_width:,} wide by the lemma, {predicted.practical_width:,} as run"
        )
    for n in (2**8, 2**14, 2**20, 2**26):
        layers = PredictedSizes.of(_three_sum(n)).layers
        bounds.append(at_most("layers for 3-SUM, any partners", layers, 24, "16 + 1 + 3·2 + 1", f"N = {n:,}"))
    widths = {}
    for k in range(2, 6):
        n = k**THREE_SUM_ROOT
        protocol, at = _three_sum(n), f"3-SUM, N = {n:,}"
        predicted, proven = PredictedSizes.of(with_partners(protocol, k)), FewPartners.of(protocol.limits, k)
        widths[n] = predicted.heads * predicted.lemma_width
        bounds += proven.bounds(protocol.rounds, k, predicted, at)
        bounds.append(at_most("digits for 3-SUM", proven.digits, 17, "L ≤ 17", at))
    three_sum = exponent("mH for 3-SUM, few partners", list(widths), list(widths.values()), 1 / 2 + DELTA, "1/2 + δ")
    return trials.verdict(
        "EMA and ANNA simulate MPC",
        f"N machines of s = N^(1/6) words that all send s messages in each of {ROUNDS} rounds; Sum, Sort, … besides",
        sizes=list(CASES[effort]),
        planned=PLANNED,
        bounds=bounds,
        exponents=[
            *size_exponents(predictions, heads=(EPSILON + 1e-6, "ε"), width=(5 * EPSILON, "5ε"), logarithm=True),
            three_sum,
        ],
        notes=notes[::7],
    )


def _three_sum(n: int) -> ThreeSum:
    """3-SUM on machines of 7·N^(1/2) words."""
    return ThreeSum(n, round(7 * n**0.5))


def _library(effort: Effort) -> list[Problem]:
    small: list[Problem] = [Sum(30, 4), Broadcast(30, 4), PrefixSum(40, 8), Sort(60, 2 * Sort.least_memory(60))]
    if effort != "tiny":
        small.append(ThreeSum(16, 2 * ThreeSum.least_memory(16)))
    if effort == "full":
        small.append(Connectivity(16, 2 * Connectivity.least_memory(16)))
    return small


def _inputs(protocol: Protocol, count: int) -> list[Words]:
    return [protocol.sample(np.random.default_rng(seed)) for seed in range(count)]  # type: ignore[attr-defined]
