"""Drawing distinct symbols for many rows at once."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_distinct"]


def draw_distinct(rng: np.random.Generator, rows: int, count: int, population: int) -> NDArray[np.int64]:
    """For every row, draw `count` different numbers below `population`, in random order.

    >>> import numpy as np
    >>> sorted(draw_distinct(np.random.default_rng(0), 1, 3, 3)[0].tolist())
    [0, 1, 2]
    """
    if population <= 2 * count:
        everything = np.tile(np.arange(population, dtype=np.int64), (rows, 1))
        return rng.permuted(everything, axis=1)[:, :count]
    # A permutation of a large population costs too much, so repeated numbers are drawn again. That treats all numbers
    # alike, so every set is equally likely. Half of the population stays free, so a few rounds are enough.
    drawn = np.sort(rng.integers(population, size=(rows, count)), axis=1)
    while True:
        repeated = np.zeros(drawn.shape, dtype=np.bool_)
        repeated[:, 1:] = drawn[:, 1:] == drawn[:, :-1]
        repeats = int(repeated.sum())
        if not repeats:
            return rng.permuted(drawn, axis=1)
        drawn[repeated] = rng.integers(population, size=repeats)
        drawn.sort(axis=1)
