"""Codes of rows on a CPU: float32 speed, float64 answers.

Projections of a tile of rows are a product in float32 that stays in a near cache, with a rigorous bound on their
rounding error; the few answers that this error could have decided are computed again in float64. So the codes are those
of the family's `evaluate`, whatever the tile, the number of threads and the order in which the product was summed.

Signs of projections are packed, four functions at a time while they are still in the nearest cache, into words of 32
bits, whatever the tables; each table then takes its bits out of the words. `axes` is the same for `CrossPolytope`.
"""

import numpy as np
import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.kernels.numba import memory
from annattn.kernels.numba.axes import hash_axes, rotate_rows
from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.projections import (
    GAP,
    aligned,
    dot,
    line_up,
    near_dot,
    project_four,
    project_one,
    scale_of,
    set_upright,
    set_upright_bounds,
    spread_of,
)
from annattn.kernels.numba.threads import pieces_of, run_pieces
from annattn.lsh import NO_BUCKET, CrossPolytope, Hasher, pairs_of_half_keys

__all__ = ["hash_rows"]

_TILE = 512  # rows hashed at a time
_WORTH = 2**20  # multiply-adds that are worth a thread of their own
_U, _I = np.uint64, np.int32
_SIZE, _LARGEST = np.int32(0x7FFFFFFF), np.int32(0x7F800000)  # the bits of |x|, and those of infinity


