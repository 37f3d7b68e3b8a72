"""Expressions as ReLU networks with whole weights, exact on the whole numbers they are made for.

Four identities do it, for whole numbers within known bounds:

- [x > 0] = relu(x) - relu(x - 1).
- For c in {0, 1} and 0 ≤ y ≤ h: c·y = relu(y - h·(1 - c)). So "y if c else n" is two units.
- A table t over 0 … D-1 is the piecewise linear function t_0 + Σ_k a_k·relu(x - k), where a_k is the second difference
  of t at k. Where t is linear no unit is needed, so x mod m over 0 … h takes about 2h/m units.
- relu(x) = x for x ≥ 0 carries a number to a deeper layer.

Every number in the network is whole. If at every unit the sum of |weight|·(largest input), plus |bias|, is at most
2^24, then float32 holds every product and every partial sum exactly, in whatever order they are added; for float64 the
bound is 2^53.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from annattn.mpc.programs.expressions import Expression, Leaf, Linear, Positive, Select, Table

__all__ = ["Network", "relu_network"]

Stage = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Network:
    """Weights and biases: a ReLU after every stage but the last. `magnitude` bounds every partial sum in it."""

    stages: list[Stage]
    magnitude: int

    def __call__(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The outputs for rows of inputs, in whole numbers."""
        for number, (weight, bias) in enumerate(self.stages):
            rows = rows @ weight.T + bias
            if number < len(self.stages) - 1:
                rows = np.maximum(rows, 0)
        return rows


def relu_network(inputs: Sequence[Leaf], outputs: Iterable[Expression]) -> Network:
    """The network that computes expressions of these inputs, which must not be negative.

    >>> x = Leaf("x", 0, 7)
    >>> network = relu_network([x], [x % 3, x < 4])
    >>> network(np.array([[2], [4]])).tolist()
    [[2, 1], [1, 0]]
    """
    builder = _Builder(inputs)
    return builder.network([builder.affine(one) for one in outputs])


@dataclass(frozen=True)
class _Affine:
    """A constant plus whole multiples of nodes: inputs and units."""

    constant: int
    terms: Mapping[int, int]

    def plus(self, other: "_Affine", factor: int = 1) -> "_Affine":
        terms = dict(self.terms)
        for node, weight in other.terms.items():
            terms[node] = terms.get(node, 0) + factor * weight
        return _Affine(self.constant + factor * other.constant, {node: w for node, w in terms.items() if w})

    def shifted(self, by: int) -> "_Affine":
        return _Affine(self.constant + by, self.terms)

    def times(self, factor: int) -> "_Affine":
        return _Affine(0, {}).plus(self, factor)


class _Builder:
    """Nodes are numbered: first the inputs, then the units, each with its pre-activation, level and largest value."""

    def __init__(self, inputs: Sequence[Leaf]) -> None:
        self.inputs = len(inputs)
        self.of_leaf: dict[Hashable, int] = {leaf.name: node for node, leaf in enumerate(inputs)}
        self.level, self.high = [0] * len(inputs), [leaf.high for leaf in inputs]
        self.before: dict[int, _Affine] = {}
        self.made: dict[tuple[int, frozenset[tuple[int, int]]], int] = {}
        self.known: dict[int, _Affine] = {}

    def affine(self, one: Expression) -> _Affine:
        """The expression over nodes, with the units it needs."""
        if id(one) not in self.known:
            self.known[id(one)] = self._translate(one)
        return self.known[id(one)]

    def _translate(self, one: Expression) -> _Affine:
        if isinstance(one, Leaf):
            return _Affine(0, {self.of_leaf[one.name]: 1})
        if isinstance(one, Linear):
            total = _Affine(one.constant, {})
            for factor, term in one.terms:
                total = total.plus(self.affine(term), factor)
            return total
        if isinstance(one, Positive):
            x, high = self.affine(one.of), one.of.high
            return self._relu(x, one.of.low, high).plus(self._relu(x.shifted(-1), one.of.low - 1, high - 1), -1)
        if isinstance(one, Select):
            condition = self.affine(one.condition)
            opposite = _Affine(1, {}).plus(condition, -1)
            return self._if(condition, opposite, one.yes).plus(self._if(opposite, condition, one.no))
        assert isinstance(one, Table)
        x, low, high = self.affine(one.index), one.index.low, one.index.high
        entries = one.entries[low : high + 1]
        total = _Affine(entries[0], {})
        slope = 0
        for k, (here, after) in enumerate(pairwise(entries)):
            total = total.plus(self._relu(x.shifted(-low - k), -k, high - low - k), after - here - slope)
            slope = after - here
        return total

    def _if(self, condition: _Affine, opposite: _Affine, value: Expression) -> _Affine:
        """The value where the condition is 1, and 0 where it is 0."""
        span = value.high - value.low
        above = self.affine(value).shifted(-value.low).plus(opposite, -span)
        return condition.times(value.low).plus(self._relu(above, -span, span))

    def _relu(self, x: _Affine, low: int, high: int) -> _Affine:
        """The unit relu(x) for x from low to high, or none where x has only one sign."""
        if low >= 0 or high <= 0:
            return x if low >= 0 else _Affine(0, {})
        key = (x.constant, frozenset(x.terms.items()))
        if key not in self.made:
            node = self.made[key] = len(self.level)
            self.before[node] = x
            self.level.append(1 + max((self.level[held] for held in x.terms), default=0))
            self.high.append(high)
        return _Affine(0, {self.made[key]: 1})

    def network(self, outputs: Sequence[_Affine]) -> Network:
        """The stages, with units that carry a node from its level to the later ones that use it."""
        needed = {node for output in outputs for node in output.terms}
        rows: list[Sequence[_Affine]] = [outputs]
        columns: list[list[int]] = []
        for level in range(max((self.level[node] for node in needed), default=0), 0, -1):
            columns.append(sorted(needed))
            units = [self.before[node] if self.level[node] == level else _Affine(0, {node: 1}) for node in columns[-1]]
            rows.append(units)
            needed = {held for unit in units for held in unit.terms}
        columns.append(list(range(self.inputs)))
        stages, magnitude = [], 0
        for affines, nodes in zip(reversed(rows), reversed(columns), strict=True):
            place = {node: column for column, node in enumerate(nodes)}
            weight = np.zeros((len(affines), len(nodes)), np.int64)
            for row, affine in enumerate(affines):
                for node, factor in affine.terms.items():
                    weight[row, place[node]] = factor
                sizes = (abs(factor) * self.high[node] for node, factor in affine.terms.items())
                magnitude = max(magnitude, abs(affine.constant) + sum(sizes))
            stages.append((weight, np.array([affine.constant for affine in affines], np.int64)))
        return Network(stages, magnitude)
