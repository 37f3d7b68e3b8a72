"""LRA ListOps: the value of a nested expression of MIN, MAX, MED and SM."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.errors import InputError
from annattn.tasks.base import Task
from annattn.tasks.splits import fingerprint

__all__ = ["ListOps"]

_BLANK, _FIRST_DIGIT, _FIRST_OPERATOR, _END = 0, 1, 11, 15
_DIGITS, _OPERATORS = 10, ("MIN", "MAX", "MED", "SM")
_OPERATOR_SHARE = 0.25
_TREES = 1024  # grown at once


@final
@dataclass(frozen=True)
class ListOps(Task):
    """Long Range Arena's ListOps: the target at the first position is the value of the whole expression.

    An expression is a digit, or an operator, 2 to `arguments` expressions and a closing bracket. MED is the median,
    rounded down, and SM the sum modulo 10. Expressions are drawn as the benchmark's generator draws them: a node is an
    operator with probability 1/4, unless it is at the largest depth; operators, numbers of arguments and digits are
    uniform; only lengths between `longer_than` and n, both excluded, are kept. The defaults are the benchmark's, and
    as in its input pipeline there are no parentheses: a token is an operator with its opening bracket, a digit or a
    closing bracket. Sequences end with blanks up to n. One answer per sequence: read it with a pooled model.

    The benchmark fixes 96,000 sequences for training and 2,000 each for validation and test. Here every batch is drawn
    afresh, and splits partition the expressions.

    >>> task = ListOps(n=9, longer_than=3)
    >>> task.decode(task.encode("[MAX 2 [SM 9 4 ] ]"))
    '[MAX 2 [SM 9 4 ] ]'
    >>> task.solve(task.encode("[MAX 2 [SM 9 4 ] ]")).tolist()  # 3, whose id is 4
    [4, 0, 0, 0, 0, 0, 0, 0, 0]

    Args:
        n: sequences are padded to this length; expressions are shorter.
        longer_than: expressions are longer than this.
        depth: the largest depth of a node; the root has depth 1.
        arguments: the largest number of arguments.
    """

    n: int = 2000
    longer_than: int = 500
    depth: int = 10
    arguments: int = 10

    def __post_init__(self) -> None:
        self._whole("n", 2, "pass n=2000")
        self._whole("longer_than", 0, "pass longer_than=500")
        self._whole("depth", 1, "pass depth=10")
        self._whole("arguments", 2, "pass arguments=10")
        if self.longer_than + 1 >= self.n:
            raise InputError(
                "longer_than",
                given=self.longer_than,
                expected=f"at most {self.n - 2}, so that a length is below n = {self.n}",
            )

    @property
    def input_vocab(self) -> int:
        """The blank, ten digits, four operators and the closing bracket."""
        return _END + 1

    @property
    def target_vocab(self) -> int:
        """The blank and ten digits."""
        return _FIRST_OPERATOR

    @property
    def special(self) -> Mapping[str, int]:
        """The blank, the digit 0, the first operator (MIN, MAX, MED, SM) and the closing bracket."""
        return {"blank": _BLANK, "first_digit": _FIRST_DIGIT, "first_operator": _FIRST_OPERATOR, "end": _END}

    def encode(self, text: str) -> NDArray[np.int64]:
        """An expression as a padded sequence; parentheses are ignored, as in the benchmark's input pipeline.

        >>> ListOps(n=5, longer_than=0).encode("( [MIN 3 7 ] )").tolist()
        [11, 4, 8, 15, 0]
        """
        symbols = _symbols()
        words = [word for word in text.split() if word not in "()"]
        unknown = [word for word in words if word not in symbols]
        if unknown:
            raise InputError("expression", given=repr(unknown[0]), expected=f"one of {' '.join(symbols)}")
        tokens = [symbols[word] for word in words]
        return self._rows(np.array(tokens + [_BLANK] * (self.n - len(tokens))))[0]

    def decode(self, tokens: ArrayLike) -> str:
        """A sequence as text, without its blanks.

        >>> ListOps(n=5, longer_than=0).decode([11, 4, 8, 15, 0])
        '[MIN 3 7 ]'
        """
        words = {token: word for word, token in _symbols().items()}
        return " ".join(words[token] for token in np.asarray(tokens).tolist() if token != _BLANK)

    def labels(self, inputs: ArrayLike) -> NDArray[np.int64]:
        """Evaluate the operators of all sequences, one depth at a time from the deepest."""
        x = self._rows(inputs)
        flat = x.ravel()
        opens = (flat >= _FIRST_OPERATOR) & (flat < _END)
        # How many brackets are open around each token. Every expression closes all of its own, so rows do not mix.
        around = np.cumsum(opens.astype(np.int64) - (flat == _END)) - opens
        counts = opens | ((flat >= _FIRST_DIGIT) & (flat < _FIRST_OPERATOR))
        value = flat - _FIRST_DIGIT
        for level in range(int(around.max(initial=0)), 0, -1):
            operators = opens & (around == level - 1)
            arguments = counts & (around == level)
            owner = np.cumsum(operators)[arguments] - 1
            value[operators] = _evaluated(flat[operators] - _FIRST_OPERATOR, owner, value[arguments])
        targets = np.full_like(x, _BLANK)
        targets[:, 0] = _FIRST_DIGIT + value.reshape(x.shape)[:, 0]
        return targets.reshape(np.shape(inputs))

    def mask(self, inputs: ArrayLike) -> NDArray[np.bool_]:
        """The first position counts."""
        mask = np.zeros(np.shape(inputs), dtype=np.bool_)
        mask[..., 0] = True
        return mask

    def _solve_one(self, x: list[int]) -> list[int]:
        def value_at(place: int) -> tuple[int, int]:
            """The value of the expression that begins here, and where the next one begins."""
            if x[place] < _FIRST_OPERATOR:
                return x[place] - _FIRST_DIGIT, place + 1
            values, after = [], place + 1
            while x[after] != _END:
                value, after = value_at(after)
                values.append(value)
            operator = _OPERATORS[x[place] - _FIRST_OPERATOR]
            if operator == "MED":
                ordered, half = sorted(values), len(values) // 2
                middle = ordered[half] if len(values) % 2 else int((ordered[half - 1] + ordered[half]) / 2)
                return middle, after + 1
            return {"MIN": min(values), "MAX": max(values), "SM": sum(values) % 10}[operator], after + 1

        return [_FIRST_DIGIT + value_at(0)[0]] + [_BLANK] * (len(x) - 1)

    def _check_tokens(self, x: NDArray[np.int64]) -> None:
        self._check_range(x, _BLANK, _END, "inputs")
        opens, closes, real = (x >= _FIRST_OPERATOR) & (x < _END), x == _END, x != _BLANK
        depth = np.cumsum(opens.astype(np.int64) - closes, axis=1)
        length = real.sum(axis=1)
        place = np.arange(self.n)
        whole = (
            (real == (place < length[:, None])).all(axis=1)  # blanks come last
            & (length > 0)
            & (depth[:, -1] == 0)
            & ((depth > 0) == (place < length[:, None] - 1)).all(axis=1)  # the first bracket is closed by the last
            & ~(opens[:, :-1] & closes[:, 1:]).any(axis=1)  # every operator has an argument
        )
        if not whole.all():
            row = x[np.flatnonzero(~whole)[0]]
            raise InputError(
                "inputs", given=f"a row that begins {row[:8].tolist()}", expected="one expression, then blanks"
            )

    def _draw(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        found = [np.zeros((0, self.n), dtype=np.int64)]
        missing, empty = rows, 0
        while missing > 0:
            some = self._grow(rng)[:missing]
            found.append(some)
            missing -= len(some)
            empty = 0 if len(some) else empty + 1
            if empty == 100:
                raise InputError(
                    "sample",
                    given=f"{100 * _TREES} expressions of other lengths",
                    expected=f"some of {self.longer_than + 1} to {self.n - 1} tokens",
                    hint="take a larger depth, more arguments, or more room between longer_than and n",
                )
        return np.concatenate(found)

    def _grow(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Those of many random expressions that have an allowed length, level by level, and then laid out."""
        tree = np.arange(_TREES)
        length = np.zeros(_TREES, dtype=np.int64)
        levels: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        parent = np.zeros(_TREES, dtype=np.int64)
        for depth in range(1, self.depth + 1):
            operator = rng.random(len(tree)) <= (_OPERATOR_SHARE if depth < self.depth else -1)
            token = np.where(
                operator,
                _FIRST_OPERATOR + rng.integers(len(_OPERATORS), size=len(tree)),
                _FIRST_DIGIT + rng.integers(_DIGITS, size=len(tree)),
            )
            levels.append((tree, parent, token))
            length += np.bincount(tree, weights=1 + operator, minlength=_TREES).astype(np.int64)
            # Expressions only get longer, so those that are too long already are not grown further.
            (growing,) = np.nonzero(operator & (length[tree] < self.n))
            children = rng.integers(2, self.arguments + 1, size=len(growing))
            parent = np.repeat(growing, children)
            tree = tree[parent]
        kept = (length > self.longer_than) & (length < self.n)
        return _laid_out(levels, kept, self.n)

    def _fingerprint(self, x: NDArray[np.int64]) -> NDArray[np.uint64]:
        return fingerprint(x, ordered=True)


