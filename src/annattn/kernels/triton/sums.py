"""Sums over buckets: sort the sources by (bucket, time), add up along the order, read where a target's bucket ends.

The sums run along each bucket, so that a causal target reads the sum up to its own time and any other the sum of the
whole bucket. They are made in three levels of tiles, each program adding the rows of its tiles one by one: no atomics,
so the same numbers in every run. Work per table: one stable sort of the m codes, one pass over the m·width values and
one row of `width` read per target. Memory: m·width sums and a few integers per row, for as many tables at once as fit.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.interface import NOT_FOUND, Order, SumInputs
from annattn.kernels.triton.launch import COLUMNS, kernel, launch, pieces

__all__ = ["Buckets", "accumulator", "bucket_sums", "find_buckets", "newest", "place_of", "sort_rows", "tile_of"]

_TILE = 64  # rows that are added up one after the other
_TILES = 8  # tiles of a program
_TARGETS = 64  # targets that a program looks up
_READ = 8  # targets that a program reads for
_ROOM = 2**28  # bytes of running sums at once
_NARROW = (torch.int16, torch.int32, torch.int64)  # codes are sorted in the first that holds them: fewer passes


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What sums of this dtype are added up in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class Buckets:
    """Sources of some tables in order of (bucket, time), and where each target's bucket lies among them.

    - codes, order: (groups, tables, sources), the sorted codes and whose they are;
    - first, end: (groups, tables, targets), the range of sorted sources that a target meets.

    Rows of a group are numbered by time, then head; with MIRRORED order, time runs backwards.
    """

    codes: Tensor
    order: Tensor
    first: Tensor
    end: Tensor


def sort_rows(codes: Tensor, heads: int, order: Order, buckets: int) -> tuple[Tensor, Tensor]:
    """Sorted codes (groups, tables, rows) of codes (batch, heads · share, n, tables), and the row of each."""
    batch, all_heads, n, tables = codes.shape
    grouped = codes.reshape(batch * heads, all_heads // heads, n, tables)
    if order == Order.MIRRORED:
        grouped = grouped.flip(2)
    lines = grouped.permute(0, 3, 2, 1).reshape(batch * heads, tables, -1)
    dtype = next(dtype for dtype in _NARROW if 0 < buckets <= torch.iinfo(dtype).max or dtype == torch.int64)
    # Contiguous: what a sort returns is laid out as what it was given.
    found = lines.to(dtype).contiguous().sort(dim=-1, stable=True)
    return found.values.to(torch.int64), found.indices.to(torch.int32)


def find_buckets(inputs: SumInputs, tables: slice = slice(None)) -> Buckets:
    """Sort the sources of these tables, and look the targets up."""
    target_codes, source_codes = inputs.target_codes[..., tables], inputs.source_codes[..., tables]
    heads, share, source_share = heads_and_shares(target_codes, source_codes)
    batch, _, n, count = target_codes.shape
    m = source_codes.shape[2]
    codes, order = sort_rows(source_codes, heads, inputs.order, inputs.buckets)
    first = torch.empty(batch * heads, count, n * share, dtype=torch.int32, device=codes.device)
    end = torch.empty_like(first)
    # How many sources come before the first target: with an order, target i sees those up to i plus this.
    ahead = m - n if inputs.order == Order.CAUSAL else 0
    steps = m * source_share
    launch(
        _find, (pieces(n * share, _TARGETS) * batch * heads * count,),
        target_codes, codes, order, first, end, n, m, count, heads, share, source_share, ahead,
        int(inputs.order), steps.bit_length(), *target_codes.stride(), ROWS=_TARGETS,
    )  # fmt: skip
    return Buckets(codes, order, first, end)


def _running_sums(value: Tensor, buckets: Buckets, heads: int, reverse: bool, all_rows: bool) -> list[Tensor]:
    """Sums along each bucket, in three levels; with `all_rows` at every source, else where buckets and tiles end."""
    groups, tables, rows = buckets.codes.shape
    share, n, width = value.shape[1] // heads, value.shape[2], value.shape[3]
    dtype, lines = accumulator(value.dtype), groups * tables
    levels = [torch.empty(lines, rows, width, dtype=dtype, device=value.device)]
    launch(
        _add_rows, (pieces(rows, _TILE * _TILES) * lines, pieces(width, COLUMNS)),
        value, buckets.codes, buckets.order, levels[0], rows, n, tables, heads, share, width,
        int(reverse), int(all_rows), *value.stride(), TILE=_TILE, TILES=_TILES, COLUMNS=COLUMNS,
    )  # fmt: skip
    for span in (_TILE, _TILE**2):
        below, here = levels[-1], pieces(rows, span)
        levels.append(torch.empty(lines, here, width, dtype=dtype, device=value.device))
        tile = _TILE if span == _TILE else here
        launch(
            _add_tiles, (pieces(here, tile * _TILES) * lines, pieces(width, COLUMNS)),
            below, buckets.codes, levels[-1], rows, below.shape[1], here, span, tile, width,
            TILES=_TILES, BELOW=_TILE, COLUMNS=COLUMNS,
        )  # fmt: skip
    return levels


def bucket_sums(inputs: SumInputs, divide: bool) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j and Σ_j c_ij, or the quotient of the two: see `Backend.bucket_sum` and `Backend.bucket_mean`."""
    target_codes, source_codes, value = inputs.target_codes, inputs.source_codes, inputs.value
    batch, all_heads, n, tables = target_codes.shape
    width, dtype = value.shape[-1], accumulator(value.dtype)
    count = torch.zeros(batch, all_heads, n, dtype=torch.int64, device=value.device)
    total = torch.zeros(batch, all_heads, n, width, dtype=dtype, device=value.device)
    if not target_codes.numel() or not source_codes.numel():
        return total.to(value.dtype), count
    heads, share, source_share = heads_and_shares(target_codes, source_codes)
    rows = source_codes.shape[2] * source_share
    together = max(1, _ROOM // (batch * heads * rows * max(width, 1) * dtype.itemsize))
    together = 1 if inputs.one_table_at_a_time else min(together, tables)
    reverse = inputs.order == Order.MIRRORED
    for table in range(0, tables, together):
        buckets = find_buckets(inputs, slice(table, table + together))
        sums = _running_sums(value, buckets, heads, reverse, inputs.order != Order.ALL)
        last = int(divide and table + together >= tables)
        # Into another tensor: programs of other columns read the count, and must not find it changed.
        more = torch.empty_like(count)
        # At least one program per row, since the first of a row counts, however narrow the values are.
        launch(
            _read_sums, (pieces(n * share, _READ) * batch * heads, max(1, pieces(width, COLUMNS))),
            *sums, buckets.first, buckets.end, total, count, more, n, rows, sums[1].shape[1], sums[2].shape[1],
            buckets.codes.shape[1], share, width, int(reverse), last, TILE=_TILE, ROWS=_READ, COLUMNS=COLUMNS,
        )  # fmt: skip
        count = more
    return total.to(value.dtype), count


def newest(target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
    """Per table the newest source in a causal target's bucket, the last of its range: see `Backend.newest`."""
    batch, all_heads, n, tables = target_codes.shape
    heads, share, source_share = heads_and_shares(target_codes, source_codes)
    found = find_buckets(SumInputs(target_codes, source_codes, source_codes, Order.CAUSAL, buckets))
    last = (found.end - 1).clamp(0, found.order.shape[-1] - 1).to(torch.int64)
    position = found.order.gather(-1, last).to(torch.int64) // source_share
    position = torch.where(found.end > found.first, position, NOT_FOUND)
    by_head = position.reshape(batch * heads, tables, n, share).permute(0, 3, 2, 1)
    return by_head.reshape(batch, all_heads, n, tables).contiguous()


@triton.jit
def tile_of(rows, tile):
    """Of which group of so many rows this program has a tile, and the row at which that begins."""
    tiles = tl.cdiv(rows, tile)
    return (tl.program_id(0) // tiles).to(tl.int64), (tl.program_id(0) % tiles) * tile


@triton.jit
def place_of(group, row, heads, share, n, reverse, of_batch, of_head, of_row):
    """Where a row of a group, numbered by time and head, begins in a tensor (batch, heads · share, n, …)."""
    time = row // share
    time = tl.where(reverse != 0, n - 1 - time, time)
    head = (group % heads) * share + row % share
    return (group // heads) * of_batch + head * of_head + time * of_row


@kernel
def _find(
    targets, codes, order, first, end, n, m, tables, heads, share, source_share, ahead, direction, steps,
    of_batch: tl.int64, of_head: tl.int64, of_row: tl.int64, of_table: tl.int64, ROWS: tl.constexpr,
):  # fmt: skip
    """Two binary searches per target: where its bucket begins, and where what it sees of it ends."""
    tiles = tl.cdiv(n * share, ROWS)
    line = tl.program_id(0) // tiles
    row = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    inside = row < n * share
    group = (line // tables).to(tl.int64)
    at = place_of(group, row, heads, share, n, direction < 0, of_batch, of_head, of_row)
    code = tl.load(targets + at + (line % tables) * of_table, mask=inside, other=-1)
    sources = m * source_share
    codes += line.to(tl.int64) * sources
    order += line.to(tl.int64) * sources
    low = tl.zeros([ROWS], tl.int32)
    high = tl.zeros([ROWS], tl.int32) + sources
    for _ in range(steps):
        middle = (low + high) // 2
        unsure = low < high
        after = tl.load(codes + middle, mask=unsure, other=0) >= code
        high = tl.where(unsure & after, middle, high)
        low = tl.where(unsure & (after == 0), middle + 1, low)
    begin = low
    horizon = tl.where(direction == 0, m, row // share + ahead)
    high = tl.zeros([ROWS], tl.int32) + sources
    for _ in range(steps):
        middle = (low + high) // 2
        unsure = low < high
        found = tl.load(codes + middle, mask=unsure, other=0)
        time = tl.load(order + middle, mask=unsure, other=0) // source_share
        after = (found > code) | (time > horizon)
        high = tl.where(unsure & after, middle, high)
        low = tl.where(unsure & (after == 0), middle + 1, low)
    # A row without a bucket meets nobody.
    low = tl.where(code < 0, begin, low)
    place = line.to(tl.int64) * n * share + row
    tl.store(first + place, begin, mask=inside)
    tl.store(end + place, low, mask=inside)


@kernel
def _add_rows(
    value, codes, order, sums, rows, n, tables, heads, share, width, reverse, all_rows,
    of_batch: tl.int64, of_head: tl.int64, of_row: tl.int64, of_column: tl.int64,
    TILE: tl.constexpr, TILES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums along each bucket that begin anew with every tile of rows."""
    line, start = tile_of(rows, TILE * TILES)
    tile = start + tl.arange(0, TILES) * TILE
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    codes += line * rows
    order += line * rows
    total = tl.zeros([TILES, COLUMNS], sums.dtype.element_ty)
    code = tl.load(codes + tile, mask=tile < rows, other=-1)
    before = code
    for step in range(tl.minimum(TILE, rows - start)):
        row = tile + step
        inside = row < rows
        after = tl.load(codes + row + 1, mask=row + 1 < rows, other=-1)
        source = tl.load(order + row, mask=inside, other=0)
        at = place_of(line // tables, source, heads, share, n, reverse, of_batch, of_head, of_row)
        part = (column < width)[None, :]
        # A source without a bucket is in nobody's sum.
        taken = (inside & (code >= 0))[:, None] & part
        more = tl.load(value + at[:, None] + column[None, :] * of_column, mask=taken, other=0)
        total = tl.where((code == before)[:, None], total, 0) + more.to(total.dtype)
        needed = inside & ((code != after) | (row % TILE == TILE - 1) | (row == rows - 1))
        needed = tl.where(all_rows != 0, inside, needed)
        tl.store(sums + ((line * rows + row) * width)[:, None] + column[None, :], total, mask=needed[:, None] & part)
        before = code
        code = after


@kernel
def _add_tiles(
    below, codes, sums, rows, rows_below, rows_here, span, tile, width,
    TILES: tl.constexpr, BELOW: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums of the sums at the ends of the tiles below, along buckets that span whole tiles."""
    line, start = tile_of(rows_here, tile * TILES)
    begin = start + tl.arange(0, TILES) * tile
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    codes += line * rows
    total = tl.zeros([TILES, COLUMNS], sums.dtype.element_ty)
    for step in range(tl.minimum(tile, rows_here - start)):
        row = begin + step
        inside = row < rows_here
        # Row k stands for the sources [k·span, (k + 1)·span): does the bucket of the last begin before them?
        last = tl.load(codes + tl.minimum((row + 1) * span, rows) - 1, mask=inside, other=-1)
        before = tl.load(codes + row * span - 1, mask=inside & (row > 0), other=-3)
        part = inside[:, None] & (column < width)[None, :]
        tail = tl.minimum((row + 1) * BELOW, rows_below) - 1
        more = tl.load(below + ((line * rows_below + tail) * width)[:, None] + column[None, :], mask=part, other=0)
        total = tl.where((last == before)[:, None], total, 0) + more
        tl.store(sums + ((line * rows_here + row) * width)[:, None] + column[None, :], total, mask=part)


@kernel
def _read_sums(
    sums, tile_sums, span_sums, first, end, total, count, new_count, n, rows, tiles, spans, tables, share, width,
    reverse, divide,
    TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add to every target's total what lies at the end of its range, over all tables."""
    group, start = tile_of(n * share, ROWS)
    row = start + tl.arange(0, ROWS)
    inside = row < n * share
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    part = (column < width)[None, :]
    time = row // share
    time = tl.where(reverse != 0, n - 1 - time, time)
    target = (group * share + row % share) * n + time
    into = total + (target * width)[:, None] + column[None, :]
    added = tl.load(into, mask=inside[:, None] & part, other=0)
    met = tl.load(count + target, mask=inside, other=0)
    for table in range(tables):
        line = group * tables + table
        begin = tl.load(first + line * n * share + row, mask=inside, other=0)
        stop = tl.load(end + line * n * share + row, mask=inside, other=0)
        met += stop - begin
        hit = stop > begin
        at = stop - 1
        place = ((line * rows + at) * width)[:, None] + column[None, :]
        added += tl.load(sums + place, mask=hit[:, None] & part, other=0)
        # What the bucket holds before the tile of its end, and before the tile of tiles.
        tile = at // TILE
        hit = hit & (begin < tile * TILE)
        place = ((line * tiles + tile - 1) * width)[:, None] + column[None, :]
        added += tl.load(tile_sums + place, mask=hit[:, None] & part, other=0)
        span = (tile - 1) // TILE
        hit = hit & (begin < span * TILE * TILE)
        place = ((line * spans + span - 1) * width)[:, None] + column[None, :]
        added += tl.load(span_sums + place, mask=hit[:, None] & part, other=0)
    if divide != 0:
        added = added / tl.maximum(met, 1).to(added.dtype)[:, None]
    tl.store(into, added, mask=inside[:, None] & part)
    if tl.program_id(1) == 0:
        tl.store(new_count + target, met, mask=inside)
