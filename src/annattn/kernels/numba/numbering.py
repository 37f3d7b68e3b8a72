"""Wide codes and whole rows as small numbers, exactly: equal ones, and only those, get the same number."""

import numpy as np

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.threads import Run
from annattn.lsh import IGNORED
from annattn.seeds import splitmix64

__all__ = ["number_rows", "slots_of"]

_mixed = kernel(splitmix64)


def slots_of(targets: np.ndarray, sources: np.ndarray, buckets: int, run: Run) -> tuple[np.ndarray, np.ndarray, int]:
    """Codes (share, n, tables) of one group as slots of tables, and how many a table needs.

    A code below `buckets` is its own slot, unless there are so many that the tables would outgrow the rows.
    """
    tables = targets.shape[-1]
    if 0 < buckets <= 4 * (targets.shape[1] + sources.shape[1]):
        return targets, sources, buckets
    flat_targets, flat_sources = targets.reshape(-1, tables), sources.reshape(-1, tables)
    new_targets, new_sources = np.empty_like(flat_targets), np.empty_like(flat_sources)
    used = [0] * tables

    def number(table: int) -> None:
        used[table] = _number_codes(flat_targets, flat_sources, table, new_targets, new_sources)

    run(number, tables)
    return new_targets.reshape(targets.shape), new_sources.reshape(sources.shape), max(1, *used)


@kernel
def _number_codes(targets, sources, table, new_targets, new_sources):
    """Number the codes of `sources` in order of appearance, exactly; targets that meet none of them get IGNORED.

    Open addressing with the full code compared, so that no two codes ever share a number. Returns how many there are.
    """
    names = np.full(_room(sources.shape[0]), -1, np.int64)
    numbers = np.empty(len(names), np.int64)
    mask = np.uint64(len(names) - 1)
    used = 0
    for row in range(sources.shape[0]):
        code = sources[row, table]
        if code < 0:
            new_sources[row, table] = code
            continue
        at = _mixed(np.uint64(code)) & mask
        while names[at] != -1 and names[at] != code:
            at = (at + np.uint64(1)) & mask
        if names[at] == -1:
            names[at] = code
            numbers[at] = used
            used += 1
        new_sources[row, table] = numbers[at]
    for row in range(targets.shape[0]):
        code = targets[row, table]
        if code < 0:
            new_targets[row, table] = code
            continue
        at = _mixed(np.uint64(code)) & mask
        while names[at] != -1 and names[at] != code:
            at = (at + np.uint64(1)) & mask
        new_targets[row, table] = numbers[at] if names[at] == code else IGNORED
    return used


@kernel
def number_rows(rows, usable, numbers):
    """Number equal rows (n, width) of int64 alike, in order of appearance; those not usable get IGNORED.

    The same open addressing, with whole rows compared.
    """
    count, width = rows.shape
    holders = np.full(_room(count), -1, np.int64)
    mask = np.uint64(len(holders) - 1)
    used = 0
    for row in range(count):
        if not usable[row]:
            numbers[row] = IGNORED
            continue
        at = np.uint64(0)
        for k in range(width):
            at = _mixed(at ^ np.uint64(rows[row, k]))
        at &= mask
        while True:
            holder = holders[at]
            if holder == -1:
                holders[at] = row
                numbers[row] = used
                used += 1
                break
            same = True
            for k in range(width):
                if rows[holder, k] != rows[row, k]:
                    same = False
                    break
            if same:
                numbers[row] = numbers[holder]
                break
            at = (at + np.uint64(1)) & mask


@kernel
def _room(entries):
    """A power of two with at least half of it free."""
    size = 16
    while size < 2 * entries:
        size *= 2
    return size
