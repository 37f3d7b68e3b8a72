"""Bucket primitives on a CPU, compiled by Numba: cuts the work into pieces, and lets `run_pieces` share them out.

Pieces are of fixed size and every sum has a fixed order, so results are the same to the bit for any number of threads.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from annattn.kernels import memory, torch_backend
from annattn.kernels.codes import heads_and_shares, spoiled
from annattn.kernels.compiled import say_if_slow
from annattn.kernels.gradient import Slope
from annattn.kernels.numba_buckets import fill, join, newest, read, scan
from annattn.kernels.numba_gradient import constant_gradient
from annattn.kernels.numba_hash import hyperplane_codes, padded_columns
from annattn.kernels.numba_numbers import number_rows, slots_of
from annattn.kernels.numba_rotation import cross_polytope_codes
from annattn.kernels.simd import LANES
from annattn.kernels.threads import Run, run_groups, run_pieces
from annattn.lsh import CrossPolytope, Hasher, Hyperplane, Identity

__all__ = [
    "average",
    "collect",
    "equal_rows",
    "hash_pair",
    "hash_rows",
    "latest",
    "query_key_gradient",
    "unsupported_reasons",
]

_ROWS = 2048  # rows hashed or read in one piece
_BLOCK = 131_072  # sources put into buckets in one piece, at least
_BLOCKS = 16  # and how many such pieces there are, at most: each has sums of its own
_TABLES = 2  # tables filled in one piece
_COLUMNS = 16  # columns scanned in one piece, at least

_TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}
_ONE_COPY = torch.empty(1, 0)
_columns = WeakTensorKeyDictionary()  # normals laid out for the kernel, as long as their tensor lives


def unsupported_reasons(value: Tensor) -> list[str]:
    """Why this backend cannot run on tensors like this one."""
    return [] if value.device.type == "cpu" else [f"tensors are on {value.device}, not on the CPU"]


def hash_pair(hasher: Hasher, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of queries and keys, comparable with each other."""
    if hasher.buckets is None:
        return torch_backend.hash_pair(hasher, query, key)
    return hash_rows(hasher, query), hash_rows(hasher, key)


def hash_rows(hasher: Hasher, x: Tensor) -> Tensor:
    """Codes that mean the same in every call."""
    family = hasher.family
    # Not isinstance: a subclass may hash in its own way.
    is_structured = type(family) is CrossPolytope and family.rotation == "structured"
    fast = hasher.buckets is not None and (is_structured or type(family) is Hyperplane)
    return _hash_rows(hasher, x) if fast and x.ndim == 4 and x.dtype != torch.float64 else hasher(x)


