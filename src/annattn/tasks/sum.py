"""SUM: add all numbers of the sequence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.tasks.base import Task
from annattn.tasks.splits import fingerprint

__all__ = ["Sum"]


@final
@dataclass(frozen=True)
class Sum(Task):
    """Definition SUM: the last position holds x_1 + … + x_N, for x_i in {1, …, M}; every other position is blank.

    The numbers start at 1, so a sum is never 0, and 0 can be the blank. Order does not matter, so splits partition the
    multisets: held-out data is never a permutation of training data.

    >>> Sum(n=4, largest=9).solve([1, 9, 2, 2]).tolist()
    [0, 0, 0, 14]

    Args:
        n: length of a sequence, the paper's N.
        largest: largest number, the paper's M.
    """

    n: int = 32
    largest: int = 37

    def __post_init__(self) -> None:
        self._whole("n", 1, "pass n=32")
        self._whole("largest", 1, "pass largest=37")

    @property
    def input_vocab(self) -> int:
        """M + 1: the numbers and the unused 0."""
        return self.largest + 1

    @property
    def target_vocab(self) -> int:
        """N·M + 1: every sum and the blank."""
        return self.n * self.largest + 1

    @property
    def special(self) -> Mapping[str, int]:
        """The blank, for positions without an answer."""
        return {"blank": 0}

    def labels(self, inputs: ArrayLike) -> NDArray[np.int64]:
        """Write the sum at the last position and the blank elsewhere."""
        rows = self._rows(inputs)
        targets = np.zeros_like(rows)
        targets[:, -1] = rows.sum(axis=1)
        return targets.reshape(np.shape(inputs))

    def mask(self, inputs: ArrayLike) -> NDArray[np.bool_]:
        """The last position counts."""
        mask = np.zeros(np.shape(inputs), dtype=np.bool_)
        mask[..., -1] = True
        return mask

    def _solve_one(self, x: list[int]) -> list[int]:
        total = 0
        for number in x:
            total += number
        return [0] * (len(x) - 1) + [total]

    def _check_tokens(self, x: NDArray[np.int64]) -> None:
        self._check_range(x, 1, self.largest, "inputs")

    def _draw(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return rng.integers(1, self.largest + 1, size=(rows, self.n))

    def _fingerprint(self, x: NDArray[np.int64]) -> NDArray[np.uint64]:
        return fingerprint(x, ordered=False)