def _symbols() -> dict[str, int]:
    digits = {str(digit): _FIRST_DIGIT + digit for digit in range(_DIGITS)}
    return digits | {f"[{name}": _FIRST_OPERATOR + at for at, name in enumerate(_OPERATORS)} | {"]": _END}


def _evaluated(operator: NDArray[np.int64], owner: NDArray[np.int64], value: NDArray[np.int64]) -> NDArray[np.int64]:
    """The value of each operator from the values it owns; owners are in ascending order, and each owns some."""
    value = value[np.lexsort((value, owner))]
    count = np.bincount(owner, minlength=len(operator))
    first = np.cumsum(count) - count
    median = (value[first + (count - 1) // 2] + value[first + count // 2]) // 2
    total = np.add.reduceat(value, first) % 10
    return np.choose(operator, [value[first], value[first + count - 1], median, total])


def _laid_out(
    levels: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]], kept: NDArray[np.bool_], n: int
) -> NDArray[np.int64]:
    """Sequences of the kept trees from their nodes, level by level: (tree, number of the parent, token)."""
    sizes = [1 + (token >= _FIRST_OPERATOR) for _, _, token in levels]
    for above, (_, parent, _), below in zip(sizes[-2::-1], levels[:0:-1], sizes[:0:-1], strict=True):
        np.add.at(above, parent, below)
    rows = np.cumsum(kept) - 1
    out = np.full((int(kept.sum()), n), _BLANK, dtype=np.int64)
    start = np.zeros(len(kept), dtype=np.int64)
    for depth, ((tree, parent, token), size) in enumerate(zip(levels, sizes, strict=True)):
        if depth:
            # Siblings stand next to each other: each begins where the one before ends.
            before = np.cumsum(size) - size
            eldest = np.searchsorted(parent, parent)
            start = start[parent] + 1 + before - before[eldest]
        mine = kept[tree]
        row, place = rows[tree[mine]], start[mine]
        out[row, place] = token[mine]
        brackets = token[mine] >= _FIRST_OPERATOR
        out[row[brackets], (place + size[mine] - 1)[brackets]] = _END
    return out
