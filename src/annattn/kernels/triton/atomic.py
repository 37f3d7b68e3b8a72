"""Non-causal sums by atomic additions: one row per possible bucket, filled in any order.

Work: m·tables·width atomic additions and n·tables·width numbers read. Memory: tables · buckets · (width + 2) numbers.
"""

import torch
import triton.language as tl
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.interface import SumInputs
from annattn.kernels.triton.launch import COLUMNS, kernel, launch, pieces
from annattn.kernels.triton.sums import accumulator, place_of, tile_of

__all__ = ["add_atomically", "has_room"]

_ROWS = 16
_ROOM = 2**30  # bytes of tables


def has_room(inputs: SumInputs) -> bool:
    """Whether there are few enough buckets for a row each."""
    heads, _, _ = heads_and_shares(inputs.target_codes, inputs.source_codes)
    rows = inputs.target_codes.shape[0] * heads * inputs.target_codes.shape[3] * inputs.buckets
    return 0 < rows * (inputs.value.shape[-1] + 2) * 8 <= _ROOM


def add_atomically(inputs: SumInputs) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j and Σ_j c_ij over all sources: see `Backend.bucket_sum`."""
    targets, sources, value = inputs.target_codes, inputs.source_codes, inputs.value
    batch, all_heads, n, tables = targets.shape
    heads, share, source_share = heads_and_shares(targets, sources)
    m, width, dtype, device = sources.shape[2], value.shape[-1], accumulator(value.dtype), value.device
    groups = batch * heads
    sums = torch.zeros(groups * tables * inputs.buckets, width, dtype=dtype, device=device)
    counts = torch.zeros(groups * tables * inputs.buckets, dtype=torch.int64, device=device)
    total = torch.empty(batch, all_heads, n, width, dtype=dtype, device=device)
    count = torch.empty(batch, all_heads, n, dtype=torch.int64, device=device)
    columns = max(1, pieces(width, COLUMNS))
    launch(
        _fill, (pieces(m * source_share, _ROWS) * groups, columns),
        value, sources, sums, counts, m, heads, source_share, tables, inputs.buckets, width,
        *value.stride(), *sources.stride(), ROWS=_ROWS, COLUMNS=COLUMNS, warps=8,
    )  # fmt: skip
    launch(
        _read, (pieces(n * share, _ROWS) * groups, columns),
        targets, sums, counts, total, count, n, heads, share, tables, inputs.buckets, width,
        *targets.stride(), ROWS=_ROWS, COLUMNS=COLUMNS, warps=8,
    )  # fmt: skip
    return total.to(value.dtype), count


@kernel
def _fill(
    value, codes, sums, counts, m, heads, share, tables, buckets, width,
    of_batch: tl.int64, of_head: tl.int64, of_row: tl.int64, of_column: tl.int64,
    code_batch: tl.int64, code_head: tl.int64, code_row: tl.int64, code_table: tl.int64,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add every source to the row of its bucket in every table."""
    group, first = tile_of(m * share, ROWS)
    row = first + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = place_of(group, row, heads, share, m, 0, of_batch, of_head, of_row)
    part = (row < m * share)[:, None] & (column < width)[None, :]
    more = tl.load(value + at[:, None] + column[None, :] * of_column, mask=part, other=0).to(sums.dtype.element_ty)
    at = place_of(group, row, heads, share, m, 0, code_batch, code_head, code_row)
    for table in range(tables):
        code = tl.load(codes + at + table * code_table, mask=row < m * share, other=-1)
        bucket = (group * tables + table) * buckets + code
        tl.atomic_add(sums + bucket[:, None] * width + column[None, :], more, mask=part & (code >= 0)[:, None])
        if tl.program_id(1) == 0:
            tl.atomic_add(counts + bucket, tl.full([ROWS], 1, tl.int64), mask=code >= 0)


@kernel
def _read(
    codes, sums, counts, total, count, n, heads, share, tables, buckets, width,
    code_batch: tl.int64, code_head: tl.int64, code_row: tl.int64, code_table: tl.int64,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add up, for every target, the rows of its buckets."""
    group, first = tile_of(n * share, ROWS)
    row = first + tl.arange(0, ROWS)
    inside = row < n * share
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = place_of(group, row, heads, share, n, 0, code_batch, code_head, code_row)
    added = tl.zeros([ROWS, COLUMNS], sums.dtype.element_ty)
    met = tl.zeros([ROWS], tl.int64)
    for table in range(tables):
        code = tl.load(codes + at + table * code_table, mask=inside, other=-1)
        bucket = (group * tables + table) * buckets + code
        part = (code >= 0)[:, None] & (column < width)[None, :]
        added += tl.load(sums + bucket[:, None] * width + column[None, :], mask=part, other=0)
        met += tl.load(counts + bucket, mask=code >= 0, other=0)
    target = (group * share + row % share) * n + row // share
    part = inside[:, None] & (column < width)[None, :]
    tl.store(total + target[:, None] * width + column[None, :], added, mask=part)
    if tl.program_id(1) == 0:
        tl.store(count + target, met, mask=inside)
