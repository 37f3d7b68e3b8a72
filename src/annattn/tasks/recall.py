"""Multi-query associative recall: key-value pairs first, then queries for their values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.errors import InputError
from annattn.tasks.base import Task
from annattn.tasks.distinct import draw_distinct
from annattn.tasks.splits import fingerprint

__all__ = ["AssociativeRecall"]

_BLANK, _NULL, _FIRST_VALUE = 0, 1, 2


@final
@dataclass(frozen=True)
class AssociativeRecall(Task):
    """Multi-query associative recall: k_1 v_1 … k_D v_D, then queries; a query's target is the value of its key.

    The paper calls its induction heads "associative recall" too; this is the standard test with many queries. The keys
    of the pairs differ. Queries are keys of the pairs, drawn uniformly, at random places in the rest of the sequence;
    its other places hold the blank. `labels` and `solve` also take inputs that the sampler never draws: of a repeated
    key the last pair wins, and a key without a pair gets the null symbol. Only queries count. Splits partition the sets
    of pairs, so held-out pairs are never the training pairs in another order.

    >>> task = AssociativeRecall(n=8, pairs=2, queries=2, keys=4, values=4)
    >>> key, value = task.special["first_key"], task.special["first_value"]
    >>> x = [key + 1, value + 3, key + 2, value, 0, key + 2, key + 3, key + 1]
    >>> task.solve(x).tolist()
    [0, 0, 0, 0, 0, 2, 1, 5]

    Args:
        n: length of a sequence.
        pairs: the number of key-value pairs, D.
        queries: the number of queries; by default they fill the rest of the sequence.
        keys: the number of keys to draw from.
        values: the number of values to draw from.
    """

    n: int = 256
    pairs: int = 64
    queries: int | None = None
    keys: int = 256
    values: int = 256

    def __post_init__(self) -> None:
        self._whole("n", 3, "pass n=256: a pair and a query take three tokens")
        self._whole("pairs", 1, "pass pairs=64")
        self._whole("keys", self.pairs, f"pass keys={self.pairs} or more: the keys of the pairs differ")
        self._whole("values", 1, "pass values=256")
        if self.queries is not None:
            self._whole("queries", 1, "pass queries=None to fill the rest of the sequence")
        if 2 * self.pairs + (self.queries or 1) > self.n:
            raise InputError(
                "n",
                given=self.n,
                expected=f"at least {2 * self.pairs + (self.queries or 1)}, for two tokens per pair and one per query",
                hint="take a larger n, or fewer pairs or queries",
            )

    @property
    def input_vocab(self) -> int:
        """Blank, null, the values and the keys."""
        return _FIRST_VALUE + self.values + self.keys

    @property
    def target_vocab(self) -> int:
        """Blank, null and the values."""
        return _FIRST_VALUE + self.values

    @property
    def special(self) -> Mapping[str, int]:
        """The blank, the null symbol, the first value and the first key."""
        return {
            "blank": _BLANK,
            "null": _NULL,
            "first_value": _FIRST_VALUE,
            "first_key": _FIRST_VALUE + self.values,
        }

    def labels(self, inputs: ArrayLike) -> NDArray[np.int64]:
        """Look up the queries in a table that has, for every key of a row, the number of its last pair."""
        x = self._rows(inputs)
        rows = np.arange(len(x))[:, None]
        cut = 2 * self.pairs
        last_pair = np.zeros((len(x), self.input_vocab), dtype=np.int64)
        # A maximum, because NumPy does not specify which of several assignments to one place wins.
        np.maximum.at(last_pair, (rows, x[:, :cut:2]), np.arange(1, self.pairs + 1))
        values = np.concatenate([np.full((len(x), 1), _NULL), x[:, 1:cut:2]], axis=1)
        targets = np.full_like(x, _BLANK)
        targets[:, cut:] = np.where(x[:, cut:] == _BLANK, _BLANK, values[rows, last_pair[rows, x[:, cut:]]])
        return targets.reshape(np.shape(inputs))

    def mask(self, inputs: ArrayLike) -> NDArray[np.bool_]:
        """Queries count."""
        mask = np.asarray(inputs) != _BLANK
        mask[..., : 2 * self.pairs] = False
        return mask

    def _solve_one(self, x: list[int]) -> list[int]:
        targets = []
        for position, token in enumerate(x):
            target = _BLANK
            if position >= 2 * self.pairs and token != _BLANK:
                target = _NULL
                for pair in range(self.pairs):
                    if x[2 * pair] == token:
                        target = x[2 * pair + 1]
            targets.append(target)
        return targets

    def _check_tokens(self, x: NDArray[np.int64]) -> None:
        first_key, cut = self.special["first_key"], 2 * self.pairs
        self._check_range(x[:, :cut:2], first_key, self.input_vocab - 1, "keys of the pairs")
        self._check_range(x[:, 1:cut:2], _FIRST_VALUE, first_key - 1, "values of the pairs")
        rest = x[:, cut:]
        self._check_range(rest[rest != _BLANK], first_key, self.input_vocab - 1, "queries")

    def _draw(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        cut = 2 * self.pairs
        x = np.full((rows, self.n), _BLANK, dtype=np.int64)
        x[:, :cut:2] = self.special["first_key"] + draw_distinct(rng, rows, self.pairs, self.keys)
        x[:, 1:cut:2] = _FIRST_VALUE + rng.integers(self.values, size=(rows, self.pairs))
        queries = self.n - cut if self.queries is None else self.queries
        asked = 2 * rng.integers(self.pairs, size=(rows, queries))
        places = cut + draw_distinct(rng, rows, queries, self.n - cut)
        np.put_along_axis(x, places, np.take_along_axis(x, asked, axis=1), axis=1)
        return x

    def _fingerprint(self, x: NDArray[np.int64]) -> NDArray[np.uint64]:
        cut = 2 * self.pairs
        return fingerprint(x[:, :cut:2] * self.input_vocab + x[:, 1:cut:2], ordered=False)
