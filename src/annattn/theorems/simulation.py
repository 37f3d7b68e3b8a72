"""What the rows about compiled protocols share: running transformer and protocol, and predicting sizes at any N."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import numpy as np

from annattn.compiler import CompiledProtocol, to_transformer, value_widths
from annattn.compiler.identifiers import Identifiers
from annattn.compiler.init import init_width
from annattn.compiler.sizes import senders_per_head
from annattn.mpc import Limits, Protocol, run
from annattn.mpc.model import Words
from annattn.theorems.verdict import Bound, Trials, at_most, exactly, exponent

__all__ = ["FewPartners", "PredictedSizes", "simulate", "size_exponents"]


@dataclass(frozen=True)
class PredictedSizes:
    """The sizes of a compiled protocol by formula, without building it; the last two widths are those of values.

    >>> from annattn.mpc.protocols import Sum
    >>> PredictedSizes.of(Sum(n=9, memory_words=3))
    PredictedSizes(layers=3, heads=3, query_width=3, lemma_width=12816, practical_width=36, machines=3)
    """

    layers: int
    heads: int
    query_width: int
    lemma_width: int
    practical_width: int
    machines: int

    @classmethod
    def of(cls, protocol: Protocol) -> "PredictedSizes":
        """The sizes of this very protocol; for the improved theorem, pass the result of `with_partners`."""
        limits = protocol.limits
        widths = value_widths(limits)
        return cls(
            layers=protocol.rounds + 1,
            heads=senders_per_head(limits),
            query_width=Identifiers(limits.machines).width,
            lemma_width=widths.lemma,
            practical_width=widths.built,
            machines=limits.machines,
        )


@dataclass(frozen=True)
class FewPartners:
    """What `docs/few_partners.md` proves about rewriting a protocol with these limits for k partners, by its formulas.

    digits, machines: L, and the b^L machines of a base b ≤ k + 1. memory_words: (1 + w)·s + max(s, (1 + w)·E), where w
    is 1 or 2 words of header and E the excess of phases of one digit. hops: the rounds that one round becomes. A phase
    with r digits to go that puts g of them right takes r - 1 + g rounds; all phases that fit are tried.

    >>> FewPartners.of(Limits(256, 8), 2)
    FewPartners(digits=6, machines=729, memory_words=92, hops=19, word_bits=64)
    """

    digits: int
    machines: int
    memory_words: int
    hops: int
    word_bits: int

    @classmethod
    def of(cls, limits: Limits, partners: int) -> "FewPartners":
        """From the limits of the original protocol."""
        digits = next(d for d in count(1) if (partners + 1) ** d >= limits.machines)
        base = next(b for b in count(1) if b**digits >= limits.machines)
        s, bits = limits.memory_words, max(1, (base**digits - 1).bit_length()) + limits.memory_words.bit_length()
        header = 1 if 2 * bits <= 64 else 2

        def excess(to_go: int, right: int) -> int:
            corrections = [base ** (i + 1) * (base - 1) * (to_go - 1 - i) for i in range(right)]
            return max(*corrections, corrections[-1] + (base - 1) * max(0, to_go - right - 1))

        least = max(excess(to_go, 1) for to_go in range(1, digits + 1))
        spare, hops = max(s, (1 + header) * least), [0]
        for to_go in range(1, digits + 1):
            fits = [g for g in range(1, to_go + 1) if g == 1 or (1 + header) * excess(to_go, g) <= spare]
            hops.append(min(to_go - 1 + g + hops[to_go - g] for g in fits))
        return cls(digits, base**digits, (1 + header) * s + spare, hops[-1], max(limits.word_bits, 2 // header * bits))

    def bounds(self, rounds: int, partners: int, predicted: PredictedSizes, at: str) -> list[Bound]:
        """Machines, layers, heads and the lemma's width of an R-round protocol: exactly these; the theorem's layers.

        The width is 12·α⁴·ln q slots of Δ numbers, for α = k + 1, q machines and Δ = 6 + 2·s', or 6 + s' for words of
        at most 32 bits.

        >>> from annattn.mpc import with_partners
        >>> from annattn.mpc.protocols import Sum
        >>> protocol = Sum(n=100, memory_words=3)
        >>> proven = FewPartners.of(protocol.limits, 2)
        >>> predicted = PredictedSizes.of(with_partners(protocol, 2))
        >>> [bound.holds for bound in proven.bounds(protocol.rounds, 2, predicted, "N = 100")]
        [True, True, True, True, True]
        """
        half, senders = self.digits * (self.digits + 1) // 2, min(partners + 1, self.machines)
        packet = 6 + (2 if self.word_bits > 32 else 1) * self.memory_words
        width = math.ceil(12 * senders**4 * math.log(self.machines)) * packet
        layers, formula = "layers, few partners", "⌈12(k+1)⁴·ln q⌉(6 + 2s'), s' = (1+w)s + max(s, (1+w)E)"
        return [
            exactly("machines, few partners", predicted.machines, self.machines, "b^L", at),
            exactly(layers, predicted.layers, rounds * self.hops + 1, "R·Σ(r − 1 + g) + 1", at),
            at_most(layers, predicted.layers, rounds * half + 1, "R·L(L+1)/2 + 1, L = ⌈log_(k+1) P⌉", at),
            exactly("heads, few partners", predicted.heads, senders, "k + 1", at),
            exactly("value width, few partners", predicted.lemma_width, max(1, width), formula, at),
        ]


def size_exponents(
    predictions: Mapping[int, PredictedSizes],
    *,
    heads: tuple[float, str],
    width: tuple[float, str],
    logarithm: bool = False,
    at: str = "",
) -> list[Bound]:
    """How heads and the lemma's value width grow with N; limits as (exponent, formula).

    If the theorem's width has a factor log N, it is divided out first.

    >>> from annattn.mpc.protocols import Permute
    >>> predictions = {n: PredictedSizes.of(Permute(n, memory_words=4)) for n in (16, 64, 256)}
    >>> [bound.what for bound in size_exponents(predictions, heads=(0, "0"), width=(0, "0"), logarithm=True)]
    ['heads ~ N^', 'value width/ln N ~ N^']
    """
    sizes = list(predictions)
    widths = [predicted.lemma_width / (math.log(n) if logarithm else 1) for n, predicted in predictions.items()]
    name = "value width/ln N" if logarithm else "value width"
    return [
        exponent(f"heads{at}", sizes, [predicted.heads for predicted in predictions.values()], *heads),
        exponent(f"{name}{at}", sizes, widths, *width),
    ]


def simulate(
    trials: Trials,
    protocol: Protocol,
    inputs: Sequence[Words],
    *,
    attention: Literal["ema", "anna"] = "ema",
    mode: Literal["theorem", "practical"] = "practical",
    partners: int | None = None,
    truth: Callable[[Words], Any] | None = None,
) -> CompiledProtocol:
    """Compile a protocol, run it on every input, and compare with the truth: by default, the protocol's own run.

    A size that differs from the prediction counts as a wrong answer.

    >>> from annattn.mpc.protocols import Sum
    >>> trials = Trials()
    >>> model = simulate(trials, Sum(n=9, memory_words=3), [np.arange(9, dtype=np.uint64)])
    >>> trials.equal, model.sizes.layers
    (1, 3)
    """
    model = to_transformer(protocol, attention, partners, mode, example=inputs[0])
    predicted, sizes = PredictedSizes.of(model.protocol), model.sizes
    width = predicted.lemma_width if mode == "theorem" else predicted.practical_width
    as_predicted = (sizes.layers, sizes.heads, sizes.query_width) == (
        predicted.layers,
        predicted.heads,
        predicted.query_width,
    ) and sizes.value_width == max(width, init_width(model.rows))
    for words in inputs:
        expected = run(protocol, words).output if truth is None else truth(words)
        trials.add(as_predicted and np.array_equal(model.run(words), expected))
    return model
