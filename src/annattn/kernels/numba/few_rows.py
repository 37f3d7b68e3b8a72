"""Codes of the few rows of a decode step, where preparing a hasher anew would take longer than hashing."""

import numpy as np
import torch
from torch import Tensor

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.hashing import _SLACK, _UNIT, _dot, _scale, _set_bounds, hash_rows
from annattn.kernels.numba.threads import run_pieces
from annattn.lsh import NO_BUCKET, Hasher, Hyperplane

__all__ = ["FewRows"]

_MOST = 512  # rows; of more the other way is faster


class FewRows:
    """A hasher that is ready: the same codes as `hashing.hash_rows`, with (batch, heads, tables) in order in memory."""

    def __init__(self, hasher: Hasher) -> None:
        self.hasher = hasher
        # Codes of other families, and wide ones, come from the general way.
        self._ready = type(hasher.family) is Hyperplane and hasher.hashes <= 62
        if self._ready:
            vectors = hasher.parameters[0].detach()
            unit = (hasher.dim + 1) * _UNIT
            self._spread = _SLACK * unit / (1 - unit) * float(vectors.double().square().sum(1).max().sqrt())
            self._vectors = vectors.float().reshape(hasher.heads, -1, hasher.dim)
            self._planes = vectors.numpy()

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Codes (batch, heads, n, tables) of rows (batch, heads, n, dim)."""
        hasher, one = self.hasher, inputs[0]
        few = sum(x.shape[0] * x.shape[1] * x.shape[2] for x in inputs) <= _MOST
        if (
            not (self._ready and few and all(x.shape[2] == 1 and x.numel() and x.dtype == one.dtype for x in inputs))
            or one.dtype == torch.float64
            or not one.dtype.is_floating_point
            or torch.get_float32_matmul_precision() != "highest"
        ):
            return hash_rows(hasher, *inputs)
        # Rows in order of their draws: (draws, rows, dim).
        draws, dim = hasher.heads, hasher.dim
        if draws == 1:
            rows = torch.cat([x.detach().reshape(1, -1, dim) for x in inputs], 1)
        else:
            rows = torch.cat([x.detach().reshape(-1, draws, x.shape[1] // draws, dim).transpose(0, 1).flatten(1, 2)
                              for x in inputs], 1)  # fmt: skip
        rows = rows.float()
        product = torch.empty(draws, rows.shape[1], self._vectors.shape[1], device="cpu")
        # Autocast knows both products, and leaves those with an `out` alone.
        if draws == 1:
            torch.mm(rows[0], self._vectors[0].T, out=product[0])
        else:
            torch.bmm(rows, self._vectors.transpose(1, 2), out=product)
        codes = np.empty((draws, rows.shape[1], hasher.tables), np.int64)
        run_pieces(
            lambda _: _pack(product.numpy(), rows.numpy(), self._planes, self._spread, hasher.hashes, codes), 1, "few"
        )
        parts, begin = [], 0
        for x in inputs:
            batch, heads = x.shape[:2]
            mine = codes[:, begin : begin + batch * heads // draws]
            begin += batch * heads // draws
            if draws > 1:
                mine = mine.reshape(draws, batch, heads // draws, -1).swapaxes(0, 1)
            parts.append(torch.from_numpy(np.ascontiguousarray(mine).reshape(batch, heads, 1, hasher.tables)))
        return parts


@kernel
def _pack(product, rows, planes, spread, hashes, codes):
    """Codes from projections; the sign of one that float32 cannot decide is that of float64."""
    draws, count, tables = codes.shape
    bounds = np.empty(count, np.float32)
    for draw in range(draws):
        _set_bounds(rows[draw], 0, spread, bounds)
        for r in range(count):
            line, bound = product[draw, r], bounds[r]
            scale = 0.0 if bound < np.inf else _scale(rows[draw, r])
            if scale < 0:
                codes[draw, r, :] = NO_BUCKET
                continue
            for table in range(tables):
                code = np.int64(0)
                for h in range(hashes):
                    projection = line[table * hashes + h]
                    positive = projection >= np.float32(0)
                    if not abs(projection) > bound:
                        of = planes[(draw * tables + table) * hashes + h]
                        positive = _dot(rows[draw, r], of, _scale(rows[draw, r])) >= 0
                    code |= np.int64(positive) << np.int64(h)
                codes[draw, r, table] = code
