"""Theorem "ANNA-transformers solve k-hop": O(log k) layers, by doubling (`KHop`), compiled.

At s = 6·N^(2/3) every σ(w, i) is known after 6 rounds, and each binary digit of k takes two more. That makes
9 + 2⌊log2 k⌋ layers. With N^ρ partners one round becomes at most L(L+1)/2 rounds for every input, for machines with
numbers of L digits. Sizes are computed for four pairs (ε, ε').
"""

import numpy as np

from annattn.mpc import with_partners
from annattn.mpc.protocols import KHop
from annattn.theorems.induction_heads import (
    PAIRS,
    letters_after,
    memory,
    pair_text,
    partners,
    words_of,
)
from annattn.theorems.simulation import FewPartners, PredictedSizes, simulate, size_exponents
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_most, exactly, silent

__all__ = ["row"]

JUMPS = [1, 2, 3, 4, 7, 8, 16, 64, 1024, 2**20]
PLANNED = [2**e for e in range(9, 37, 3)]
CASES = {
    "tiny": ((64, 3, 1),),
    "quick": ((64, 1, 2), (64, 2, 2), (64, 5, 2), (256, 16, 2)),
    "full": ((64, 1, 10), (64, 2, 10), (64, 5, 10), (256, 16, 6), (1024, 16, 2)),
}


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "ANNA-transformers solve k-hop": the compiled protocol and the Definition, layers and log k.

    >>> row("tiny").holds
    True
    """
    trials, bounds = Trials(), []
    for n, k, count in CASES[effort]:
        protocol = KHop(n, memory(n), k=k)
        for few in (None, partners(n)):
            for attention in ("ema", "anna"):
                progress(f"N = {n:,}, k = {k} on {attention.upper()}, {few or 'any number of'} partners")
                words, truth = words_of(n, count), lambda word, k=k: letters_after(word, k)
                simulate(trials, protocol, words, attention=attention, partners=few, truth=truth)
    depth = [PredictedSizes.of(KHop(4096, memory(4096), k=k)).layers for k in JUMPS]
    for k, layers in zip(JUMPS, depth, strict=True):
        bounds.append(
            exactly("layers, any partners", layers, 9 + 2 * (k.bit_length() - 1), "9 + 2⌊log2 k⌋", f"k = {k:,}")
        )
    exponents = []
    for pair in PAIRS:
        protocols = {n: KHop(n, memory(n, pair[0]), k=16) for n in PLANNED}
        few = {n: PredictedSizes.of(with_partners(protocol, partners(n, pair))) for n, protocol in protocols.items()}
        rounds, name = (16 if pair[0] > 0.6 else 28), pair_text(pair)
        for n, predicted in few.items():
            at = f"N = {n:,}, k = 16, {name}"
            k = partners(n, pair)
            bounds += FewPartners.of(protocols[n].limits, k).bounds(rounds, k, predicted, at)
        exponents += size_exponents(
            few, heads=((pair[1] - pair[0]) / 4, "(ε'−ε)/4"), width=(pair[1], "ε'"), at=f", few partners, {name}"
        )
    slope = float(np.polyfit(np.log2(JUMPS), depth, 1)[0])
    bounds.append(at_most("layers per doubling of k", round(slope, 6), 2.1, "2, and 0.1 for rounding log2 k"))
    return trials.verdict(
        "ANNA-transformers solve k-hop",
        f"KHop with s = 6·N^ε, any partners and N^ρ, ρ = (ε'−ε)/4, for {len(PAIRS)} pairs (ε, ε')",
        sizes=sorted({n for n, _, _ in CASES[effort]}),
        planned=PLANNED,
        bounds=bounds,
        exponents=exponents,
    )
