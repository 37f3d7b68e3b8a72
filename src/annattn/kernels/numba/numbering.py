"""Wide codes and whole rows as small numbers, exactly: equal ones, and only those, get the same number."""

import numpy as np

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.threads import Run
from annattn.lsh import IGNORED
from annattn.seeds import splitmix64

__all__ = ["number_codes", "number_rows", "room_for", "slots_of"]

_mixed = kernel(splitmix64)


def slots_of(targets: np.ndarray, sources: np.ndarray, buckets: int, run: Run) -> tuple[np.ndarray, np.ndarray, int]:
    """Codes (share, n, tables) of one group as slots of tables, and how many a table needs.

    A code below `buckets` is its own slot, unless there are so many that the tables would outgrow the rows.
    """
    tables = targets.shape[-1]
    if 0 < buckets <= 4 * (targets.shape[1] + sources.shape[1]):
        return targets, sources, buckets
    flat = [np.ascontiguousarray(x.reshape(-1, tables).T) for x in (targets, sources)]
    numbered = [np.empty(x.shape, np.int64) for x in flat]
    used = [0] * tables

    def number(table: int) -> None:
        names = np.empty(room_for(flat[1].shape[1]), np.int64)
        numbers = np.empty(len(names), np.int32)
        used[table] = number_codes(*(x[table] for x in flat), names, numbers, *(x[table] for x in numbered))

    run(number, tables)
    return numbered[0].T.reshape(targets.shape), numbered[1].T.reshape(sources.shape), max(1, *used)


@kernel
def number_codes(targets, sources, names, numbers, new_targets, new_sources):
    """Number the codes of `sources` in order of appearance, exactly; targets that meet none of them get IGNORED.

    Open addressing with the full code compared, so that no two codes ever share a number. `names` and `numbers` are
    room to work in, of `room_for` the sources. Returns how many numbers there are.
    """
    names[:] = -1
    mask = np.uint64(len(names) - 1)
    used = 0
    for row in range(len(sources)):
        code = sources[row]
        if code < 0:
            new_sources[row] = code
            continue
        at = _find(names, mask, code)
        if names[at] == -1:
            names[at] = code
            numbers[at] = used
            used += 1
        new_sources[row] = numbers[at]
    for row in range(len(targets)):
        code = targets[row]
        if code < 0:
            new_targets[row] = code
            continue
        at = _find(names, mask, code)
        new_targets[row] = numbers[at] if names[at] == code else IGNORED
    return used


@kernel
def _find(names, mask, code):
    """Where a code stands, or the free place where it would."""
    at = _mixed(np.uint64(code)) & mask
    while names[at] != -1 and names[at] != code:
        at = (at + np.uint64(1)) & mask
    return at


@kernel
def number_rows(rows, usable, numbers):
    """Number equal rows (n, width) of int64 alike, in order of appearance; those not usable get IGNORED.

    The same open addressing, with whole rows compared.
    """
    count, width = rows.shape
    holders = np.full(room_for(count), -1, np.int64)
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
def room_for(entries):
    """A power of two with at least half of it free."""
    size = 16
    while size < 2 * entries:
        size *= 2
    return size
