"""Softmax over a band of keys, block by block: outputs, log-sums and the gradients of both; no atomics.

A program owns some queries, with all heads that share their keys, and walks along the keys that any of them sees; in
the gradient for keys and values it owns keys and walks along the queries. Products are float32 in three passes of
tf32, so that they round as float32 does, whatever the dtype of the inputs.

Work: 2·(dim + width) operations per pair of a query and a key of its band, forward; backward, where scores are computed
anew, 4·dim + 2·width in the walk along keys and 4·(dim + width) in the walk along queries. The scores are computed once
per block of columns, so a dim or width beyond 64 repeats them. Memory: the outputs, and one log-sum per query.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from annattn.kernels.interface import BandInputs
from annattn.kernels.triton.launch import COLUMNS, kernel, launch, pieces
from annattn.kernels.triton.sums import place_of, tile_of

__all__ = ["attend_band", "band_gradient"]

_FEW, _ROWS = 16, 32  # queries of a program: for a decode step, and for a sequence; more would spill
_KEYS = 32  # keys at a time; in the gradient for them, those of a program
_DEPTH = 16  # columns of a product at a time


def attend_band(inputs: BandInputs) -> tuple[Tensor, Tensor]:
    """Outputs and log-sums in float32: see `Backend.band`."""
    query, key, value = inputs.query, inputs.key, inputs.value
    (batch, heads, n, dim), (_, key_heads, _, width) = query.shape, value.shape
    out = torch.empty(batch, heads, n, width, dtype=torch.float32, device=query.device)
    level = torch.empty(batch, heads, n, dtype=torch.float32, device=query.device)
    share = heads // key_heads
    rows = _FEW if n * share <= _FEW else _ROWS
    # At least one program per row, since the first of a row writes its log-sum, however narrow the values are.
    launch(
        _attend, (pieces(n * share, rows) * batch * key_heads, max(1, pieces(width, COLUMNS))),
        query, key, value, *_masks(inputs), out, level, *_sizes(inputs), dim, width, inputs.scale,
        *query.stride(), *key.stride(), *value.stride(), *_mask_strides(inputs),
        ROWS=rows, KEYS=_KEYS, DEPTH=_DEPTH, COLUMNS=COLUMNS, warps=4 if rows == _FEW else 8,
    )  # fmt: skip
    return out, level


def band_gradient(
    inputs: BandInputs, out: Tensor, level: Tensor, grad: Tensor, grad_level: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for queries, keys and values: see `Backend.band_gradient`.

    With w the weights, g and h the gradients of output and log-sum: dv_j = Σ_i w_ij g_i and
    ds_ij = w_ij (g_i·v_j + push_i), push_i = h_i − g_i·out_i.
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    (batch, heads, n, dim), (_, key_heads, m, width) = query.shape, value.shape
    grad = grad.float().contiguous()
    push = -(grad * out).sum(-1)
    push = (push if grad_level is None else push + grad_level).contiguous()
    of_query, of_key, of_value = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
    share = heads // key_heads
    given = (query, key, value, *_masks(inputs), grad, level, push)
    sizes = (*_sizes(inputs), dim, width, inputs.scale)
    strides = (*query.stride(), *key.stride(), *value.stride(), *_mask_strides(inputs))
    constants = {"ROWS": _ROWS, "KEYS": _KEYS, "DEPTH": _DEPTH, "COLUMNS": COLUMNS}
    groups = batch * key_heads
    launch(
        _turn_queries, (pieces(n * share, _ROWS) * groups, pieces(dim, COLUMNS)),
        *given, of_query, *sizes, *strides, **constants, warps=8,
    )  # fmt: skip
    launch(
        _turn_keys, (pieces(m, _KEYS) * groups, pieces(max(dim, width), COLUMNS)),
        *given, of_key, of_value, *sizes, *strides, **constants, warps=8,
    )  # fmt: skip
    return of_query, of_key, of_value


def _masks(inputs: BandInputs) -> tuple[Tensor, Tensor, Tensor]:
    """The mask and the documents of queries and of keys, or anything where there are none."""
    nothing = torch.empty(1, dtype=torch.bool, device=inputs.query.device)
    numbers = torch.empty(1, dtype=torch.int64, device=inputs.query.device)
    return (
        nothing if inputs.key_mask is None else inputs.key_mask,
        numbers if inputs.query_documents is None else inputs.query_documents,
        numbers if inputs.key_documents is None else inputs.key_documents,
    )


def _mask_strides(inputs: BandInputs) -> tuple[int, ...]:
    given = (inputs.key_mask, inputs.query_documents, inputs.key_documents)
    return tuple(stride for x in given for stride in ((0, 0) if x is None else x.stride()))


def _sizes(inputs: BandInputs) -> tuple[int, ...]:
    """n, m, key heads, share, window, keys seen after a query's own, masked, packed."""
    (_, heads, n, _), (_, key_heads, m, _) = inputs.query.shape, inputs.key.shape
    window = min(inputs.window, n + m)  # as good as any larger one, and no sum of positions leaves 32 bits
    ahead = 0 if inputs.is_causal else window - 1
    masked, packed = int(inputs.key_mask is not None), int(inputs.query_documents is not None)
    return n, m, key_heads, heads // key_heads, window, ahead, masked, packed


