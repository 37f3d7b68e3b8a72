"""Theorem "ANNA simulates low-rank attention": depth O(L), heads O(N^((ε'−ε)/4)), width O(N^ε') for rm = N^ε.

A random low-rank transformer becomes a protocol, in which a tree with ⌊s/rm⌋ children per node adds up the matrices
k_i v_iᵀ and sends the sum back down. That protocol becomes an ANNA-transformer, which must give the first
transformer's numbers, bit for bit.

Performer, PolySketchFormer and Based are low-rank attention too: each goes the same way, and must give the numbers of
`low_rank_attention` with its feature map. Their few features stay the same for all N, so that only ε is another.

With r = m = N^(1/6), ε = 1/3 and s = 8·N^(1/2) a leaf holds h = ⌊(s − rm)/m⌋ tokens and a node has a = ⌊s/rm⌋ children:
⌈N/h⌉ leaves, 2⌈log_a(N/h)⌉·L + 2 layers. That is at most N^(2/3) leaves, a depth of at most 4 and 8L + 2 layers. With
N^ρ partners, ρ = 1/12, the width is O(N^(1/2 + 4ρ)): ε' = 5/6.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annattn.compiler import LowRank, Transformer, to_protocol
from annattn.compiler.to_protocol import TransformerProtocol
from annattn.mpc import with_partners
from annattn.mpc.model import Words, word_reals
from annattn.theorems.feature_maps import FEATURE_MAPS, FeatureModel
from annattn.theorems.integers import integer_rows, integer_transformer
from annattn.theorems.simulation import FewPartners, PredictedSizes, simulate, size_exponents
from annattn.theorems.verdict import Bound, Effort, Progress, Trials, Verdict, at_most, exactly, silent

__all__ = ["row"]

EPSILON, EPSILON_PRIME, MEMORY, RHO = 1 / 3, 5 / 6, 1 / 2, 1 / 12
ROOM, DEPTH = 8, 4
FEATURE_WIDTH, FEATURE_ROOM = 3, 24
PLANNED = [w**6 for w in range(2, 13)]
CASES = {"tiny": {64: 1}, "quick": {64: 12, 729: 1}, "full": {64: 60, 729: 6}}


def low_rank(n: int, layers: int, seed: int) -> Transformer:
    """A random L-layer low-rank transformer of one head with r = m = N^(1/6).

    >>> low_rank(64, 2, seed=0).sizes.query_width
    2
    """
    return integer_transformer(LowRank(), layers=layers, heads=1, width=_width(n), seed=seed)


def as_protocol(transformer: Transformer, n: int) -> TransformerProtocol:
    """The transformer as a protocol on machines of 8·N^(1/2) words.

    >>> as_protocol(low_rank(64, 2, seed=0), 64).rounds
    5
    """
    return to_protocol(transformer, n, int(ROOM * n**MEMORY), dim=_width(n))


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "ANNA simulates low-rank attention": from low rank to a protocol to ANNA, and the sizes.

    >>> row("tiny").holds
    True
    """
    trials, bounds = Trials(), []
    for n, count in CASES[effort].items():
        for seed in range(count):
            layers = 1 + seed % 3
            progress(f"N = {n:,}, L = {layers}, {seed + 1} of {count}")
            direct = low_rank(n, layers, seed)
            protocol = as_protocol(direct, n)
            inputs = [protocol.encode(integer_rows(n, _width(n), seed))]
            truth = _directly(direct)
            for few in (None, _partners(n)):
                model = simulate(trials, protocol, inputs, attention="anna", partners=few, truth=truth)
                if few is None:
                    at = f"N = {n:,}, L = {layers}"
                    bounds += _tree(protocol, model.sizes.layers, layers, _width(n) ** 2, _width(n), at)
    for at, name in enumerate(FEATURE_MAPS):
        n, layers = min(CASES[effort]), 1 + at % 2 if effort != "tiny" else 1
        progress(f"{name}, N = {n:,}, L = {layers}")
        direct = FeatureModel(name, layers=layers, width=FEATURE_WIDTH, seed=at)
        memory = int(FEATURE_ROOM * n**MEMORY)
        protocol = to_protocol(direct.transformer, n, memory, dim=FEATURE_WIDTH)
        inputs = [protocol.encode(integer_rows(n, FEATURE_WIDTH, at))]
        model = simulate(trials, protocol, inputs, attention="anna", truth=_directly(direct.direct))
        case = f"{name}, N = {n:,}, L = {layers}"
        (head,) = direct.transformer.layers[0].heads
        bounds += _tree(protocol, model.sizes.layers, layers, head.width * head.value_width, FEATURE_WIDTH, case)
    predictions = {}
    for n in PLANNED:
        protocol, k, at = as_protocol(low_rank(n, 2, seed=0), n), _partners(n), f"N = {n:,}, L = 2"
        free, predictions[n] = PredictedSizes.of(protocol), PredictedSizes.of(with_partners(protocol, k))
        bounds += _tree(protocol, free.layers, 2, _width(n) ** 2, _width(n), at)
        bounds += FewPartners.of(protocol.limits, k).bounds(protocol.rounds, k, predictions[n], at)
        bounds.append(at_most("machines that hold rows or sums", protocol.limits.machines, n ** (2 / 3), "N^(2/3)", at))
    return trials.verdict(
        "ANNA simulates low-rank attention",
        "random low-rank transformers of 1 to 3 layers, r = m = N^(1/6), to protocols with s = 8·N^(1/2), to "
        f"ANNA-transformers with any and with N^(1/12) partners; {', '.join(FEATURE_MAPS)} with s = 24·N^(1/2)",
        sizes=list(CASES[effort]),
        planned=PLANNED,
        bounds=bounds,
        exponents=size_exponents(
            predictions,
            heads=((EPSILON_PRIME - EPSILON) / 4, "(ε'−ε)/4"),
            width=(EPSILON_PRIME, "ε'"),
            at=", few partners",
        ),
    )


def _tree(protocol: TransformerProtocol, built: int, layers: int, summary: int, width: int, at: str) -> list[Bound]:
    """Layers and machines for L layers whose summary of rm words travels in rows of m words."""
    s = protocol.limits.memory_words
    folded = -(-summary // width) * width
    leaves, depth, inner = -(-protocol.n // ((s - folded) // width)), 0, 0
    nodes = leaves
    while nodes > 1:
        nodes, depth = -(-nodes // (s // folded)), depth + 1
        inner += nodes
    what = "layers, any partners"
    return [
        exactly(what, built, max(1, 2 * depth) * layers + 2, "2⌈log_a(N/h)⌉·L + 2", at),
        at_most(what, built, 2 * DEPTH * layers + 2, "8L + 2", at),
        exactly("machines that hold rows or sums", protocol.limits.machines, leaves + inner, "N/h leaves, a-ary", at),
    ]


def _directly(transformer: Callable[[Tensor], Tensor]) -> Callable[[Words], NDArray[np.float64]]:
    return lambda words: transformer(torch.from_numpy(word_reals(words))).numpy()


def _width(n: int) -> int:
    return round(n ** (1 / 6))


def _partners(n: int) -> int:
    return max(2, round(n**RHO))
