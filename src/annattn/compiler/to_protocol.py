"""From a transformer to a protocol: the paper's Theorems "MPC simulates EMA", "MPC simulates ANNA" and low rank."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from annattn.checks import require_count, require_instance
from annattn.compiler.collision_layer import CollisionLayer
from annattn.compiler.low_rank_layer import LowRankLayer
from annattn.compiler.mechanisms import LowRank
from annattn.compiler.token_placement import TokenPlacement, padded
from annattn.compiler.transformer import Layer, Transformer
from annattn.errors import CompileError, InputError, LeastMemoryError
from annattn.mpc.model import Limits, Mail, Numbers, Protocol, Words, real_words, spread, word_reals
from annattn.mpc.parts.stages import least_memory

__all__ = ["TransformerProtocol", "to_protocol"]


def to_protocol(
    transformer: Transformer, n: int, memory_words: int, *, dim: int | None = None, example: Tensor | None = None
) -> "TransformerProtocol":
    """The protocol that computes a transformer on n tokens with machines of `memory_words` words.

    A token machine holds as many tokens as its memory allows. A layer of exact-match or ANNA attention takes
    sort + 2·depth + 2 rounds, however many heads it has, and more only if a machine has no room for the tables of one
    token, which the paper's tree then spreads. A low-rank layer takes 2·depth rounds, at least 1. One round at the end
    applies ψ. That is O(L/(ε'-ε)) rounds in all for mH = N^ε and s = N^ε'. Numbers are float64. The hash
    functions of an ANNA layer are part of the protocol: they are the theorem's shared random seeds.

    Args:
        transformer: its element-wise functions get float64 rows.
        n: the number of tokens.
        memory_words: s; too little is refused with the number that would be enough.
        dim: columns of an input row, if the transformer does not declare them.
        example: rows, by default zeros, on which to learn the widths of layers that do not declare them. If there are n
            rows, they are also the input that the protocol is tried on if it is compiled in turn.

    >>> from annattn.compiler import Head, Layer, Transformer
    >>> from annattn.mpc import run
    >>> number = lambda x: x[:, :1]
    >>> equals = Transformer([Layer([Head(number, number, lambda x: x[:, 1:], width=1, value_width=1)])])
    >>> protocol = to_protocol(equals, n=3, memory_words=60, dim=2)
    >>> run(protocol, protocol.encode([[7, 1], [8, 5], [7, 2]])).output.ravel()
    array([1.5, 5. , 1.5])
    """
    hint = "describe its layers by Layer and Head; an nn.Transformer cannot be compiled"
    require_instance("transformer", transformer, Transformer, "an annattn.compiler.Transformer", hint=hint)
    n = require_count("n", n)
    dim = getattr(transformer, "dim", None) if dim is None else dim
    if dim is None and example is not None:
        dim = example.shape[1]
    if dim is None or dim < 1:
        raise InputError("dim", given=dim, expected="the columns of an input row", hint="pass dim=")
    return TransformerProtocol(transformer, n, memory_words, _widths(transformer, dim, example), example)


class TransformerProtocol(Protocol):
    """What `to_protocol` returns; the input is `encode(rows)`, the output the float64 rows of ψ."""

    def __init__(
        self, transformer: Transformer, n: int, memory_words: int, widths: list[int], example: Tensor | None
    ) -> None:
        self.transformer, self.n, self.widths, self.example = transformer, n, widths, example
        self.input_records, self.input_width = n, widths[0]
        held = _most_held(transformer, n, memory_words, widths)
        if held < 1:
            least = least_memory(lambda words: _most_held(transformer, n, words, widths) >= 1)
            raise LeastMemoryError("this transformer", n=n, memory_words=memory_words, least=least)
        self.placement = TokenPlacement(n, held)
        self.parts = [
            _part(layer)(layer, self.placement, width, memory_words)
            for layer, width in zip(transformer.layers, widths, strict=False)
        ]
        machines = self.placement.machines + max((part.machines for part in self.parts), default=0)
        self.limits = Limits(machines, memory_words)
        self.rounds = sum(part.rounds for part in self.parts) + 1

    def encode(self, rows: ArrayLike | Tensor) -> Words:
        """Input rows as words."""
        block = np.asarray(rows, dtype=np.float64)
        if block.shape != (self.n, self.widths[0]):
            raise InputError("rows", given=f"shape {block.shape}", expected=f"({self.n}, {self.widths[0]})")
        return real_words(block)

    def sample(self, rng: np.random.Generator) -> Words:
        """The example it was made with, if that has n rows, else normally distributed numbers."""
        if self.example is not None and len(self.example) == self.n:
            return self.encode(self.example)
        return self.encode(rng.standard_normal((self.n, self.widths[0])))

    def scatter(self, words: Words) -> Mail:
        """As many tokens per machine as it can serve."""
        return spread(words.reshape(self.n, self.widths[0]), self.placement.per_machine)

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """A round of the layer it belongs to; the first round of a layer also finishes the layer before."""
        i = round
        for number, part in enumerate(self.parts):
            if i == 0:
                return part.begin(*self._rows(number, mail))
            if i < part.rounds:
                return part.step(i - 1, mail)
            i -= part.rounds
        token, x = self._rows(len(self.parts), mail)
        home = self.placement.machine_of(token)
        return Mail(home, home, real_words(padded(self.transformer.output(x), self.widths[-1])))

    def _rows(self, number: int, mail: Mail) -> tuple[Numbers, Tensor]:
        if number == 0:
            return self.placement.tokens_of(mail.dest), torch.from_numpy(word_reals(mail.words))
        return self.parts[number - 1].finish(mail)

    def gather(self, mail: Mail) -> NDArray[np.float64]:
        """The output rows, (n, width of ψ)."""
        return word_reals(mail.words)


def _part(layer: Layer) -> type[CollisionLayer] | type[LowRankLayer]:
    return LowRankLayer if isinstance(layer.attention, LowRank) else CollisionLayer


def _most_held(transformer: Transformer, n: int, memory_words: int, widths: Sequence[int]) -> int:
    """The most tokens that one machine can serve in every layer: at most n, and 0 if it cannot serve any."""

    def fits(held: int) -> bool:
        rows = held * max(widths) <= memory_words
        placement = TokenPlacement(n, held)
        parts = zip(transformer.layers, widths, strict=False)
        return rows and all(_part(layer).fits(layer, placement, width, memory_words) for layer, width in parts)

    low, high = 0, min(n, memory_words) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _widths(transformer: Transformer, dim: int, example: Tensor | None) -> list[int]:
    """The columns of the rows before each layer and after ψ, as declared or as seen in one run on the example."""
    declared: list[Any] = [layer.width for layer in transformer.layers]
    if all(width is not None for width in declared) and transformer.keeps_rows:
        return [dim, *declared, [dim, *declared][-1]]
    x = torch.zeros(1, dim, dtype=torch.float64) if example is None else example.double()
    widths = [dim]
    try:
        for layer in transformer.layers:
            x = Transformer([layer])(x)
            widths.append(x.shape[1] if layer.width is None else layer.width)
        widths.append(transformer.output(x).shape[1])
    except Exception as error:
        hint = "declare Layer.width, or pass example= rows the transformer takes"
        raise CompileError(
            "transformer", given=f"no run on the example ({error})", expected="one", hint=hint
        ) from error
    return widths