@triton.jit
def _products(
    a, of_a, kept_a, b, of_b, kept_b, width, ROWS: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Dot products of rows that begin at `a` with rows that begin at `b`; those not kept are zero, and never read."""
    product = tl.zeros([ROWS, KEYS], tl.float32)
    for first in range(0, width, DEPTH):
        column = first + tl.arange(0, DEPTH)
        here = (column < width)[None, :]
        x = tl.load(a[:, None] + column[None, :] * of_a, mask=kept_a[:, None] & here, other=0).to(tl.float32)
        y = tl.load(b[:, None] + column[None, :] * of_b, mask=kept_b[:, None] & here, other=0).to(tl.float32)
        product = tl.dot(x, tl.trans(y), product, input_precision="tf32x3")
    return product


@triton.jit
def _seen(
    mask, of_query, of_key, batch, row, at, first, end, n, m, share, window, ahead, masked, packed,
    mask_batch, mask_key, query_batch, query_row, key_batch, key_row,
):  # fmt: skip
    """Which of the keys `at` take part, those from `first` to `end` at most; and which rows see which of them."""
    kept = (at >= first) & (at < end)
    # A mask that is not there lets everything through.
    told = kept & (at < tl.where(masked != 0, end, 0))
    kept = kept & (tl.load(mask + batch * mask_batch + at * mask_key, mask=told, other=1) != 0)
    time = row // share
    place = time + (m - n)
    seen = (at[None, :] > place[:, None] - window) & (at[None, :] <= place[:, None] + ahead)
    told = row < tl.where(packed != 0, n * share, 0)
    mine = tl.load(of_query + batch * query_batch + time * query_row, mask=told, other=0)
    told = kept & (at < tl.where(packed != 0, end, 0))
    theirs = tl.load(of_key + batch * key_batch + at * key_row, mask=told, other=0)
    seen = seen & (mine[:, None] == theirs[None, :]) & (row < n * share)[:, None] & kept[None, :]
    return kept, seen


@kernel
def _attend(
    query, key, value, mask, of_query, of_key, out, level,
    n, m, heads, share, window, ahead, masked, packed, dim, width, scale: tl.float32,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, q_column: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64, k_column: tl.int64,
    v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64, v_column: tl.int64,
    mask_batch: tl.int64, mask_key: tl.int64, query_batch: tl.int64, query_row: tl.int64,
    key_batch: tl.int64, key_row: tl.int64,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Outputs and log-sums of some queries, by a running maximum."""
    group, first = tile_of(n * share, ROWS)
    batch = group // heads
    row = first + tl.arange(0, ROWS)
    inside = row < n * share
    q = query + place_of(group, row, heads, share, n, 0, q_batch, q_head, q_row)
    key += batch * k_batch + (group % heads) * k_head
    value += batch * v_batch + (group % heads) * v_head
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    low = tl.maximum(first // share + (m - n) - window + 1, 0)
    end = tl.minimum((tl.minimum(first + ROWS, n * share) - 1) // share + (m - n) + ahead + 1, m)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    met = tl.zeros([ROWS], tl.int32)
    added = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(low, end, KEYS):
        at = start + tl.arange(0, KEYS)
        kept, seen = _seen(
            mask, of_query, of_key, batch, row, at, low, end, n, m, share, window, ahead, masked, packed,
            mask_batch, mask_key, query_batch, query_row, key_batch, key_row,
        )  # fmt: skip
        score = _products(q, q_column, inside, key + at * k_row, k_column, kept, dim, ROWS, KEYS, DEPTH)
        score = tl.where(seen, scale * score, -float("inf"))
        higher = tl.maximum(largest, tl.max(score, 1))
        # Nothing is subtracted as long as no key was seen.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp(score - base[:, None])
        less = tl.exp(largest - base)
        total = total * less + tl.sum(weight, 1)
        part = kept[:, None] & (column < width)[None, :]
        v = tl.load(value + (at * v_row)[:, None] + column[None, :] * v_column, mask=part, other=0).to(tl.float32)
        added = tl.dot(weight, v, added * less[:, None], input_precision="tf32x3")
        met += tl.sum(seen.to(tl.int32), 1)
        largest = higher
    # A query that sees keys whose weights are all lost has no answer: 0/0 is NaN.
    total = tl.where(met > 0, total, 1.0)
    mean = tl.where((met > 0)[:, None], added / total[:, None], 0.0)
    result = (group * share + row % share) * n + row // share
    part = inside[:, None] & (column < width)[None, :]
    tl.store(out + result[:, None] * width + column[None, :], mean, mask=part)
    if tl.program_id(1) == 0:
        sums = tl.where(met > 0, largest + tl.log(total), -float("inf"))
        tl.store(level + result, sums, mask=inside)


@triton.jit
def _slopes(
    q, q_column, inside, keys, k_column, values, v_column, kept, seen, grads, of_level, pushed, scale, dim, width,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The weights w_ij, and ds_ij = w_ij (g_i·v_j + push_i)."""
    score = scale * _products(q, q_column, inside, keys, k_column, kept, dim, ROWS, KEYS, DEPTH)
    weight = tl.where(seen, tl.exp(score - of_level[:, None]), 0.0)
    product = _products(grads, 1, inside, values, v_column, kept, width, ROWS, KEYS, DEPTH)
    return weight, tl.where(seen, weight * (product + pushed[:, None]), 0.0)


@kernel
def _turn_queries(
    query, key, value, mask, of_query, of_key, grad, level, push, grad_query,
    n, m, heads, share, window, ahead, masked, packed, dim, width, scale: tl.float32,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, q_column: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64, k_column: tl.int64,
    v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64, v_column: tl.int64,
    mask_batch: tl.int64, mask_key: tl.int64, query_batch: tl.int64, query_row: tl.int64,
    key_batch: tl.int64, key_row: tl.int64,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dq_i = scale Σ_j ds_ij k_j, for some queries and columns."""
    group, first = tile_of(n * share, ROWS)
    batch = group // heads
    row = first + tl.arange(0, ROWS)
    inside = row < n * share
    q = query + place_of(group, row, heads, share, n, 0, q_batch, q_head, q_row)
    key += batch * k_batch + (group % heads) * k_head
    value += batch * v_batch + (group % heads) * v_head
    result = (group * share + row % share) * n + row // share
    of_level = tl.load(level + result, mask=inside, other=0.0)
    pushed = tl.load(push + result, mask=inside, other=0.0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    low = tl.maximum(first // share + (m - n) - window + 1, 0)
    end = tl.minimum((tl.minimum(first + ROWS, n * share) - 1) // share + (m - n) + ahead + 1, m)
    added = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(low, end, KEYS):
        at = start + tl.arange(0, KEYS)
        kept, seen = _seen(
            mask, of_query, of_key, batch, row, at, low, end, n, m, share, window, ahead, masked, packed,
            mask_batch, mask_key, query_batch, query_row, key_batch, key_row,
        )  # fmt: skip
        _, slope = _slopes(
            q, q_column, inside, key + at * k_row, k_column, value + at * v_row, v_column, kept, seen,
            grad + result * width, of_level, pushed, scale, dim, width, ROWS, KEYS, DEPTH,
        )  # fmt: skip
        part = kept[:, None] & (column < dim)[None, :]
        k = tl.load(key + (at * k_row)[:, None] + column[None, :] * k_column, mask=part, other=0).to(tl.float32)
        added = tl.dot(slope, k, added, input_precision="tf32x3")
    part = inside[:, None] & (column < dim)[None, :]
    into = grad_query + result[:, None] * dim + column[None, :]
    tl.store(into, (scale * added).to(grad_query.dtype.element_ty), mask=part)


@kernel
def _turn_keys(
    query, key, value, mask, of_query, of_key, grad, level, push, grad_key, grad_value,
    n, m, heads, share, window, ahead, masked, packed, dim, width, scale: tl.float32,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, q_column: tl.int64,
    k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64, k_column: tl.int64,
    v_batch: tl.int64, v_head: tl.int64, v_row: tl.int64, v_column: tl.int64,
    mask_batch: tl.int64, mask_key: tl.int64, query_batch: tl.int64, query_row: tl.int64,
    key_batch: tl.int64, key_row: tl.int64,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dk_j = scale Σ_i ds_ij q_i and dv_j = Σ_i w_ij g_i, for some keys and columns."""
    group, first = tile_of(m, KEYS)
    batch = group // heads
    at = first + tl.arange(0, KEYS)
    key += batch * k_batch + (group % heads) * k_head
    value += batch * v_batch + (group % heads) * v_head
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    # Rows of the first query that sees the first of these keys, to the last that sees the last.
    low = tl.maximum(first - ahead - (m - n), 0) * share
    end = tl.minimum(tl.minimum(first + KEYS, m) - 1 + window - (m - n), n) * share
    turned = tl.zeros([KEYS, COLUMNS], tl.float32)
    added = tl.zeros([KEYS, COLUMNS], tl.float32)
    for start in range(low, end, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = row < end
        kept, seen = _seen(
            mask, of_query, of_key, batch, row, at, first, m, n, m, share, window, ahead, masked, packed,
            mask_batch, mask_key, query_batch, query_row, key_batch, key_row,
        )  # fmt: skip
        seen = seen & inside[:, None]
        q = query + place_of(group, row, heads, share, n, 0, q_batch, q_head, q_row)
        result = (group * share + row % share) * n + row // share
        of_level = tl.load(level + result, mask=inside, other=0.0)
        pushed = tl.load(push + result, mask=inside, other=0.0)
        weight, slope = _slopes(
            q, q_column, inside, key + at * k_row, k_column, value + at * v_row, v_column, kept, seen,
            grad + result * width, of_level, pushed, scale, dim, width, ROWS, KEYS, DEPTH,
        )  # fmt: skip
        part = inside[:, None] & (column < dim)[None, :]
        x = tl.load(q[:, None] + column[None, :] * q_column, mask=part, other=0).to(tl.float32)
        turned = tl.dot(tl.trans(slope), x, turned, input_precision="tf32x3")
        part = inside[:, None] & (column < width)[None, :]
        g = tl.load(grad + result[:, None] * width + column[None, :], mask=part, other=0.0)
        added = tl.dot(tl.trans(weight), g, added, input_precision="tf32x3")
    result = group * m + at
    part = (at < m)[:, None] & (column < dim)[None, :]
    into = grad_key + result[:, None] * dim + column[None, :]
    tl.store(into, (scale * turned).to(grad_key.dtype.element_ty), mask=part)
    part = (at < m)[:, None] & (column < width)[None, :]
    into = grad_value + result[:, None] * width + column[None, :]
    tl.store(into, added.to(grad_value.dtype.element_ty), mask=part)