def hash_rows(hasher: Hasher, *inputs: Tensor) -> list[Tensor]:
    """Codes of rows (batch, heads, n, dim), for each of the inputs: see `Backend.hash_rows`."""
    if hasher.shared:
        return [_paired(hasher, codes) for codes in hash_rows(hasher.halves(), *inputs)]
    filled, parts, draws, tables = [], [], hasher.heads, hasher.tables
    for x in inputs:
        if not x.dtype.is_floating_point:
            hasher.family.check_rows(x)
        batch, heads, n, dim = x.shape
        # Tables lie apart in memory, as the sums want them, and heads of one draw side by side.
        by_draw = (draws, batch, heads // draws) if draws > 1 else (batch, heads)
        codes = memory.empty_array((*by_draw, tables, n), np.int64)
        filled.append(torch.from_numpy(codes))
        if not codes.size:
            continue
        rows = x.detach() if x.dtype.itemsize >= 4 else x.detach().float()
        if draws > 1:
            rows = rows.unflatten(1, (draws, -1)).transpose(0, 1)
        rows, codes = rows.contiguous().numpy().reshape(draws, -1, dim), codes.reshape(draws, -1, tables, n)
        for draw in range(draws):
            parts.append((rows[draw], codes[draw], draw))
    _hash_parts(hasher, parts)
    for at, codes in enumerate(filled):
        filled[at] = (codes if draws == 1 else codes.transpose(0, 1).flatten(1, 2)).transpose(2, 3)
    return filled


def _hash_parts(hasher: Hasher, parts: list[tuple[np.ndarray, np.ndarray, int]]) -> None:
    """Write codes (heads, tables, n) of rows (heads · n, dim), by the draw of that number."""
    family, functions = hasher.family, hasher.heads * hasher.tables * hasher.hashes
    hash_piece = _hash_one if functions == hasher.heads else _hash_signs
    expected = (functions, family.dim)
    if isinstance(family, CrossPolytope):
        structured = family.rotation == "structured"
        expected = (functions, 3, family.axes) if structured else (functions, family.axes, family.dim)
        hash_piece = rotate_rows if structured else hash_axes
    if len(hasher.parameters) != 1 or hasher.parameters[0].shape != expected:
        given = f"parameters of shapes {[tuple(drawn.shape) for drawn in hasher.parameters]}"
        raise InputError("hasher", given=given, expected=f"{expected}, as {family} draws them")
    drawn = (hasher.parameters[0].float() if hash_piece is rotate_rows else hasher.parameters[0]).numpy()
    drawn = drawn.reshape(hasher.heads, -1, *drawn.shape[1:])
    pieces, kinds, total, threads = [], set(), 0, torch.get_num_threads()
    for rows, _, _ in parts:
        kinds.add(rows.dtype.char)
        total += len(rows)
    # Codes do not depend on how rows are cut: a few pieces per thread, none too short.
    alone = threads == 1 or total * drawn[0].size < 2 * _WORTH
    size = total if alone else max(_WORTH // drawn[0].size, total // (4 * threads))
    size = _TILE * max(1, -(-size // _TILE))
    for part in parts:
        for first in range(0, len(part[0]), size):
            pieces.append((part, first))

    batches = [pieces] if alone else [[each] for each in pieces]  # small calls wake no thread

    def batch(number: int) -> None:
        for (rows, codes, draw), first in batches[number]:
            hash_piece(first, min(first + size, len(rows)), rows, drawn[draw], hasher.hashes, codes)

    run_pieces(batch, len(batches), hash_piece, *kinds)


def _paired(hasher: Hasher, halves: Tensor) -> Tensor:
    """Codes (batch, heads, n, tables) from those of half-keys (batch, heads, n, half-keys)."""
    batch, heads, n, count = halves.shape
    pairs, values = np.array(pairs_of_half_keys(hasher.tables)), hasher.family.values
    assert values is not None
    codes = memory.empty(batch, heads, hasher.tables, n)
    if not codes.numel():
        return codes.transpose(2, 3)
    of = halves.transpose(2, 3).contiguous().numpy().reshape(-1, count, n)
    into, base = codes.numpy().reshape(-1, hasher.tables, n), values ** (hasher.hashes // 2)
    pieces, _ = pieces_of(len(of), hasher.tables * n, 1)
    edges = len(of) * np.arange(pieces + 1) // pieces
    run_pieces(lambda piece: _pair(of, pairs, base, edges[piece], edges[piece + 1], into), pieces, "pairs")
    return codes.transpose(2, 3)


@kernel
def _pair(halves, pairs, base, first, last, codes):
    """Code = first half + base · second half; a row has a bucket in all tables or in none."""
    for g in range(first, last):
        for table in range(len(pairs)):
            low, high, into = halves[g, pairs[table, 0]], halves[g, pairs[table, 1]], codes[g, table]
            for i in range(len(into)):
                into[i] = low[i] + base * high[i] if low[i] >= 0 else low[i]


@kernel
def _hash_signs(start, stop, rows, normals, hashes, codes):
    """Write the codes of rows [start, stop), a tile at a time; codes are (heads, tables, n), numbered through heads."""
    functions, width = normals.shape
    # The loops take four lines and four columns at a time.
    lines, dim = -(-functions // 4) * 4, -(-width // 4) * 4
    padded = np.zeros((lines, dim), np.float32)
    spread = spread_of(width, line_up(normals, padded))
    tile = min(_TILE, stop - start)
    stride = -(-tile // 16) * 16 + GAP
    upright, product = aligned(dim * stride), aligned(4 * stride)
    upright[width * stride :] = 0
    bounds, least = np.empty(tile, np.float32), np.empty(tile, np.int32)
    words = np.empty((-(-functions // 32), tile), np.int32)
    vectors, flat_rows, bits = padded.reshape(-1), rows.reshape(-1), product.view(np.int32)
    sizes = least.view(np.float32)
    for first in range(start, stop, tile):
        count = min(tile, stop - first)
        set_upright(flat_rows, first * width, count, width, upright, stride)
        set_upright_bounds(upright, width, stride, count, spread, bounds)
        for number in range(len(words)):
            word, begin = words[number], 32 * number
            end = min(begin + 32, functions)
            word[:] = 0
            least[:] = _LARGEST
            for line in range(begin, end, 4):
                project_four(product, 0, vectors, line * dim, dim, upright, 0, stride, count)
                if line + 4 <= end:
                    _pack_four(bits, stride, _I(line - begin), word, least, count)
                else:
                    for k in range(end - line):
                        _pack_one(bits, k * stride, _I(line + k - begin), word, least, count)
            if _any_in_doubt(sizes, bounds, count):
                for r in range(count):
                    if not sizes[r] > bounds[r]:
                        word[r] = _decided(rows[first + r], normals[begin:end], bounds[r])
        _take(words, first, count, hashes, codes)
        for r in range(count):
            if bounds[r] == np.inf and scale_of(rows[first + r]) < 0:
                head, place = divmod(first + r, codes.shape[2])
                codes[head, :, place] = NO_BUCKET


@kernel
def _hash_one(start, stop, rows, normals, hashes, codes):
    """`_hash_signs` for one function, which is a product with one vector: rows are read where they lie."""
    width = normals.shape[1]
    vector = np.empty((1, width), np.float32)
    spread = spread_of(width, line_up(normals, vector))
    tile = min(_TILE, stop - start)
    product, bounds = np.empty(tile, np.float32), np.empty(tile, np.float32)
    normal, flat_vector, flat_rows, flat_codes = normals[0], vector.reshape(-1), rows.reshape(-1), codes.reshape(-1)
    for first in range(start, stop, tile):
        count = min(tile, stop - first)
        project_one(product, flat_vector, width, flat_rows, first * width, count, spread, bounds)
        for r in range(_U(count)):
            flat_codes[_U(first) + r] = product[r] >= np.float32(0)
        if _any_in_doubt(np.abs(product), bounds, count):
            for r in range(count):
                if not abs(product[r]) > bounds[r]:
                    scale = scale_of(rows[first + r])
                    near = np.int64(dot(rows[first + r], normal, scale) >= 0)
                    flat_codes[first + r] = NO_BUCKET if scale < 0 else near


@kernel(inlined=True)
def _pack_four(bits, stride, shift, word, least, count):
    """Set four bits of each row's word, from `shift` on, where a projection is negative; how near to zero they come."""
    # Only the sign bit: a zero of either sign is in doubt. Integers of the same bits as |x| are ordered as |x| is.
    one, two, three, stride = _I(1), _I(2), _I(3), _U(stride)
    at1, at2, at3 = stride, _U(2) * stride, _U(3) * stride
    for r in range(_U(count)):
        a, b, c, d = bits[r], bits[at1 + r], bits[at2 + r], bits[at3 + r]
        found = _negative(a) | _negative(b) << one | _negative(c) << two | _negative(d) << three
        word[r] |= found << shift
        least[r] = min(min(min(a & _SIZE, b & _SIZE), min(c & _SIZE, d & _SIZE)), least[r])


@kernel(inlined=True)
def _pack_one(bits, at, shift, word, least, count):
    """The same for one line."""
    at = _U(at)
    for r in range(_U(count)):
        a = bits[at + r]
        word[r] |= _negative(a) << shift
        least[r] = min(a & _SIZE, least[r])


@kernel(inlined=True)
def _negative(bits):
    return (bits >> _I(31)) & _I(1)


@kernel
def _any_in_doubt(sizes, bounds, count):
    found = _I(0)
    for r in range(_U(count)):
        found |= _I(not sizes[r] > bounds[r])
    return found != 0


@kernel
def _decided(row, normals, bound):
    """The word of a row with projections that float32 may get wrong: those are computed again in float64."""
    scale, word = scale_of(row), _I(0)
    for h in range(len(normals)):
        near = np.float64(near_dot(row, normals[h]))
        if not abs(near) > bound:
            near = dot(row, normals[h], scale)
        word |= _I(not near >= 0) << _I(h)
    return word


@kernel
def _take(words, first, count, hashes, codes):
    """Write the codes of `count` rows from `first` on: of each table its bits of the words, which mean "negative"."""
    _, tables, n = codes.shape
    r = 0
    while r < count:
        head, place = divmod(first + r, n)
        length = min(count - r, n - place)
        for table in range(tables):
            into = codes[head, table, place : place + length]
            at, done = table * hashes, 0
            while done < hashes:
                low = at % 32
                size = min(32 - low, hashes - done)
                word = words[at // 32, r : r + length]
                mask, shift, up = np.int64(1) << np.int64(size), _I(low), np.int64(done)
                mask -= np.int64(1)
                if done == 0:
                    for k in range(length):
                        into[k] = np.int64(~word[k] >> shift) & mask
                else:
                    for k in range(length):
                        into[k] |= (np.int64(~word[k] >> shift) & mask) << up
                at, done = at + size, done + size
        r += length
