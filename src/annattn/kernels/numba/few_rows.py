"""Codes of the few rows of a decode step, where preparing a hasher anew would take longer than hashing."""

import numpy as np
import torch
from torch import Tensor

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.hashing import hash_rows
from annattn.kernels.numba.projections import dot, project_four, scale_of, set_bounds, spread_of
from annattn.kernels.numba.threads import run_pieces
from annattn.lsh import NO_BUCKET, Hasher, Hyperplane, pairs_of_half_keys

__all__ = ["FewRows", "hash_few"]

_MOST = 512  # rows; of more the other way is faster
_TOGETHER = 4  # rows projected at a time, and columns of them


class FewRows:
    """A hasher that is ready: the same codes as `hashing.hash_rows`, with (batch, heads, tables) in order in memory."""

    def __init__(self, hasher: Hasher) -> None:
        self.hasher = hasher
        # Codes of other families, and wide ones, come from the general way.
        self.ready = type(hasher.family) is Hyperplane and hasher.hashes <= 62
        if self.ready:
            of = hasher.halves() if hasher.shared else hasher
            draws, tables, hashes, dim = of.heads, of.tables, of.hashes, of.dim
            pairs = pairs_of_half_keys(hasher.tables) if hasher.shared else ()
            self._pairs = np.array(pairs, np.int64).reshape(-1, 2)
            normals = hasher.parameters[0].detach().numpy().reshape(-1, dim)
            self._spread = float(spread_of.py_func(dim, np.sqrt((normals.astype(np.float64) ** 2).sum(1).max())))
            # Upright, and by hash before table: so the tables of a row are packed side by side.
            upright = np.zeros((draws, -(-dim // _TOGETHER) * _TOGETHER, hashes, tables), np.float32)
            upright[:, :dim] = normals.reshape(draws, tables, hashes, dim).transpose(0, 3, 2, 1)
            self._upright, self._normals = upright, normals.reshape(draws, tables, hashes, dim)

    def takes(self, *inputs: Tensor) -> bool:
        """Whether these are few rows of one token each that can be hashed here."""
        return (
            self.ready
            and sum(x.shape[0] * x.shape[1] for x in inputs) <= _MOST
            and all(x.shape[2] == 1 and x.numel() and x.dtype in _DTYPES for x in inputs)
        )

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
        """What `hash_few` hashes by."""
        return self._upright, self._normals, self._spread, self._pairs

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Codes (batch, heads, n, tables) of rows (batch, heads, n, dim)."""
        if not self.takes(*inputs):
            return hash_rows(self.hasher, *inputs)
        codes = [np.empty((*x.shape[:3], self.hasher.tables), np.int64) for x in inputs]

        def one(number: int) -> None:
            rows, into = rows_of(inputs[number]), codes[number]
            hash_few(rows, into.shape[1], *self.arrays, into.reshape(-1, into.shape[-1]))

        run_pieces(one, len(inputs), "few")
        return [torch.from_numpy(each) for each in codes]


_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rows_of(x: Tensor) -> np.ndarray:
    """Rows (batch, heads, 1, dim) as a float32 array (batch · heads, dim)."""
    x = x.detach()
    return (x if x.dtype == torch.float32 else x.float()).contiguous().numpy().reshape(-1, x.shape[-1])


@kernel
def hash_few(rows, heads, upright, normals, spread, pairs, codes):
    """Codes (batch · heads, tables) of rows (batch · heads, dim): the signs of projections.

    If tables share half-keys, `pairs` says which two each of them has.
    """
    if len(pairs) == 0:
        _hash_signs(rows, heads, upright, normals, spread, codes)
        return
    _, _, hashes, tables = upright.shape
    halves = np.empty((len(rows), tables), np.int64)
    _hash_signs(rows, heads, upright, normals, spread, halves)
    for row in range(len(rows)):
        for table in range(len(pairs)):
            low, high = halves[row, pairs[table, 0]], halves[row, pairs[table, 1]]
            codes[row, table] = low + (high << np.int64(hashes)) if low >= 0 else low


@kernel
def _hash_signs(rows, heads, upright, normals, spread, codes):
    """The same for tables of their own; the sign of a projection that float32 cannot decide is that of float64."""
    draws, dim, hashes, tables = upright.shape
    width, functions, together = rows.shape[1], hashes * tables, _TOGETHER
    share = heads // draws
    count = len(rows) // heads * share
    flat = upright.reshape(-1)
    taken, product = np.zeros((together, dim), np.float32), np.empty(together * functions, np.float32)
    bounds = np.empty(1, np.float32)
    few = taken.reshape(-1)
    zero = np.float32(0)
    for draw in range(draws):
        for first in range(0, count, together):
            last = min(first + together, count)
            for r in range(first, last):
                at = r // share * heads + draw * share + r % share
                for k in range(width):
                    taken[r - first, k] = rows[at, k]
            project_four(product, 0, few, 0, dim, flat, draw * dim * functions, functions, functions)
            for r in range(first, last):
                at, begin = r // share * heads + draw * share + r % share, (r - first) * functions
                set_bounds(rows, at, spread, bounds)
                into, bound = codes[at], bounds[0]
                into[:] = 0
                for h in range(hashes):
                    line = product[begin + h * tables : begin + (h + 1) * tables]
                    for table in range(tables):
                        into[table] |= np.int64(line[table] >= zero) << np.int64(h)
                doubts = 0
                for k in range(functions):
                    doubts += np.int32(not abs(product[begin + k]) > bound)
                if doubts:
                    _decide(rows[at], normals[draw], product, begin, bound, into)


@kernel
def _decide(row, normals, product, begin, bound, codes):
    """Set the bits in doubt by projections in float64; a row that is not finite has no bucket."""
    tables, hashes, _ = normals.shape
    scale = scale_of(row)
    if scale < 0:
        codes[:] = NO_BUCKET
        return
    for table in range(tables):
        for h in range(hashes):
            if not abs(product[begin + h * tables + table]) > bound:
                bit = np.int64(1) << np.int64(h)
                if dot(row, normals[table, h], scale) >= 0:
                    codes[table] |= bit
                else:
                    codes[table] &= ~bit
