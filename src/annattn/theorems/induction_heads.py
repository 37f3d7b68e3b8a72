"""Theorem "ANNA-transformers solve induction heads": O(1) layers, O(N^((ε'−ε)/4)) heads, width O(N^ε').

The lemma's four steps are the protocol `InductionHead`, which is compiled. With s = 6·N^(2/3) words sorting takes four
rounds at every N. That makes 7 rounds and 8 layers, but as many heads as machines, up to N^(1/3). With k = N^ρ
partners, ρ = (ε'−ε)/4, there are k + 1 heads, and one round becomes 2⌈log_(k+1) N^(1/3)⌉ − 1 rounds, at most
2⌈(1−ε)/ρ⌉ − 1.
"""

import math

import numpy as np

from annattn.mpc import with_partners
from annattn.mpc.model import Words
from annattn.mpc.protocols import InductionHead
from annattn.theorems.simulation import PredictedSizes, few_partners_width, simulate, size_exponents
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_most, exactly, exponent, silent

__all__ = [
    "EPSILON",
    "EPSILON_PRIME",
    "HOPS",
    "RHO",
    "WIDTH_LIMIT",
    "letters_after",
    "memory",
    "partners",
    "row",
    "width_limit",
    "words_of",
]

EPSILON, EPSILON_PRIME = 2 / 3, 0.9
RHO = (EPSILON_PRIME - EPSILON) / 4
HOPS = 2 * math.ceil((1 - EPSILON) / RHO) - 1
"""The most rounds that one round becomes with so few partners, at any N."""
WIDTH_LIMIT = "12(k+1)⁴(6+2s')·ln((k+1)N^(1/3)), s' = 18·N^ε to 24·N^ε"
PLANNED = [2**e for e in range(6, 37, 3)]
CASES = {"tiny": {64: 1}, "quick": {64: 10, 256: 4}, "full": {64: 60, 256: 20, 1024: 4}}


def memory(n: int) -> int:
    """Words per machine: 6·N^ε.

    >>> memory(512)
    384
    """
    return round(6 * n**EPSILON)


def partners(n: int) -> int:
    """How many others a machine may talk to per round: N^ρ, and at least 2.

    >>> partners(64), partners(2**36)
    (2, 4)
    """
    return max(2, round(n**RHO))


def width_limit(n: int) -> float:
    """The lemma's value width with so few partners, with everything rounded up: O(N^(ε + 4ρ) log N).

    >>> round(width_limit(64))
    2334174
    """
    return few_partners_width(partners(n), memory(n), digits=math.ceil((1 - EPSILON) / RHO), machines=n ** (1 / 3))


def words_of(n: int, count: int) -> list[Words]:
    """Random words, in turn over two letters and over N letters.

    >>> [int(word.max()) < 2 for word in words_of(8, 2)]
    [True, False]
    """
    rng = np.random.default_rng(n)
    return [rng.integers(0, 2 if i % 2 == 0 else n, n, dtype=np.uint64) for i in range(count)]


def letters_after(word: Words, k: int = 1) -> Words:
    """The letters w_σ^k(w,i), with σ(w, i) = max({0} ∪ {j ≤ i: w_(j−1) = w_i}) as in the Definition; ⊥ is 2^64 − 1.

    >>> word = np.array([ord(c) for c in "aabcbabca"], dtype=np.uint64)
    >>> chr(letters_after(word)[8]), chr(letters_after(word, 2)[8])
    ('b', 'a')
    """
    letters = [None, *word.tolist()]  # positions from 1, as in the paper
    sigma = [0] + [
        max([0, *(j for j in range(2, i + 1) if letters[j - 1] == letters[i])]) for i in range(1, len(letters))
    ]
    at = list(range(len(letters)))
    for _ in range(k):
        at = [sigma[place] for place in at]
    return np.array([2**64 - 1 if place == 0 else letters[place] for place in at[1:]], dtype=np.uint64)


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem and lemma "ANN transformers solve induction head": the compiled protocol and the Definition.

    >>> row("tiny").holds
    True
    """
    trials, bounds = Trials(), []
    for n, count in CASES[effort].items():
        protocol = InductionHead(n, memory(n))
        for few in (None, partners(n)):
            for attention in ("ema", "anna"):
                progress(f"N = {n:,} on {attention.upper()}, {few or 'any number of'} partners")
                simulate(trials, protocol, words_of(n, count), attention=attention, partners=few, truth=letters_after)
    free = {n: PredictedSizes.of(InductionHead(n, memory(n))) for n in PLANNED}
    few = {n: PredictedSizes.of(with_partners(InductionHead(n, memory(n)), partners(n))) for n in PLANNED}
    for n in PLANNED:
        at, share = f"N = {n:,}", n**RHO
        bounds += [
            exactly("layers, any partners", free[n].layers, 8, "8", at),
            at_most("layers, few partners", few[n].layers, 7 * HOPS + 1, "7·(2⌈(1−ε)/ρ⌉−1)+1", at),
            at_most("heads, few partners", few[n].heads, 3 * share, "3·N^((ε'−ε)/4)", at),
            at_most("value width, few partners", few[n].lemma_width, width_limit(n), WIDTH_LIMIT, at),
        ]
    return trials.verdict(
        "ANNA-transformers solve induction heads",
        "InductionHead with s = 6·N^(2/3), any partners and N^ρ; ε' = 0.9, ρ = (ε'−ε)/4",
        sizes=list(CASES[effort]),
        planned=PLANNED,
        bounds=bounds,
        exponents=[
            exponent("layers, any partners", PLANNED, [predicted.layers for predicted in free.values()], 0, "0"),
            *size_exponents(few, heads=(RHO, "(ε'−ε)/4"), width=(EPSILON_PRIME, "ε'"), at=", few partners"),
        ],
    )
