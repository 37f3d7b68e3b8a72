"""A small language for what a machine computes: whole numbers, added, compared, selected and looked up.

An expression knows the least and the largest value it can have. So programs are checked before they run, and the
compiler knows how wide a comparison or a table must be. The operators build expressions; nothing is computed until
`evaluate`.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from annattn.errors import InputError
from annattn.mpc.model import Numbers

__all__ = [
    "LARGEST",
    "Expression",
    "Leaf",
    "Linear",
    "Positive",
    "Select",
    "Table",
    "Value",
    "both",
    "either",
    "equal",
    "evaluate",
    "lift",
    "maximum",
    "minimum",
    "negation",
    "pick",
    "select",
    "table",
]

LARGEST = 2**52
"""No expression may exceed this: beyond 2^53 float64 does not hold every whole number."""

MOST_ENTRIES = 2**16
"""Tables are for words of few bits."""


@dataclass(frozen=True, eq=False)
class Expression:
    """A whole number from `low` to `high`. `+`, `-`, `*` and `//` and `%` by constants, and comparisons give more.

    >>> x = Leaf("x", 0, 7)
    >>> (2 * x + 1).high, (x % 3).high, (x < 4).high
    (15, 2, 1)
    """

    low: int
    high: int

    def __add__(self, other: "Value") -> "Expression":
        return _linear([(1, self), (1, other)])

    def __radd__(self, other: "Value") -> "Expression":
        return _linear([(1, other), (1, self)])

    def __sub__(self, other: "Value") -> "Expression":
        return _linear([(1, self), (-1, other)])

    def __rsub__(self, other: "Value") -> "Expression":
        return _linear([(1, other), (-1, self)])

    def __neg__(self) -> "Expression":
        return _linear([(-1, self)])

    def __mul__(self, factor: int) -> "Expression":
        if isinstance(factor, Expression):
            raise InputError("factor", given="an expression", expected="a constant", hint="use table or select")
        return _linear([(index(factor), self)])

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> "Expression":
        return self._by_constant(divisor, lambda value: value // divisor)

    def __mod__(self, divisor: int) -> "Expression":
        return self._by_constant(divisor, lambda value: value % divisor)

    def _by_constant(self, divisor: int, function: Callable[[int], int]) -> "Expression":
        if isinstance(divisor, Expression) or index(divisor) < 1:
            raise InputError("divisor", given=divisor, expected="a constant of at least 1")
        if self.low < 0:
            raise InputError("dividend", given=f"an expression as low as {self.low}", expected="one of at least 0")
        return table(self, [function(value) for value in range(_entries(self.high + 1))])

    def __lt__(self, other: "Value") -> "Expression":
        return _positive(other - self)

    def __gt__(self, other: "Value") -> "Expression":
        return _positive(self - other)

    def __le__(self, other: "Value") -> "Expression":
        return _positive(other - self + 1)

    def __ge__(self, other: "Value") -> "Expression":
        return _positive(self - other + 1)

    def __bool__(self) -> bool:
        hint = "use select, both, either or negation instead of if, and, or, not"
        raise InputError("condition", given="an expression", expected="a number known while tracing", hint=hint)


Value = Expression | int
"""An expression, or a constant."""


@dataclass(frozen=True, eq=False, init=False)
class Leaf(Expression):
    """What a machine knows at the start of a round, by name."""

    name: Hashable

    def __init__(self, name: Hashable, low: int, high: int) -> None:
        super().__init__(low, high)
        object.__setattr__(self, "name", name)


@dataclass(frozen=True, eq=False)
class Linear(Expression):
    """A constant plus whole multiples of other expressions."""

    constant: int
    terms: tuple[tuple[int, Expression], ...]


@dataclass(frozen=True, eq=False)
class Positive(Expression):
    """1 if an expression is positive, else 0: every comparison is one of these."""

    of: Expression


@dataclass(frozen=True, eq=False)
class Select(Expression):
    """One expression if the condition is 1, another if it is 0."""

    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True, eq=False)
class Table(Expression):
    """The entry of a table at an index."""

    index: Expression
    entries: tuple[int, ...]


def select(condition: Value, yes: Value, no: Value) -> Expression:
    """`yes` where the condition is 1, `no` where it is 0.

    >>> x = Leaf("x", 0, 7)
    >>> evaluate([select(x < 2, 10, x)], {"x": np.array([1, 5])})[0]
    array([10,  5])
    """
    condition, yes, no = _truth("condition", condition), lift(yes), lift(no)
    if condition.low == condition.high:
        return yes if condition.low else no
    return Select(min(yes.low, no.low), max(yes.high, no.high), condition, yes, no)


def table(at: Value, entries: Sequence[int]) -> Expression:
    """The entry at an index, which must not be able to lie outside the table.

    >>> evaluate([table(Leaf("x", 0, 2), [7, 5, 7])], {"x": np.array([0, 1, 2])})[0]
    array([7, 5, 7])
    """
    at, held = lift(at), tuple(index(entry) for entry in entries)
    if at.low < 0 or at.high >= _entries(len(held)):
        raise InputError("index", given=f"values from {at.low} to {at.high}", expected=f"0 to {len(held) - 1}")
    used = held[at.low : at.high + 1]
    return _bounded(Table(min(used), max(used), at, held)) if len(set(used)) > 1 else lift(used[0])


def equal(a: Value, b: Value) -> Expression:
    """1 where two numbers are equal, else 0.

    >>> evaluate([equal(Leaf("x", 0, 2), 1)], {"x": np.array([0, 1, 2])})[0]
    array([0, 1, 0])
    """
    a, b = lift(a), lift(b)
    return _within(1 - (a < b) - (b < a), 0, 1)


def negation(a: Value) -> Expression:
    """1 for 0 and 0 for 1."""
    return 1 - _truth("a", a)


def both(a: Value, b: Value) -> Expression:
    """1 where two truth values are 1."""
    return _positive(_truth("a", a) + _truth("b", b) - 1)


def either(a: Value, b: Value) -> Expression:
    """1 where one of two truth values is 1, or both are."""
    return _positive(_truth("a", a) + _truth("b", b))


def maximum(a: Value, b: Value) -> Expression:
    """The larger of two numbers."""
    a, b = lift(a), lift(b)
    return _within(select(a < b, b, a), max(a.low, b.low), max(a.high, b.high))


def minimum(a: Value, b: Value) -> Expression:
    """The smaller of two numbers."""
    a, b = lift(a), lift(b)
    return _within(select(a < b, a, b), min(a.low, b.low), min(a.high, b.high))


def pick(at: Value, among: Sequence[Value]) -> Expression:
    """The expression at an index, and 0 where the index is beyond the last.

    >>> x = Leaf("x", 0, 3)
    >>> evaluate([pick(x, [5, x + 5])], {"x": np.array([0, 1, 2])})[0]
    array([5, 6, 0])
    """
    chosen = [select(equal(at, number), value, 0) for number, value in enumerate(among)]
    low, high = min(one.low for one in chosen), max(one.high for one in chosen)
    return _within(_linear([(1, one) for one in chosen]), min(low, 0), max(high, 0))


def evaluate(expressions: Iterable[Expression], leaves: Mapping[Hashable, Numbers]) -> list[Numbers]:
    """The values of expressions, for one machine per entry of the arrays that the leaves have.

    >>> x = Leaf("x", 0, 7)
    >>> evaluate([x + 1, x < 3], {"x": np.array([0, 5])})
    [array([1, 6]), array([1, 0])]
    """
    known: dict[int, Any] = {}
    count = max((len(values) for values in leaves.values()), default=1)

    def value(one: Expression) -> Any:
        if id(one) not in known:
            known[id(one)] = compute(one)
        return known[id(one)]

    def compute(one: Expression) -> Any:
        if isinstance(one, Leaf):
            return leaves[one.name]
        if isinstance(one, Linear):
            total = np.full(count, one.constant, np.int64)
            for factor, term in one.terms:
                total += factor * value(term)
            return total
        if isinstance(one, Positive):
            return (value(one.of) > 0).astype(np.int64)
        if isinstance(one, Select):
            return np.where(value(one.condition) > 0, value(one.yes), value(one.no))
        assert isinstance(one, Table)
        return np.array(one.entries, np.int64)[value(one.index)]

    return [value(one) for one in expressions]


def lift(value: Value) -> Expression:
    """The value as an expression; TypeError if it is neither one nor a whole number.

    >>> lift(3).high
    3
    """
    if isinstance(value, Expression):
        return value
    number = index(value)
    return _bounded(Linear(number, number, number, ()))


def _linear(parts: Iterable[tuple[int, Value]]) -> Expression:
    """A sum with its sums merged and equal terms counted together."""
    constant, found = 0, {}
    for factor, part in parts:
        part = lift(part)
        terms = part.terms if isinstance(part, Linear) and not _tightened(part) else ((1, part),)
        constant += factor * part.constant if isinstance(part, Linear) and not _tightened(part) else 0
        for inner, term in terms:
            held = found.get(id(term), (0, term))[0]
            found[id(term)] = (held + factor * inner, term)
    terms = tuple((factor, term) for factor, term in found.values() if factor)
    if len(terms) == 1 and terms[0][0] == 1 and constant == 0:
        return terms[0][1]
    low, high = _span(constant, terms)
    return _bounded(Linear(low, high, constant, terms))


def _span(constant: int, terms: Iterable[tuple[int, Expression]]) -> tuple[int, int]:
    low = high = constant
    for factor, term in terms:
        ends = factor * term.low, factor * term.high
        low, high = low + min(ends), high + max(ends)
    return low, high


def _tightened(one: Linear) -> bool:
    return (one.low, one.high) != _span(one.constant, one.terms)


def _within(one: Expression, low: int, high: int) -> Expression:
    """The same expression with bounds that are known to be closer."""
    low, high = max(low, one.low), min(high, one.high)
    if (low, high) == (one.low, one.high):
        return one
    if isinstance(one, Select):
        return Select(low, high, one.condition, one.yes, one.no)
    assert isinstance(one, Linear)
    return Linear(low, high, one.constant, one.terms)


def _positive(value: Value) -> Expression:
    of = lift(value)
    if of.low > 0 or of.high <= 0:
        return lift(int(of.low > 0))
    return of if (of.low, of.high) == (0, 1) else Positive(0, 1, of)


def _truth(name: str, value: Value) -> Expression:
    value = lift(value)
    if value.low < 0 or value.high > 1:
        raise InputError(name, given=f"values from {value.low} to {value.high}", expected="0 or 1")
    return value


def _bounded(one: Expression) -> Expression:
    if max(-one.low, one.high) > LARGEST:
        raise InputError("expression", given=f"values from {one.low} to {one.high}", expected="at most 2^52 in size")
    return one


def _entries(count: int) -> int:
    if count > MOST_ENTRIES:
        raise InputError("table", given=f"{count} entries", expected=f"at most {MOST_ENTRIES}: words of few bits")
    return count
