"""Codes of rows: float32 products, and float64 ones for the tiles in which rounding could have decided an answer.

The codes are those of the families' float64 definition, as on the CPU: a rigorous bound on the error of a float32
product says which answers are in doubt, and a program that has one repeats its tile in float64. The host reads nothing.

Work: 2·dim operations per row and hyperplane, 2·dim·axes per row and dense rotation, 3·axes·log2(axes) per row and
structured one. Memory: the codes, and the rows in float32 where they are not.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from annattn.kernels.triton.launch import kernel, launch, pieces
from annattn.lsh import CrossPolytope, Hasher

__all__ = ["BITS", "MOST_AXES", "hash_rows"]

MOST_AXES = 128  # of a structured rotation, which a program keeps whole
BITS = (4, 8, 16, 64)  # hashes per table, filled up to one of these
_ROWS = 32
_FUNCTIONS = 64  # hash functions of a program: as many whole tables as fit
_DEPTH = 32
_ELEMENTS = 1024  # of a structured rotation in one program

# |float32 dot product − exact| ≤ γ ‖x‖‖a‖ with γ = k·u/(1 − k·u), u = 2^−24 and k = dim + 1 roundings.
_UNIT = 2.0**-24
_SLACK = 1.01


def hash_rows(hasher: Hasher, x: Tensor) -> Tensor:
    """Codes (batch, heads, n, tables) of rows (batch, heads, n, dim): see `Backend.hash_rows`."""
    if hasher.heads > 1:
        parts = x.chunk(hasher.heads, dim=1) if x.shape[1] else (x,) * hasher.heads
        return torch.cat([hash_rows(hasher.head(h), part) for h, part in enumerate(parts)], dim=1)
    batch, heads, n, dim = x.shape
    # Tables lie apart in memory, as the sums want them.
    codes = torch.empty(batch, heads, hasher.tables, n, dtype=torch.int64, device=x.device)
    x, count = x.detach().float(), batch * heads * n
    (drawn,) = (parameter.to(x.device) for parameter in hasher.parameters)
    where = (n, heads, hasher.tables, hasher.hashes, dim)
    if isinstance(hasher.family, CrossPolytope) and hasher.family.rotation == "structured":
        axes = hasher.family.axes
        stages = axes.bit_length() - 1
        spread = 2 * _SLACK * (3 * stages + 1) * _UNIT * axes**1.5
        rows = _ELEMENTS // axes
        launch(
            _hash_rotations, (pieces(count, rows), hasher.tables),
            x, drawn, codes, count, *where, spread, *x.stride(), ROWS=rows, AXES=axes, STAGES=stages, warps=8,
            registers=128,
        )  # fmt: skip
        return codes.transpose(2, 3)
    unit = (dim + 1) * _UNIT
    spread = _SLACK * unit / (1 - unit)
    if drawn.ndim == 3:
        launch(
            _hash_axes, (pieces(count, _ROWS), hasher.tables),
            x, drawn, codes, count, *where, drawn.shape[1], 2 * spread, *x.stride(),
            ROWS=_ROWS, AXES=_FUNCTIONS, DEPTH=_DEPTH, warps=8,
        )  # fmt: skip
        return codes.transpose(2, 3)
    bits = next(bits for bits in BITS if hasher.hashes <= bits)
    launch(
        _hash_signs, (pieces(count, _ROWS), pieces(hasher.tables, _FUNCTIONS // bits)),
        x, drawn, codes, count, *where, spread, *x.stride(),
        ROWS=_ROWS, FUNCTIONS=_FUNCTIONS, BITS=bits, DEPTH=_DEPTH, warps=8,
    )  # fmt: skip
    return codes.transpose(2, 3)


@triton.jit
def _begin(row, n, heads, of_batch, of_head, of_row):
    """Where a row, numbered through batch and heads, begins."""
    head = (row // n).to(tl.int64)
    return (head // heads) * of_batch + (head % heads) * of_head + (row % n) * of_row


@triton.jit
def _certain(largest, square, spread):
    """How far apart float32 results must be for their order to be certain; beyond all of them if float32 cannot say."""
    within = (largest < 1e15) & (square > 1e-20)
    return tl.where(within, spread * tl.sqrt(tl.where(within, square, 1.0)), 1e30)


@triton.jit
def _products(
    x, vectors, inside, vector, known, dim, of_column,
    ROWS: tl.constexpr, FUNCTIONS: tl.constexpr, DEPTH: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Projections of rows; the largest entry and the sum of squares of each row; the sum of squares of each vector.

    Entries that are not finite count as zero. For float32 products huge entries are left out as well, since their rows
    are in doubt anyway.
    """
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    product = tl.zeros([ROWS, FUNCTIONS], kind)
    largest = tl.zeros([ROWS], tl.float32)
    square = tl.zeros([ROWS], tl.float32)
    reach = tl.zeros([FUNCTIONS], tl.float32)
    for first in range(0, dim, DEPTH):
        depth = first + tl.arange(0, DEPTH)
        part = tl.load(x[:, None] + depth[None, :] * of_column, inside[:, None] & (depth < dim)[None, :], other=0.0)
        against = tl.load(
            vectors + vector[:, None] * dim + depth[None, :], known[:, None] & (depth < dim)[None, :], other=0.0
        )
        size = tl.abs(part)
        largest = tl.maximum(largest, tl.max(tl.where(size == size, size, float("inf")), 1))
        small = tl.where(size < 1e15, part, 0.0)
        square += tl.sum(small * small, 1)
        reach += tl.sum(against * against, 1)
        kept = tl.where(size < float("inf"), part, 0.0) if EXACT else small
        product = tl.dot(kept.to(kind), tl.trans(against).to(kind), product, input_precision="ieee", out_dtype=kind)
    return product, largest, square, reach