def equal_rows(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes in one table that are equal exactly when rows are."""
    family = Identity(query.shape[-1])
    for x in (query, key):
        family.check_rows(x)
    heads, share, _ = heads_and_shares(query, key)
    n, m = query.shape[2], key.shape[2]
    query_codes, key_codes = memory.empty(*query.shape[:3], 1), memory.empty(*key.shape[:3], 1)
    # Written as arrays: a tensor made in inference mode may not be changed by a thread that is not in it.
    of_queries, of_keys = query_codes.numpy(), key_codes.numpy()

    def one(group: int) -> None:
        b, h = divmod(group, heads)
        mine = slice(h * share, (h + 1) * share)
        rows = torch.cat([key[b, h], query[b, mine].flatten(0, 1)]).detach()
        numbers = np.empty(len(rows), np.int64)
        number_rows(family.evaluate((_ONE_COPY,), rows).numpy(), family.hashable(rows).numpy(), numbers)
        of_keys[b, h, :, 0] = numbers[:m]
        of_queries[b, mine, :, 0] = numbers[m:].reshape(share, n)

    with say_if_slow("rows"):
        run_pieces(one, key.shape[0] * heads)
    return query_codes, key_codes


def average(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j / Σ_j c_ij and Σ_j c_ij: see `torch_backend.average`."""
    lost = np.zeros(1, np.bool_)
    mean, count = _sums(target_codes, source_codes, value, order, buckets, one_table_at_a_time, lost, divide=True)
    if lost[0]:
        mean = mean.masked_fill(spoiled(target_codes, source_codes, order)[..., None], torch.nan)
    return mean, count


def collect(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j and Σ_j c_ij: see `torch_backend.collect`."""
    lost = np.zeros(1, np.bool_)
    return _sums(target_codes, source_codes, value, order, buckets, one_table_at_a_time, lost, divide=False)


def _sums(
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


def latest(target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
    """Per table the newest source in a causal target's bucket: see `torch_backend.latest`."""
    heads, _, _ = heads_and_shares(target_codes, source_codes)
    batch, _, n, tables = target_codes.shape
    m = source_codes.shape[2]
    found = torch.full(target_codes.shape, -1, dtype=torch.int64)
    if not target_codes.numel() or not source_codes.numel():
        return found
    targets = target_codes.contiguous().numpy().reshape(batch * heads, -1, n, tables)
    sources = source_codes.contiguous().numpy().reshape(batch * heads, 1, m, tables)
    into = found.numpy().reshape(targets.shape)
    numbered = [slots_of(t, s, buckets, run_pieces) for t, s in zip(targets, sources, strict=True)]
    targets, sources, slots = zip(*numbered, strict=True)

    def one(piece: int) -> None:
        group, table = divmod(piece, tables)
        newest(targets[group], sources[group][0], table, max(slots[group], 1), m - n, into[group])

    with say_if_slow("latest"):
        run_pieces(one, batch * heads * tables)
    return found


def query_key_gradient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_codes: Tensor,
    key_codes: Tensor,
    grad: Tensor,
    out: Tensor,
    count: Tensor,
    is_causal: bool,
    buckets: int,
    slope: Slope,
) -> tuple[Tensor, Tensor]:
    """dL/dquery and dL/dkey of `average`: see `gradient`. A w(x) that is no constant needs every pair's cosine."""
    inputs = query, key, value, query_codes, key_codes, grad, out, count, is_causal, buckets
    if slope.constant is None:
        return torch_backend.query_key_gradient(*inputs, slope)
    return constant_gradient(*inputs, slope.constant)


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


def _hash_rows(hasher: Hasher, x: Tensor) -> Tensor:
    hasher.family.check_rows(x)
    x = x.detach().float()
    batch, heads, n, dim = x.shape
    codes = memory.empty(batch, heads, n, hasher.tables)
    if not codes.numel():
        return codes
    flat, base, stride = memory.flat(x)
    into, pieces = codes.numpy(), -(-n // _ROWS)
    if isinstance(hasher.family, Hyperplane):
        columns, longest = _columns_of(hasher.parameters[0])

        def hash_block(b: int, h: int, start: int, stop: int) -> None:
            hyperplane_codes(
                flat, base(b, h), stride, columns, longest, hasher.tables, hasher.hashes, into[b, h], start, stop
            )
    else:
        signs = hasher.parameters[0].float().numpy()

        def hash_block(b: int, h: int, start: int, stop: int) -> None:
            cross_polytope_codes(flat, base(b, h), stride, dim, signs, hasher.hashes, into[b, h], start, stop)

    def one(piece: int) -> None:
        head, part = divmod(piece, pieces)
        hash_block(*divmod(head, heads), part * _ROWS, min((part + 1) * _ROWS, n))

    with say_if_slow("hash", type(hasher.family)):
        run_pieces(one, batch * heads * pieces)
    return codes


def _columns_of(normals: Tensor) -> tuple[np.ndarray, float]:
    known, version = _columns.get(normals), 0 if normals.is_inference() else normals._version
    if known is None or known[0] != version:
        known = _columns[normals] = (version, padded_columns(normals.numpy()))
    return known[1]
