"""Hyperplane codes on a CPU: float32 speed, float64 answers.

Projections are computed in float32 with a rigorous bound on their rounding error; the few whose sign that error could
have decided are computed again in float64. So the codes are those of `Hyperplane.evaluate`, in any order of blocks.
"""

import numpy as np

from annattn.kernels.compiled import kernel
from annattn.kernels.simd import COLUMNS, ROWS, sign_panel

__all__ = ["hyperplane_codes", "padded_columns"]

# |float32 dot product − exact| ≤ γ_d ‖x‖‖a‖ with γ_d = d·u/(1 − d·u), u = 2^−24; a little more covers the rounding of
# the bound itself.
_UNIT = 2.0**-24
_SLACK = 1.01


def padded_columns(normals: np.ndarray) -> tuple[np.ndarray, float]:
    """Normals (functions, dim) as columns (dim, functions rounded up to whole panels), and the longest norm."""
    functions, dim = normals.shape
    columns = np.zeros((dim, -(-functions // COLUMNS) * COLUMNS), np.float32)
    columns[:, :functions] = normals.T
    return columns, float(np.sqrt((normals.astype(np.float64) ** 2).sum(1).max()))


@kernel(fastmath={"reassoc", "contract", "nsz"})
def _square_norm(row, dim, step):
    total = np.float32(0)
    for k in range(dim):
        total += row[k * step] * row[k * step]
    return total


@kernel
def _is_positive(row, step, columns, column):
    total = 0.0
    for k in range(columns.shape[0]):
        total += np.float64(row[k * step]) * np.float64(columns[k, column])
    return total >= 0


@kernel
def hyperplane_codes(x, base, stride, step, columns, longest, tables, hashes, codes, start, stop):
    """Write codes[start:stop] (n, tables); -1 for rows that are not finite.

    Entry k of row i is x[base + i · stride + k · step], float32.
    """
    dim = columns.shape[0]
    unit = dim * _UNIT
    spread = np.float32(_SLACK * unit / (1 - unit) * longest)
    bounds = np.empty(ROWS, np.float32)
    words = np.empty((ROWS, columns.shape[1] // 64 + 2), np.uint64)
    usable = np.empty(ROWS, np.bool_)
    for first in range(start, stop, ROWS):
        rows = min(ROWS, stop - first)
        for r in range(ROWS):
            row = x[base + min(first + r, stop - 1) * stride :]
            square = _square_norm(row, dim, step) if step != 1 else _square_norm(row, dim, 1)
            usable[r] = True
            # Outside this range float32 squares overflow or lose digits: then every sign is in doubt.
            if square > 1e-20 and square < 1e35:
                bounds[r] = spread * np.sqrt(square)
            else:
                bounds[r] = np.inf
                for k in range(dim):
                    if not np.isfinite(row[k * step]):
                        usable[r] = False
        words[:] = 0
        for column in range(0, columns.shape[1], COLUMNS):
            signs, doubts = sign_panel(x, base, stride, step, first, stop - 1, columns, column, bounds)
            for r in range(rows):
                bits = (signs >> np.uint64(COLUMNS * r)) & np.uint64(0xFFFF)
                doubt = (doubts >> np.uint64(COLUMNS * r)) & np.uint64(0xFFFF)
                if doubt != 0 and usable[r]:
                    for j in range(COLUMNS):
                        one = np.uint64(1) << np.uint64(j)
                        if doubt & one:
                            bits &= ~one
                            if _is_positive(x[base + (first + r) * stride :], step, columns, column + j):
                                bits |= one
                words[r, column >> 6] |= bits << np.uint64(column & 63)
        mask = (np.uint64(1) << np.uint64(hashes)) - np.uint64(1)
        for r in range(rows):
            for table in range(tables):
                place = table * hashes
                low, shift = place >> 6, np.uint64(place & 63)
                code = words[r, low] >> shift
                if shift != 0:
                    code |= words[r, low + 1] << (np.uint64(64) - shift)
                codes[first + r, table] = np.int64(code & mask) if usable[r] else -1
