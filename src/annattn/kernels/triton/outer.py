"""The gradient for queries and keys with a constant slope: sums of outer products along each bucket.

dq̂_i = w Σ_j (g_i·v_j − l_i) k̂_j and dk̂_j = w Σ_i (v_j·g_i − l_i) q̂_i over the pairs that met, table by table, are
both out_a = w Σ_b (left_a·right_b + scale_a·shift_b) turn_b. A program walks along one bucket: targets in chunks, with
the sum of right_b turn_bᵀ over the sources that the whole chunk sees, and pairs for the few it sees in part. So the
work is linear in the number of rows, causal or not. One program owns a target, so the sums are the same in every run.
Memory: the inputs in float32, and one table's sorted rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.interface import GradientInputs, Order, SumInputs
from annattn.kernels.triton.launch import kernel, launch, pieces
from annattn.kernels.triton.sums import accumulator, find_buckets, sort_rows, tile_of
from annattn.lsh.rows import directions_and_lengths

__all__ = ["constant_gradient"]

_WINDOW = 32  # sorted targets of a program: it does the buckets that begin among them
_CHUNK = 16  # targets, and sources, at a time
_SIZE = 32  # columns of left, right and turn at a time


def constant_gradient(
    inputs: GradientInputs, query_codes: Tensor, key_codes: Tensor, order: Order, buckets: int
) -> tuple[Tensor, Tensor]:
    """The gradients for queries and keys when all pairs weigh the same: see `Backend.query_key_gradient`."""
    dtype, slope = accumulator(inputs.grad.dtype), inputs.slope.constant
    assert slope is not None
    query, query_length = directions_and_lengths(inputs.query.to(dtype))
    key, key_length = directions_and_lengths(inputs.key.to(dtype))
    value, count = inputs.value.to(dtype), inputs.count[..., None].clamp(min=1)
    weight = inputs.grad.to(dtype) / count
    level = (weight * inputs.out.to(dtype).nan_to_num(0, 0, 0)).sum(-1)
    ones = torch.ones(value.shape[:3], dtype=dtype, device=value.device)
    to_query = _turns(query_codes, key_codes, order, buckets, weight, -level, value, ones, key, slope)
    to_key = _turns(key_codes, query_codes, Order(-order), buckets, value, ones, weight, -level, query, slope)
    grads = []
    for grad, unit, length in ((to_query, query, query_length), (to_key, key, key_length)):
        # From the unit vector to the vector: only what turns it counts.
        grads.append(((grad - (grad * unit).sum(-1, keepdim=True) * unit) / length).to(inputs.grad.dtype))
    return grads[0], grads[1]


def _turns(
    target_codes: Tensor, source_codes: Tensor, order: Order, buckets: int,
    left: Tensor, scale: Tensor, right: Tensor, shift: Tensor, turn: Tensor, slope: float,
) -> Tensor:  # fmt: skip
    batch, all_heads, n, tables = target_codes.shape
    m, width, dim = source_codes.shape[2], right.shape[-1], turn.shape[-1]
    out = torch.zeros(batch, all_heads, n, dim, dtype=turn.dtype, device=turn.device)
    if not target_codes.numel() or not source_codes.numel() or not width or not dim:
        return out
    heads, share, source_share = heads_and_shares(target_codes, source_codes)
    left, scale, right, shift, turn = (x.contiguous() for x in (left, scale, right, shift, turn))
    groups, rows = batch * heads, n * share
    for table in range(tables):
        one = SumInputs(target_codes, source_codes, right, order, buckets)
        found = find_buckets(one, slice(table, table + 1))
        codes, targets = sort_rows(target_codes[..., table : table + 1], heads, order, buckets)
        places = targets.to(torch.int64)
        first, end = (x.gather(-1, places) for x in (found.first, found.end))
        for column in range(0, width, _SIZE):
            launch(
                _add_turns, (pieces(rows, _WINDOW) * groups, pieces(dim, _SIZE)),
                left, scale, right, shift, turn, out, codes, targets, first, end, found.order,
                n, m, share, source_share, width, dim, column, int(order == Order.MIRRORED), slope,
                WINDOW=_WINDOW, CHUNK=_CHUNK, SIZE=_SIZE,
            )  # fmt: skip
    return out


@triton.jit
def _place(group, row, n, share, reverse):
    """The number of a row of a group, counted by time and head, in a tensor (batch · heads, share, n)."""
    time = row // share
    time = tl.where(reverse != 0, n - 1 - time, time)
    return (group * share + row % share) * n + time


@triton.jit
def _sources(
    right, shift, turn, order, at, kept, group, m, share, reverse, width, dim, column, turned, with_shift
):  # fmt: skip
    """The rows of right and turn, and the shifts, of the sorted sources at these places."""
    source = _place(group, tl.load(order + at, mask=kept, other=0), m, share, reverse)
    r = tl.load(right + source[:, None] * width + column[None, :], kept[:, None] & (column < width)[None, :], other=0.0)
    t = tl.load(turn + source[:, None] * dim + turned[None, :], kept[:, None] & (turned < dim)[None, :], other=0.0)
    s = tl.load(shift + source, mask=kept, other=0.0) * with_shift
    return r, s, t


@kernel
def _add_turns(
    left, scale, right, shift, turn, out, codes, targets, first, end, order,
    n, m, share, source_share, width, dim, start, reverse, slope: tl.float32,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Add one table's terms to the targets whose buckets begin in one window of the sorted ones."""
    rows = n * share
    group, begin = tile_of(rows, WINDOW)
    codes += group * rows
    targets += group * rows
    first += group * rows
    end += group * rows
    order += group * m * source_share
    column = start + tl.arange(0, SIZE)
    turned = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    # Columns of left and right come in turns; the shift is added with the first.
    with_shift = tl.where(start == 0, 1, 0)
    kind: tl.constexpr = out.dtype.element_ty
    state = tl.zeros([SIZE, SIZE], kind)
    along = tl.zeros([SIZE], kind)
    stop = tl.minimum(begin + WINDOW, rows)
    # What began in an earlier window is another program's.
    before = tl.load(codes + begin - 1, mask=begin > 0, other=-3)
    while (begin < stop) & (tl.load(codes + begin, mask=begin < rows, other=-3) == before):
        begin += 1
    done = tl.full([], 0, tl.int32)
    current = tl.full([], -3, tl.int64)
    while begin < rows:
        code = tl.load(codes + begin)
        if (code != current) & (begin >= stop):
            begin = rows
        else:
            if code != current:
                state = tl.zeros([SIZE, SIZE], kind)
                along = tl.zeros([SIZE], kind)
                done = tl.load(first + begin)
                current = code
            row = begin + tl.arange(0, CHUNK)
            mine = row < rows
            mine = mine & (tl.load(codes + row, mask=mine, other=-3) == code)
            taken = tl.sum(mine.to(tl.int32), 0)
            # Sources before `seen` are seen by the whole chunk, those before `last` by some of it.
            seen = tl.load(end + begin)
            last = tl.load(end + begin + taken - 1)
            for near in range(done, seen, CHUNK):
                at = near + tl.arange(0, CHUNK)
                r, s, t = _sources(
                    right, shift, turn, order, at, at < seen, group, m, source_share, reverse, width, dim, column,
                    turned, with_shift,
                )  # fmt: skip
                state = tl.dot(tl.trans(r), t, state, input_precision="tf32x3", out_dtype=kind)
                along += tl.sum(s[:, None] * t, 0)
            done = tl.maximum(done, seen)
            target = _place(group, tl.load(targets + row, mask=mine, other=0), n, share, reverse)
            limit = tl.load(end + row, mask=mine, other=0)
            part = mine[:, None] & (column < width)[None, :]
            ours = tl.load(left + target[:, None] * width + column[None, :], mask=part, other=0.0)
            mult = tl.load(scale + target, mask=mine, other=0.0)
            added = tl.dot(ours, state, input_precision="tf32x3", out_dtype=kind) + mult[:, None] * along[None, :]
            for near in range(seen, last, CHUNK):
                at = near + tl.arange(0, CHUNK)
                r, s, t = _sources(
                    right, shift, turn, order, at, at < last, group, m, source_share, reverse, width, dim, column,
                    turned, with_shift,
                )  # fmt: skip
                push = tl.dot(ours, tl.trans(r), input_precision="tf32x3", out_dtype=kind) + mult[:, None] * s[None, :]
                push = tl.where(at[None, :] < limit[:, None], push, 0.0)
                added = tl.dot(push, t, added, input_precision="tf32x3", out_dtype=kind)
            part = mine[:, None] & (turned < dim)[None, :]
            into = out + target[:, None] * dim + turned[None, :]
            tl.store(into, tl.load(into, mask=part, other=0.0) + slope * added, mask=part)
            begin += taken