@kernel
def _hash_signs(
    x, vectors, codes, count, n, heads, tables, hashes, dim, spread: tl.float32,
    of_batch: tl.int64, of_head: tl.int64, of_row: tl.int64, of_column: tl.int64,
    ROWS: tl.constexpr, FUNCTIONS: tl.constexpr, BITS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The signs of projections, packed: bit h of a code is [a·x ≥ 0] for the h-th function of the table."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    x += _begin(row, n, heads, of_batch, of_head, of_row)
    function = tl.arange(0, FUNCTIONS)
    table = tl.program_id(1) * (FUNCTIONS // BITS) + function // BITS
    bit = function % BITS
    known = (bit < hashes) & (table < tables)
    vector = table * hashes + bit
    product, largest, square, reach = _products(
        x, vectors, inside, vector, known, dim, of_column, ROWS, FUNCTIONS, DEPTH, False
    )
    positive = product >= 0
    near = _certain(largest, square, spread)
    doubt = (tl.abs(product) <= near[:, None] * tl.sqrt(reach)[None, :]) & inside[:, None] & known[None, :]
    if tl.max(tl.max(doubt.to(tl.int32), 1), 0) > 0:
        exact, _, _, _ = _products(x, vectors, inside, vector, known, dim, of_column, ROWS, FUNCTIONS, DEPTH, True)
        positive = tl.where(doubt, exact >= 0, positive)
    word = tl.where(positive & known[None, :], 1, 0).to(tl.int64) << bit[None, :].to(tl.int64)
    code = tl.sum(tl.reshape(word, [ROWS, FUNCTIONS // BITS, BITS]), 2)
    # Without a bucket: the code -1, as `NO_BUCKET` is.
    code = tl.where((largest < float("inf"))[:, None], code, -1)
    into = tl.program_id(1) * (FUNCTIONS // BITS) + tl.arange(0, FUNCTIONS // BITS)
    at = ((row // n).to(tl.int64)[:, None] * tables + into[None, :]) * n + (row % n)[:, None]
    tl.store(codes + at, code, mask=inside[:, None] & (into < tables)[None, :])


@triton.jit
def _nearest(size, product, first):
    """The largest and second largest of each row, and 2·axis + [negative] of the largest, the first of a tie."""
    axis = tl.arange(0, size.shape[1])
    best = tl.argmax(size, 1, tie_break_left=True)
    here = axis[None, :] == best[:, None]
    second = tl.max(tl.where(here, -1.0, size), 1)
    negative = tl.max(tl.where(here & (product < 0), 1, 0), 1)
    return tl.max(size, 1), second, 2 * (first + best) + negative


@triton.jit
def _nearest_axis(
    x, vectors, inside, function, axes, dim, of_column,
    ROWS: tl.constexpr, AXES: tl.constexpr, DEPTH: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The digit of one function, by how much its axis wins, and what `_products` says of rows and vectors."""
    kind: tl.constexpr = tl.float64 if EXACT else tl.float32
    best = tl.full([ROWS], -1.0, kind)
    second = tl.full([ROWS], -1.0, kind)
    digit = tl.zeros([ROWS], tl.int32)
    largest = tl.zeros([ROWS], tl.float32)
    square = tl.zeros([ROWS], tl.float32)
    longest = tl.full([], 0.0, tl.float32)
    for first in range(0, axes, AXES):
        axis = first + tl.arange(0, AXES)
        known = axis < axes
        product, largest, square, reach = _products(
            x, vectors, inside, function * axes + axis, known, dim, of_column, ROWS, AXES, DEPTH, EXACT
        )
        size = tl.where(known[None, :], tl.abs(product), -1.0)
        high, low, name = _nearest(size, product, first)
        wins = high > best
        second = tl.where(wins, tl.maximum(best, low), tl.maximum(second, high))
        digit = tl.where(wins, name, digit)
        best = tl.where(wins, high, best)
        longest = tl.maximum(longest, tl.max(reach, 0))
    return digit, best - second, largest, square, tl.sqrt(longest)


@kernel
def _hash_axes(
    x, vectors, codes, count, n, heads, tables, hashes, dim, axes, spread: tl.float32,
    of_batch: tl.int64, of_head: tl.int64, of_row: tl.int64, of_column: tl.int64,
    ROWS: tl.constexpr, AXES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The nearest signed axes of one table's functions, as digits of its code."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    x += _begin(row, n, heads, of_batch, of_head, of_row)
    code = tl.zeros([ROWS], tl.int64)
    place = tl.full([], 1, tl.int64)
    lost = tl.zeros([ROWS], tl.int32)
    for h in range(hashes):
        function = tl.program_id(1) * hashes + h
        digit, lead, largest, square, longest = _nearest_axis(
            x, vectors, inside, function, axes, dim, of_column, ROWS, AXES, DEPTH, False
        )
        doubt = (lead <= _certain(largest, square, spread) * longest) & inside
        if tl.max(doubt.to(tl.int32), 0) > 0:
            exact, _, _, _, _ = _nearest_axis(
                x, vectors, inside, function, axes, dim, of_column, ROWS, AXES, DEPTH, True
            )
            digit = tl.where(doubt, exact, digit)
        code += place * digit
        place = place * (2 * axes)
        lost = tl.where(largest < float("inf"), 0, 1)
    at = ((row // n).to(tl.int64) * tables + tl.program_id(1)) * n + row % n
    tl.store(codes + at, tl.where(lost == 0, code, -1), mask=inside)


@triton.jit
def _rotate(part, signs, axis, ROWS: tl.constexpr, AXES: tl.constexpr, STAGES: tl.constexpr):
    """Three rounds of signs and a Hadamard transform, in the order of operations of `CrossPolytope.evaluate`."""
    for turn in tl.static_range(3):
        part = part * tl.load(signs + turn * AXES + axis)[None, :].to(part.dtype)
        for stage in tl.static_range(STAGES):
            pairs = tl.reshape(part, [ROWS, AXES >> (stage + 1), 2, 1 << stage])
            even, odd = tl.split(tl.permute(pairs, [0, 1, 3, 2]))
            part = tl.reshape(tl.permute(tl.join(even + odd, even - odd), [0, 1, 3, 2]), [ROWS, AXES])
    return part


@kernel
def _hash_rotations(
    x, signs, codes, count, n, heads, tables, hashes, dim, spread: tl.float32,
    of_batch: tl.int64, of_head: tl.int64, of_row: tl.int64, of_column: tl.int64,
    ROWS: tl.constexpr, AXES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The same after the structured rotation, which a program keeps whole."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    axis = tl.arange(0, AXES)
    x += _begin(row, n, heads, of_batch, of_head, of_row)
    given = tl.load(x[:, None] + axis[None, :] * of_column, inside[:, None] & (axis < dim)[None, :], other=0.0)
    size = tl.abs(given)
    largest = tl.max(tl.where(size == size, size, float("inf")), 1)
    small = tl.where(size < 1e15, given, 0.0)
    near = _certain(largest, tl.sum(small * small, 1), spread)
    whole = tl.where(size < float("inf"), given, 0.0)
    code = tl.zeros([ROWS], tl.int64)
    place = tl.full([], 1, tl.int64)
    for h in range(hashes):
        mine = signs + (tl.program_id(1) * hashes + h) * 3 * AXES
        turned = _rotate(small, mine, axis, ROWS, AXES, STAGES)
        best, second, digit = _nearest(tl.abs(turned), turned, 0)
        doubt = (best - second <= near) & inside
        if tl.max(doubt.to(tl.int32), 0) > 0:
            slowly = _rotate(whole.to(tl.float64), mine, axis, ROWS, AXES, STAGES)
            _, _, exact = _nearest(tl.abs(slowly), slowly, 0)
            digit = tl.where(doubt, exact, digit)
        code += place * digit
        place = place * (2 * AXES)
    at = ((row // n).to(tl.int64) * tables + tl.program_id(1)) * n + row % n
    tl.store(codes + at, tl.where(largest < float("inf"), code, -1), mask=inside)
