"""Sums over few buckets with many members each: all tables at once, and one group on all threads.

A table of every bucket stays in a near cache while the rows stream by. Pieces are of fixed size and every sum has a
fixed order, so results are the same to the bit for any number of threads.
"""

from dataclasses import dataclass

import numpy as np
import torch

from annattn.kernels.numba import memory
from annattn.kernels.numba.dense_kernels import Scan, fill, join, read, scan
from annattn.kernels.numba.simd import LANES
from annattn.kernels.numba.threads import run_pieces

__all__ = ["DenseTables"]

_ROWS = 2048  # rows read in one piece
_BLOCK = 131_072  # sources put into buckets in one piece, at least
_BLOCKS = 16  # and how many such pieces there are, at most: each has sums of its own
_TABLES = 2  # tables filled in one piece
_COLUMNS = 16  # columns scanned in one piece, at least

_TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


@dataclass(frozen=True)
class DenseTables:
    """The tables of one group that are worked on together."""

    targets: np.ndarray  # (share, tables, n)
    sources: np.ndarray  # (share, tables, m)
    slots: int
    first: int
    tables: int
    flat: np.ndarray
    bases: np.ndarray
    stride: int
    width: int
    divide: bool
    lost: np.ndarray
    spilled: np.ndarray

    def add(self, order: int, total: np.ndarray, count: np.ndarray) -> None:
        """Add these tables to the totals: fill, then read; causal, fill and read in one scan."""
        m = self.sources.shape[2]
        # As many blocks as hold no more sums than there are values, whatever the threads. Strips of rows add up in the
        # dtype of the values and strips in float64, so that rounding grows with the strip, not with the bucket.
        blocks = min(_BLOCKS, max(1, m // max(_BLOCK, 2 * self.tables * self.slots)))
        edges = [m * block // blocks for block in range(blocks + 1)]
        sums = np.zeros((blocks, self.tables, self.slots * self.width))
        tally = np.zeros((blocks, self.tables, self.slots), np.int64)
        if order == 0:
            self._fill(edges, False, sums, tally)
            whole = sums[0] if blocks == 1 else sums.sum(0)
            with np.errstate(over="ignore"):  # who reads it notices
                whole = whole.astype(self.flat.dtype).reshape(-1)
            self._read(whole, tally.sum(0), total, count)
            return
        if blocks > 1:
            self._fill(edges[:-1], order < 0, sums, tally)
            # A block starts from the sums of those before it.
            sums[1:], tally[1:] = np.cumsum(sums[:-1], 0), np.cumsum(tally[:-1], 0)
            sums[0], tally[0] = 0, 0
        self._scan(edges, order, sums, tally, total, count)

    def _fill(self, edges: list[int], reverse: bool, sums: np.ndarray, tally: np.ndarray) -> None:
        m = self.sources.shape[2]
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

        run_pieces(one, (len(edges) - 1) * parts, "dense fill", self.flat.dtype)

    def _read(self, sums: np.ndarray, tally: np.ndarray, total: np.ndarray, count: np.ndarray) -> None:
        share, _, n = self.targets.shape
        parts = -(-n // _ROWS)
        rows = total.reshape(share, -1)

        def one(piece: int) -> None:
            head, part = divmod(piece, parts)
            read(
                self.targets[head], self.first, sums, tally, self.width, part * _ROWS, min((part + 1) * _ROWS, n),
                self.first == 0, self.divide, rows[head], count[head], self.lost, self.spilled,
            )  # fmt: skip

        run_pieces(one, share * parts, "dense read", self.flat.dtype)

    def _scan(self, edges, order, sums, tally, total, count) -> None:
        share, _, n = self.targets.shape
        horizon = self.sources.shape[2] - n if order > 0 else 0
        blocks = len(edges) - 1
        # One block alone is scanned twice at a time, each time for half of the tables, and the halves are added up.
        halves = 2 if blocks == 1 and self.tables > 1 and self.first == 0 else 1
        seams = [self.tables * half // halves for half in range(halves + 1)]
        # Columns know nothing of each other: while there are threads left, each piece has some of them.
        threads = torch.get_num_threads()
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
            work = Scan(
                self.targets, self.sources, self.first + here.start, self.flat, self.bases + first, self.stride,
                last - first, span, horizon, order < 0, self.first == 0, self.divide and halves == 1, mine,
                tally[block, here].copy(), totals[half][first:], self.width, counts[half][part],
                self.lost, self.spilled,
            )  # fmt: skip
            scan(work)

        run_pieces(one, blocks * halves * parts, "dense scan", self.flat.dtype)
        if halves > 1:
            self._join(totals, counts[0][0].reshape(-1), counts[1][0].reshape(-1))

    def _join(self, totals: list[np.ndarray], count: np.ndarray, other: np.ndarray) -> None:
        """Add the second half to the first."""

        def one(piece: int) -> None:
            join(
                totals[0], count, totals[1], other, self.width, piece * _ROWS, min((piece + 1) * _ROWS, len(count)),
                self.divide, self.spilled,
            )  # fmt: skip

        run_pieces(one, -(-len(count) // _ROWS), "dense join", self.flat.dtype)
