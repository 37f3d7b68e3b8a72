"""Sums over buckets: cuts the work into pieces, and lets `run_pieces` share them out.

Pieces are of fixed size and every sum has a fixed order, so results are the same to the bit for any number of threads.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.numba import memory
from annattn.kernels.numba.buckets import fill, join, read, scan
from annattn.kernels.numba.compiled import say_if_slow
from annattn.kernels.numba.numbering import slots_of
from annattn.kernels.numba.simd import LANES
from annattn.kernels.numba.threads import Run, run_groups, run_pieces

__all__ = ["bucket_sums"]

_ROWS = 2048  # rows read in one piece
_BLOCK = 131_072  # sources put into buckets in one piece, at least
_BLOCKS = 16  # and how many such pieces there are, at most: each has sums of its own
_TABLES = 2  # tables filled in one piece
_COLUMNS = 16  # columns scanned in one piece, at least

_TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


def bucket_sums(
    target_codes: Tensor,
    source_codes: Tensor,
    value: Tensor,
    order: int,
    buckets: int,
    one_table_at_a_time: bool,
    lost: np.ndarray,
    *,
    divide: bool,
) -> tuple[Tensor, Tensor]:
    """Sums, or means if `divide`, and counts: see `Backend`. Sets lost[0] if a row without a bucket is met."""
    heads, share, share_sources = heads_and_shares(target_codes, source_codes)
    batch, _, n, tables = target_codes.shape
    m, width = source_codes.shape[2], value.shape[-1]
    if not target_codes.numel() or not source_codes.numel():
        lost[0] = True  # for all that is known: nobody looked
        return value.new_zeros(*target_codes.shape[:3], width), torch.zeros(target_codes.shape[:3], dtype=torch.int64)
    total = memory.empty(*target_codes.shape[:3], width, dtype=value.dtype)
    count = memory.empty(*target_codes.shape[:3])
    targets = target_codes.contiguous().numpy().reshape(batch * heads, share, n, tables)
    sources = source_codes.contiguous().numpy().reshape(batch * heads, share_sources, m, tables)
    totals, counts = total.numpy().reshape(batch * heads, -1), count.numpy().reshape(batch * heads, share, n)
    flat, base, stride = memory.flat(value)
    chunks = [(table, 1) for table in range(tables)] if one_table_at_a_time else [(0, tables)]

    def one_group(group: int, run: Run) -> None:
        b, h = divmod(group, heads)
        bases = np.array([base(b, h * share_sources + head) for head in range(share_sources)], dtype=np.int64)
        codes = slots_of(targets[group], sources[group], buckets, run)
        for first, length in chunks:
            chunk = _Chunk(*codes, first, length, flat, bases, stride, width, divide and first + length == tables, lost)
            chunk.add(run, order, totals[group], counts[group])

    with say_if_slow("sums", value.dtype, order == 0):
        run_groups(one_group, batch * heads)
    return total, count


@dataclass(frozen=True)
class _Chunk:
    """The tables of one group that are worked on together."""

    targets: np.ndarray  # (share, n, tables)
    sources: np.ndarray  # (share, m, tables)
    slots: int
    first: int
    tables: int
    flat: np.ndarray
    bases: np.ndarray
    stride: int
    width: int
    divide: bool
    lost: np.ndarray

    def add(self, run: Run, order: int, total: np.ndarray, count: np.ndarray) -> None:
        """Add these tables to the totals: fill, then read; causal, fill and read in one scan."""
        m = self.sources.shape[1]
        # As many blocks as hold no more sums than there are values, whatever the threads. Strips of rows add up in the
        # dtype of the values and strips in float64, so that rounding grows with the strip, not with the bucket.
        blocks = min(_BLOCKS, max(1, m // max(_BLOCK, 2 * self.tables * self.slots)))
        edges = [m * block // blocks for block in range(blocks + 1)]
        sums = np.zeros((blocks, self.tables, self.slots * self.width))
        tally = np.zeros((blocks, self.tables, self.slots), np.int64)
        if order == 0:
            self._fill(run, edges, False, sums, tally)
            whole = sums[0] if blocks == 1 else sums.sum(0)
            self._read(run, whole.astype(self.flat.dtype).reshape(-1), tally.sum(0), total, count)
            return
        if blocks > 1:
            self._fill(run, edges[:-1], order < 0, sums, tally)
            # A block starts from the sums of those before it.
            sums[1:], tally[1:] = np.cumsum(sums[:-1], 0), np.cumsum(tally[:-1], 0)
            sums[0], tally[0] = 0, 0
        self._scan(run, edges, order, sums, tally, total, count)

    def _fill(self, run: Run, edges: list[int], reverse: bool, sums: np.ndarray, tally: np.ndarray) -> None:
        m = self.sources.shape[1]
        parts = -(-self.tables // _TABLES)

        def one(piece: int) -> None:
            block, part = divmod(piece, parts)
            here = slice(part * _TABLES, min((part + 1) * _TABLES, self.tables))
            begin, end = edges[block], edges[block + 1]
            if reverse:
                begin, end = m - end, m - begin
            for head, base in enumerate(self.bases):
                fill(
                    self.sources[head], self.first + here.start, here.stop - here.start, self.flat, base, self.stride,
                    self.width, begin, end, sums[block, here].reshape(-1), tally[block, here], self.lost,
                )  # fmt: skip

        run(one, (len(edges) - 1) * parts)

    def _read(self, run: Run, sums: np.ndarray, tally: np.ndarray, total: np.ndarray, count: np.ndarray) -> None:
        share, n, _ = self.targets.shape
        parts = -(-n // _ROWS)
        rows = total.reshape(share, -1)

        def one(piece: int) -> None:
            head, part = divmod(piece, parts)
            read(
                self.targets[head], self.first, sums, tally, self.width, part * _ROWS, min((part + 1) * _ROWS, n),
                self.first == 0, self.divide, rows[head], count[head], self.lost,
            )  # fmt: skip

        run(one, share * parts)

    def _scan(self, run: Run, edges, order, sums, tally, total, count) -> None:
        share, n, _ = self.targets.shape
        horizon = self.sources.shape[1] - n if order > 0 else 0
        blocks = len(edges) - 1
        # One block alone is scanned twice at a time, each time for half of the tables, and the halves are added up.
        halves = 2 if blocks == 1 and self.tables > 1 and self.first == 0 else 1
        seams = [self.tables * half // halves for half in range(halves + 1)]
        # Columns know nothing of each other: while there are threads left, each piece has some of them.
        threads = torch.get_num_threads() if run is run_pieces else 1
        parts = max(1, min(-(-threads // (blocks * halves)), self.width // _COLUMNS))
        cuts = [self.width * part // parts // LANES * LANES for part in range(parts)] + [self.width]
        totals = [total] + [memory.empty(len(total), dtype=_TORCH[total.dtype]).numpy() for _ in range(halves - 1)]
        if self.first == 0 and horizon < 0:
            # Targets before the first source see nothing, and no scan comes by to look at them.
            self.lost[0] = True
            for each in totals:
                each.reshape(share, n, -1)[:, :-horizon] = 0
            count[:, :-horizon] = 0
        counts = [[count if half + part == 0 else count.copy() for part in range(parts)] for half in range(halves)]

        def one(piece: int) -> None:
            block, piece = divmod(piece, halves * parts)
            half, part = divmod(piece, parts)
            here, first, last = slice(seams[half], seams[half + 1]), cuts[part], cuts[part + 1]
            mine = (
                sums[block, here].reshape((here.stop - here.start) * self.slots, self.width)[:, first:last].reshape(-1)
            )
            span = (edges[block], edges[block + 1], block == blocks - 1)
            scan(
                self.targets, self.sources, self.first + here.start, self.flat, self.bases + first, self.stride,
                last - first, span, horizon, order < 0, self.first == 0, self.divide and halves == 1, mine,
                tally[block, here].copy(), totals[half][first:], self.width, counts[half][part], self.lost,
            )  # fmt: skip

        run(one, blocks * halves * parts)
        if halves > 1:
            self._join(run, totals, counts[0][0].reshape(-1), counts[1][0].reshape(-1))

    def _join(self, run: Run, totals: list[np.ndarray], count: np.ndarray, other: np.ndarray) -> None:
        """Add the second half to the first."""

        def one(piece: int) -> None:
            join(
                totals[0],
                count,
                totals[1],
                other,
                self.width,
                piece * _ROWS,
                min((piece + 1) * _ROWS, len(count)),
                self.divide,
            )

        run(one, -(-len(count) // _ROWS))
