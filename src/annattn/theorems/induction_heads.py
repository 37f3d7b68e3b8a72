"""Theorem "ANNA-transformers solve induction heads": O(1) layers, O(N^((ε'−ε)/4)) heads, width O(N^ε').

The lemma's four steps are the protocol `InductionHead`, which is compiled. With s = 6·N^ε words sorting takes four
rounds at every N for ε = 2/3 and sixteen for ε = 1/2. That makes 8 or 20 layers, but as many heads as machines, up to
N^(1−ε). With k = N^ρ partners, ρ = (ε'−ε)/4, there are k + 1 heads, and one round becomes at most L(L+1)/2 rounds for
every input, L = ⌈log_(k+1) P⌉ = O(1/ρ). Sizes are computed for four pairs (ε, ε').
"""

import numpy as np

from annattn.mpc import with_partners
from annattn.mpc.model import Words
from annattn.mpc.protocols import InductionHead
from annattn.theorems.simulation import FewPartners, PredictedSizes, simulate, size_exponents
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_most, exactly, silent

__all__ = [
    "PAIRS",
    "letters_after",
    "memory",
    "pair_text",
    "partners",
    "row",
    "words_of",
]

PAIRS = ((2 / 3, 0.9), (2 / 3, 0.8), (1 / 2, 0.75), (1 / 2, 0.65))
"""The pairs (ε, ε') for which sizes are computed; the first is run."""
PLANNED = [2**e for e in range(6, 37, 3)]
CASES = {"tiny": {64: 1}, "quick": {64: 10, 256: 4}, "full": {64: 60, 256: 20, 1024: 4}}


def memory(n: int, epsilon: float = PAIRS[0][0]) -> int:
    """Words per machine: 6·N^ε.

    >>> memory(512)
    384
    """
    return round(6 * n**epsilon)


def partners(n: int, pair: tuple[float, float] = PAIRS[0]) -> int:
    """How many others a machine may talk to per round: N^((ε'−ε)/4), and at least 2.

    >>> partners(64), partners(2**36)
    (2, 4)
    """
    return max(2, round(n ** ((pair[1] - pair[0]) / 4)))


def pair_text(pair: tuple[float, float]) -> str:
    """The pair as text.

    >>> pair_text((1 / 2, 0.65))
    "ε = 0.5, ε' = 0.65"
    """
    return f"ε = {pair[0]:.3g}, ε' = {pair[1]:g}"


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
    exponents = []
    for pair in PAIRS:
        protocols = {n: InductionHead(n, memory(n, pair[0])) for n in PLANNED}
        free = {n: PredictedSizes.of(protocol) for n, protocol in protocols.items()}
        few = {n: PredictedSizes.of(with_partners(protocol, partners(n, pair))) for n, protocol in protocols.items()}
        layers, name = (8 if pair[0] > 0.6 else 20), pair_text(pair)
        for n in PLANNED:
            at = f"N = {n:,}, {name}"
            bounds.append(exactly("layers, any partners", free[n].layers, layers, "8 or 20", at))
            k, limits = partners(n, pair), protocols[n].limits
            bounds += FewPartners.of(limits, k).bounds(layers - 1, k, few[n], at)
            bounds.append(at_most("machines", limits.machines, n ** (1 - pair[0]), "N^(1−ε)", at))
        exponents += size_exponents(
            few, heads=((pair[1] - pair[0]) / 4, "(ε'−ε)/4"), width=(pair[1], "ε'"), at=f", few partners, {name}"
        )
    return trials.verdict(
        "ANNA-transformers solve induction heads",
        f"InductionHead with s = 6·N^ε, any partners and N^ρ, ρ = (ε'−ε)/4, for {len(PAIRS)} pairs (ε, ε')",
        sizes=list(CASES[effort]),
        planned=PLANNED,
        bounds=bounds,
        exponents=exponents,
    )
