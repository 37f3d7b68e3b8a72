"""Stable sorting of machine numbers and of words: what engines and protocols spend their time on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Order", "order_within", "stable_order"]

Order = NDArray[np.int64]


def stable_order(column: NDArray[np.integer[Any]], bound: int) -> Order | None:
    """The permutation that sorts numbers in [0, bound) stably, or None if they are already sorted.

    >>> stable_order(np.array([1, 0, 1]), 2)
    array([1, 0, 2])
    """
    if len(column) < 2 or bool((column[1:] >= column[:-1]).all()):
        return None
    if bound > 2**32:
        return np.argsort(column, kind="stable")
    # NumPy sorts 16-bit integers by radix, which is several times faster, so sort by one half at a time. The cast keeps
    # the lower half.
    order = np.argsort(column.astype(np.uint16), kind="stable")
    if bound > 2**16:
        order = order[np.argsort((column >> 16).astype(np.uint16)[order], kind="stable")]
    return order


def order_within(machine: NDArray[np.int64], columns: Sequence[NDArray[np.uint64]]) -> Order:
    """The permutation that sorts each machine's records by the columns, first column first; ties keep their order.

    `machine` must be non-decreasing, as in delivered mail.

    >>> order_within(np.array([0, 0, 1]), [np.array([5, 2, 1], dtype=np.uint64)])
    array([1, 0, 2])
    """
    if len(machine) == 0:
        return np.zeros(0, np.int64)
    packed = _packed([(machine - machine[0]).astype(np.uint64), *columns])
    if packed is not None:
        return _argsort([packed])
    keys = _packed(columns)
    starts = np.flatnonzero(np.diff(machine, prepend=machine[0] - 1))
    # Many short sorts beat one long sort until the loop over machines costs more than it saves.
    if len(machine) < 64 * len(starts):
        return np.lexsort([*([keys] if keys is not None else columns[::-1]), machine])
    order = np.empty(len(machine), np.int64)
    for start, end in zip(starts, [*starts[1:], len(machine)], strict=True):
        inside = [keys[start:end]] if keys is not None else [column[start:end] for column in columns]
        order[start:end] = _argsort(inside)
        order[start:end] += start
    return order


def _argsort(columns: Sequence[NDArray[np.uint64]]) -> Order:
    # NumPy's default sort is the fastest but not stable. That matters only if there are ties.
    order = np.argsort(columns[0])
    first = columns[0][order]
    if (first[1:] == first[:-1]).any():
        order = np.lexsort(columns[::-1])
    return order


def _packed(columns: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64] | None:
    """One column that sorts as all the columns do, if their bits fit into one word."""
    if len(columns) == 1:
        return columns[0]
    widths = [int(column.max()).bit_length() for column in columns]
    if sum(widths) > 64:
        return None
    packed = columns[0]
    for column, width in zip(columns[1:], widths[1:], strict=True):
        packed = (packed << np.uint64(width)) | column
    return packed
