"""What the rows about compiled protocols share: running transformer and protocol, and predicting sizes at any N."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from annattn.compiler import CompiledProtocol, to_transformer, value_widths
from annattn.compiler.identifiers import Identifiers
from annattn.compiler.init import init_width
from annattn.compiler.sizes import senders_per_head
from annattn.mpc import Protocol, run
from annattn.mpc.model import Words
from annattn.theorems.verdict import Bound, Trials, exponent

__all__ = ["PredictedSizes", "few_partners_memory", "few_partners_width", "simulate", "size_exponents"]


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


def few_partners_memory(partners: int, memory_words: float, *, digits: float, machines: float) -> float:
    """The words per machine that `docs/few_partners.md` proves enough, with everything rounded up.

    (1 + w)·s + max(s, (1 + w)·E), where w is 1 or 2 words of header and E = k((k+1)(L-1) + L-2) packets of excess.

    >>> few_partners_memory(2, 8, digits=6, machines=256)
    92
    """
    bits = math.log2((partners + 1) * machines) + math.log2(memory_words) + 2
    header = 1 if 2 * bits <= 64 else 2
    excess = max(0, partners * ((partners + 1) * (digits - 1) + max(0, digits - 2)))
    return (1 + header) * memory_words + max(memory_words, (1 + header) * excess)


def few_partners_width(partners: int, memory_words: float, *, digits: float, machines: float) -> float:
    """The lemma's 12·α⁴·ln q slots of Δ numbers, including all that `with_partners` may round up.

    α = k + 1, q ≤ (k + 1)·P machines, Δ = 6 + 2·s' numbers for words of 64 bits and the s' of `few_partners_memory`.

    >>> round(few_partners_width(2, 8, digits=6, machines=256))
    1227165
    """
    message = 6 + 2 * few_partners_memory(partners, memory_words, digits=digits, machines=machines)
    return (12 * (partners + 1) ** 4 * math.log((partners + 1) * machines) + 1) * message


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
