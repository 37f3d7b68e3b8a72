"""Transformers in the paper's sense: arbitrary element-wise functions between attention layers.

The paper's Definition "Transformer": X ↦ f_ℓ(X), where a layer f runs H heads, each with its own functions Q, K and V
of a token's row, and combines their outputs; at the end comes an output function ψ. "Element-wise" means that a
function looks at one token's row alone. Any such function is allowed (Section "Standard attention and transformers").

Two conveniences add no power. A layer has a function `local` that the Q, K and V of all its heads share: Q_h(local(x))
is an element-wise function like any other. And a layer's `update` may use local(x) besides the heads' outputs. The
Definition has no such residual, but one more head, whose queries and keys are the positions, would provide it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from annattn.compiler.mechanisms import Attention, ExactMatch
from annattn.errors import InputError

__all__ = ["ElementWise", "Head", "Layer", "Sizes", "Step", "Trace", "Transformer", "same"]

ElementWise = Callable[[Tensor], Tensor]
"""A function from rows (n, d) to rows (n, m) that treats each row by itself."""


def same(x: Tensor) -> Tensor:
    """The identity, for layers that need no function."""
    return x


def _beside(x: Tensor, reads: list[Any]) -> Tensor:
    return torch.cat(reads, dim=1)


@dataclass(frozen=True)
class Head:
    """An attention head: element-wise functions Q, K and V, and `read`, which is applied to each token's output.

    width: columns of queries and keys. value_width: columns of values, m in the paper.
    nonzeros: how many entries of a value row can be nonzero, for heads whose values are sparse. Such a head's value
    function may leave out trailing columns that are zero for all tokens; the output then lacks them too.
    takes_part: a function of local(x) that says, as two masks, which tokens' queries and which tokens' keys can match
    at all. Leaving out the others saves time and changes no number.
    """

    query: ElementWise
    key: ElementWise
    value: ElementWise
    width: int
    value_width: int
    nonzeros: int | None = None
    read: Callable[[Tensor], Any] = same
    takes_part: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None


@dataclass(frozen=True)
class Layer:
    """An attention layer: X ↦ update(local(X), [read(head(local(X))) for each head]).

    width: columns of its output rows; if not declared, `to_protocol` runs the layer once to find out. A layer with a
    declared width may leave out trailing columns that are zero for all tokens, as values may.
    """

    heads: Sequence[Head]
    attention: Attention = field(default_factory=ExactMatch)
    local: ElementWise = same
    update: Callable[[Tensor, list[Any]], Tensor] = _beside
    width: int | None = None


@dataclass(frozen=True)
class Sizes:
    """What the paper counts: layers L, heads H and widths m. Heads and widths are the largest of any layer."""

    layers: int
    heads: int
    query_width: int
    value_width: int
    nonzeros: int

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, {self.heads} heads, queries and keys {self.query_width} wide, "
            f"values {self.value_width} wide with at most {self.nonzeros} nonzeros"
        )


@dataclass(frozen=True)
class Step:
    """One head of one layer: the rows of the watched tokens, and the number of nonzero entries in all values."""

    layer: int
    head: int
    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    nonzeros: int


@dataclass(frozen=True)
class Trace:
    """A run's output, the watched tokens' rows before the first and after every layer, and every head's steps."""

    tokens: tuple[int, ...]
    output: Tensor
    states: tuple[Tensor, ...]
    steps: tuple[Step, ...]

    @property
    def nonzeros(self) -> int:
        """The number of nonzero entries in the values of the fullest head."""
        return max((step.nonzeros for step in self.steps), default=0)

    def __str__(self) -> str:
        lines = []
        for at, token in enumerate(self.tokens):
            for layer, state in enumerate(self.states):
                lines.append(f"token {token} after layer {layer}: {_row(state[at])}")
                for step in (step for step in self.steps if step.layer == layer):
                    parts = (f"{name} {_row(getattr(step, name)[at])}" for name in ("query", "key", "value", "out"))
                    lines.append(f"  layer {layer} head {step.head}: " + ", ".join(parts))
        return "\n".join(lines)


@dataclass(frozen=True)
class Transformer:
    """Layers and an output function ψ: the paper's Definition "Transformer".

    >>> number = lambda x: x[:, :1]
    >>> head = Head(query=number, key=number, value=lambda x: x[:, 1:], width=1, value_width=1)
    >>> mean_of_equals = Transformer([Layer([head])])
    >>> mean_of_equals(torch.tensor([[7.0, 1.0], [8.0, 5.0], [7.0, 2.0]]))
    tensor([[1.5000], [5.0000], [1.5000]])
    >>> print(mean_of_equals.sizes)
    1 layers, 1 heads, queries and keys 1 wide, values 1 wide with at most 1 nonzeros
    """

    layers: Sequence[Layer]
    output: ElementWise = same

    @property
    def sizes(self) -> Sizes:
        """Layers, heads and widths as built."""
        heads = [head for layer in self.layers for head in layer.heads]
        return Sizes(
            layers=len(self.layers),
            heads=max((len(layer.heads) for layer in self.layers), default=0),
            query_width=max((head.width for head in heads), default=0),
            value_width=max((head.value_width for head in heads), default=0),
            nonzeros=max((head.value_width if head.nonzeros is None else head.nonzeros for head in heads), default=0),
        )

    @property
    def keeps_rows(self) -> bool:
        """Whether ψ is the identity."""
        return self.output is same

    def __call__(self, x: Float[Tensor, "n d"]) -> Tensor:
        """ψ(f_L(… f_1(X))), one head at a time."""
        for number, layer in enumerate(self.layers):
            local = layer.local(x)
            x = layer.update(local, [head.read(_attend(number, h, layer, local)[3]) for h, head in _heads(layer)])
        return self.output(x)

    def trace(self, x: Float[Tensor, "n d"], tokens: Sequence[int] = (0,)) -> Trace:
        """A run that records what the given tokens hold, layer by layer and head by head."""
        states, steps = [x[list(tokens)]], []
        for number, layer in enumerate(self.layers):
            local, reads = layer.local(x), []
            for h, head in _heads(layer):
                rows = _attend(number, h, layer, local)
                seen = [row[list(tokens)] for row in rows]
                steps.append(Step(number, h, *seen, nonzeros=int(torch.count_nonzero(rows[2]))))
                reads.append(head.read(rows[3]))
            x = layer.update(local, reads)
            states.append(x[list(tokens)])
        return Trace(tuple(tokens), self.output(x), tuple(states), tuple(steps))


def _heads(layer: Layer) -> list[tuple[int, Head]]:
    return list(enumerate(layer.heads))


def _attend(number: int, h: int, layer: Layer, local: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and outputs of all tokens."""
    head, n = layer.heads[h], len(local)
    query, key, value = head.query(local), head.key(local), head.value(local)
    for name, rows, width in (("query", query, head.width), ("key", key, head.width)):
        _require(name, rows, n, width, number, h, exact=True)
    _require("value", value, n, head.value_width, number, h, exact=head.nonzeros is None)
    if head.takes_part is None:
        return query, key, value, layer.attention(query, key, value)
    asks, offers = head.takes_part(local)
    # Most tokens may take no part. NumPy's zeros, unlike torch's, take no time and memory until they are written to.
    out = torch.from_numpy(np.zeros((n, value.shape[1]))).to(value.dtype)
    if bool(asks.any()) and bool(offers.any()):
        out[asks] = layer.attention(query[asks], key[offers], value[offers])
    return query, key, value, out


def _require(name: str, rows: Tensor, n: int, width: int, layer: int, head: int, *, exact: bool) -> None:
    if rows.ndim != 2 or len(rows) != n or rows.shape[1] > width or (exact and rows.shape[1] < width):
        expected = f"({n}, {width})" + ("" if exact else " or fewer columns")
        raise InputError(f"{name} of layer {layer}, head {head}", given=f"shape {tuple(rows.shape)}", expected=expected)


def _row(row: Tensor) -> str:
    values = [f"{value:g}" for value in row[:8].tolist()]
    return "[" + " ".join(values) + (f" … {row.shape[0]} in all]" if row.shape[0] > 8 else "]")
