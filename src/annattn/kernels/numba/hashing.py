"""Codes of rows on a CPU: float32 speed, float64 answers.

Projections of a tile of rows are a product in float32 that stays in a near cache, with a rigorous bound on their
rounding error; the few answers that this error could have decided are computed again in float64. So the codes are those
of the family's `evaluate`, whatever the tile, the number of threads and the order in which the product was summed.

Everything is laid out with rows innermost, so that the loops below are loops over rows, which LLVM vectorises, at the
same speed for any number of hashes.
"""

from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.kernels.codes import heads_and_shares
from annattn.kernels.numba import memory
from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.numbering import number_rows
from annattn.kernels.numba.rows import set_row
from annattn.kernels.numba.simd import LANES, transpose_block
from annattn.kernels.numba.threads import pieces_of, run_pieces
from annattn.lsh import NO_BUCKET, CrossPolytope, Hasher, Identity, pairs_of_half_keys

__all__ = ["equal_rows", "hash_rows"]

_TILE = 512  # rows hashed at a time
_GAP = 16  # entries between the lines of a tile: at a distance of a power of two they would push each other out
_MANY = 1024  # projections per row from which a tile has a quarter of those
_LANES = 64  # the same for rotations
_PIECE = 2**18  # numbers rotated that are worth a thread of their own
_WORTH = 2**20  # multiply-adds that are
_ONE_COPY = torch.empty(1, 0, device="cpu")
_U = np.uint64

# |float32 dot product − exact| ≤ γ ‖x‖‖a‖ with γ = k·u/(1 − k·u), u = 2^−24 and k = dim + 1 roundings, one of them that
# of float64 rows to float32; a little more covers the rounding of the bound itself.
_UNIT = 2.0**-24
_SLACK = 1.01

# Outside this range float32 squares overflow or lose digits: then every answer is in doubt.
_LEAST_SQUARE, _LARGEST_SQUARE = 1e-20, 1e30
_HUGE = 1e100  # `lsh.rows.rescale_huge` scales rows with larger entries down


def hash_rows(hasher: Hasher, *inputs: Tensor) -> list[Tensor]:
    """Codes of rows (batch, heads, n, dim), for each of the inputs: see `Backend.hash_rows`."""
    if hasher.shared:
        return [_paired(hasher, codes) for codes in hash_rows(hasher.halves(), *inputs)]
    filled, parts, draws = [], [], hasher.heads
    for x in inputs:
        if not x.dtype.is_floating_point:
            hasher.family.check_rows(x)
        batch, heads, n, dim = x.shape
        # Tables lie apart in memory, as the sums want them, and heads of one draw side by side.
        codes = memory.empty(draws, batch, heads // draws, hasher.tables, n)
        filled.append(codes)
        if codes.numel():
            rows = (x.float() if x.dtype.itemsize < 4 else x).detach()
            by_draw = rows.reshape(batch, draws, heads // draws, n, dim).transpose(0, 1).flatten(1, 3)
            into = codes.numpy().reshape(draws, -1, hasher.tables, n)
            parts.extend(zip(by_draw, into, range(draws), strict=True))
    family, functions, structured = hasher.family, draws * hasher.tables * hasher.hashes, False
    expected = (functions, family.dim)
    if isinstance(family, CrossPolytope):
        structured = family.rotation == "structured"
        expected = (functions, 3, family.axes) if structured else (functions, family.axes, family.dim)
    if len(hasher.parameters) != 1 or hasher.parameters[0].shape != expected:
        given = f"parameters of shapes {[tuple(drawn.shape) for drawn in hasher.parameters]}"
        raise InputError("hasher", given=given, expected=f"{expected}, as {family} draws them")
    (_hash_by_rotations if structured else _hash_by_products)(hasher, parts)
    for at, codes in enumerate(filled):
        filled[at] = codes.transpose(0, 1).flatten(1, 2).transpose(2, 3)
    return filled


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


def _hash_by_products(hasher: Hasher, parts: list[tuple[Tensor, np.ndarray, int]]) -> None:
    """By projections."""
    vectors = hasher.parameters[0]  # normals (functions, dim), or matrices (functions, axes, dim)
    axes = 0 if vectors.ndim == 2 else vectors.shape[1]
    vectors = vectors.reshape(hasher.heads, -1, hasher.family.dim).numpy()
    tile = _TILE if vectors.shape[1] <= _MANY else _TILE // 4
    pieces, kinds, total = [], set(), 0
    for rows, _, _ in parts:
        kinds.add(rows.dtype)
        total += len(rows)
    # Codes do not depend on how rows are cut: a few pieces per thread, none too short.
    size = tile * -(-max(_WORTH // vectors[0].size, total // (4 * torch.get_num_threads())) // tile)
    for rows, codes, draw in parts:
        pieces.extend(
            zip(repeat(rows.contiguous().numpy()), repeat(codes), repeat(draw), range(0, len(rows), size), strict=False)
        )

    def piece(number: int) -> None:
        rows, codes, draw, first = pieces[number]
        _project_rows(first, min(first + size, len(rows)), rows, vectors[draw], tile, axes, hasher.hashes, codes)

    run_pieces(piece, len(pieces), "products", *kinds)


def _hash_by_rotations(hasher: Hasher, parts: list[tuple[Tensor, np.ndarray, int]]) -> None:
    """By three rounds of signs and a Hadamard transform."""
    signs = hasher.parameters[0].float().numpy()  # (functions, 3, axes)
    signs = signs.reshape(hasher.heads, -1, *signs.shape[1:])
    size = _LANES * max(1, _PIECE // (signs[0].size * _LANES))
    pieces = [(rows.numpy(), codes, draw, first) for rows, codes, draw in parts for first in range(0, len(rows), size)]

    def piece(number: int) -> None:
        rows, codes, draw, first = pieces[number]
        _rotate_rows(first, min(first + size, len(rows)), rows, signs[draw], hasher.hashes, codes)

    run_pieces(piece, len(pieces), "rotations", *{rows.dtype for rows, *_ in parts})


@kernel
def _largest_length(vectors, padded):
    """Copy the vectors into an array with some more zeros; the length of the longest."""
    largest = 0.0
    for line in range(vectors.shape[0]):
        square = 0.0
        for k in range(vectors.shape[1]):
            padded[line, k] = vectors[line, k]
            square += np.float64(vectors[line, k]) ** 2
        largest = max(largest, square)
    return np.sqrt(largest)


@kernel
def _aligned(count):
    """As many zeros, from the beginning of a line of the cache on: vectors across two lines would cost a fifth more."""
    room = np.zeros(count + 16, np.float32)
    skipped = -room.ctypes.data % 64 // 4
    return room[skipped : skipped + count]


@kernel
def _project_rows(start, stop, rows, vectors, tile, axes, hashes, codes):
    """Write the codes of rows [start, stop), a tile at a time; codes are (heads, tables, n), numbered through heads."""
    # The loops take four lines and four columns at a time.
    lines, dim = -(-vectors.shape[0] // 4) * 4, -(-vectors.shape[1] // 4) * 4
    padded = np.zeros((lines, dim), np.float32)
    unit = (vectors.shape[1] + 1) * _UNIT
    spread = _SLACK * unit / (1 - unit) * _largest_length(vectors, padded)
    flat, flat_rows, stride = padded.reshape(-1), rows.reshape(-1), tile + _GAP
    upright, product = _aligned(dim * stride), _aligned(lines * stride)
    bounds = np.empty(tile, np.float32)
    for first in range(start, stop, tile):
        count = min(tile, stop - first)
        # These read the rows from end to end, and so bring them near for what follows.
        _set_bounds(rows, first, spread, bounds[:count])
        _set_upright(flat_rows, first * rows.shape[1], count, rows.shape[1], upright, stride)
        for line in range(0, lines, 4):
            at = line * stride
            set_row(product, at, 0, 4 * stride)
            for k in range(0, dim, 4):
                _add_products(product, at, flat, line * dim + k, dim, upright, k * stride, stride, count)
        if axes == 0:
            _pack_signs(product.reshape(lines, stride), first, count, rows, vectors, bounds, hashes, codes)
        else:
            _pack_axes(product.reshape(lines, stride)[:, :count], first, rows, vectors, axes, bounds, hashes, codes)


@kernel
def _set_upright(rows, begin, count, dim, upright, stride):
    """Transpose rows, block by block; what is left over at the edges number by number."""
    whole_rows, whole_columns = count // LANES * LANES, dim // LANES * LANES
    if rows.dtype == upright.dtype:
        for column in range(0, whole_columns, LANES):
            for r in range(0, whole_rows, LANES):
                transpose_block(upright, column * stride + r, stride, rows, begin + r * dim + column, dim)
    else:
        whole_rows, whole_columns = 0, 0
    for r in range(count):
        of, to = _U(begin + r * dim), _U(r)
        for k in range(_U(whole_columns if r < whole_rows else 0), _U(dim)):
            upright[to + k * _U(stride)] = rows[of + k]


@kernel(fastmath={"reassoc", "contract"})
def _add_products(product, at, vectors, of, dim, rows, place, stride, count):
    """Four lines of the product += four entries of each of four vectors times four lines of upright rows.

    All sixteen factors stay in registers, as far as a processor has them. Places are unsigned, as in `rows`.
    """
    at, of, dim, place, stride = _U(at), _U(of), _U(dim), _U(place), _U(stride)
    one, two, three = _U(1), _U(2), _U(3)
    a0, a1, a2, a3 = vectors[of], vectors[of + one], vectors[of + two], vectors[of + three]
    of += dim
    b0, b1, b2, b3 = vectors[of], vectors[of + one], vectors[of + two], vectors[of + three]
    of += dim
    c0, c1, c2, c3 = vectors[of], vectors[of + one], vectors[of + two], vectors[of + three]
    of += dim
    d0, d1, d2, d3 = vectors[of], vectors[of + one], vectors[of + two], vectors[of + three]
    place1, place2, place3 = place + stride, place + two * stride, place + three * stride
    at1, at2, at3 = at + stride, at + two * stride, at + three * stride
    for r in range(_U(count)):
        x0, x1, x2, x3 = rows[place + r], rows[place1 + r], rows[place2 + r], rows[place3 + r]
        product[at + r] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
        product[at1 + r] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
        product[at2 + r] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
        product[at3 + r] += d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3


@kernel(fastmath={"reassoc", "contract"})
def _set_bounds(rows, first, spread, bounds):
    """How far from zero a projection of each row must be for its sign to be certain; infinite if none is."""
    for r in range(len(bounds)):
        square = rows.dtype.type(0)
        for k in range(rows.shape[1]):
            square += rows[first + r, k] * rows[first + r, k]
        certain = square > _LEAST_SQUARE and square < _LARGEST_SQUARE
        bounds[r] = spread * np.sqrt(square) if certain else np.inf


@kernel
def _pack_signs(product, first, count, rows, planes, bounds, hashes, codes):
    """Write the codes of `count` rows from `first` on, whose projections are the columns of `product`: their signs."""
    _, tables, n = codes.shape
    word, least = np.empty(count, np.int32), np.full(count, np.inf, np.float32)
    zero = product.dtype.type(0)  # compared with a plain 0, all would become float64
    for table in range(tables):
        for low in range(0, hashes, 31):  # of a wide code, as many bits at a time as fit a word
            word[:] = 0
            last = min(low + 31, hashes)
            four = low + (last - low) // 4 * 4
            for h in range(low, four, 4):
                _pack_four(product, table * hashes + h, np.int32(h - low), word, least)
            for h in range(four, last):
                line, bit = product[table * hashes + h, :count], np.int32(1) << np.int32(h - low)
                for r in range(count):
                    word[r] |= bit if line[r] >= zero else np.int32(0)
                    least[r] = abs(line[r]) if abs(line[r]) < least[r] else least[r]
            r = 0
            while r < count:
                head, place = divmod(first + r, n)
                length = min(count - r, n - place)
                into, bits = codes[head, table, place : place + length], word[r : r + length]
                if low == 0:
                    for k in range(length):
                        into[k] = bits[k]
                else:
                    for k in range(length):
                        into[k] |= np.int64(bits[k]) << np.int64(low)
                r += length
    for r in range(count):
        if not least[r] > bounds[r]:
            head, place = divmod(first + r, n)
            row = rows[first + r]
            scale = _scale(row)
            if scale < 0:
                codes[head, :, place] = NO_BUCKET
                continue
            for table in range(tables):
                for h in range(hashes):
                    if not (abs(product[table * hashes + h, r]) > bounds[r]):
                        bit = np.int64(1) << np.int64(h)
                        if _dot(row, planes[table * hashes + h], scale) >= 0:
                            codes[head, table, place] |= bit
                        else:
                            codes[head, table, place] &= ~bit


@kernel(inlined=True)
def _pack_four(product, line, shift, word, least):
    """Four hashes at once: their bits from `shift` on, and how near to zero a projection comes."""
    a, b, c, d = product[line], product[line + 1], product[line + 2], product[line + 3]
    zero, one = product.dtype.type(0), np.int32(1)
    for r in range(len(word)):
        bits = np.int32(a[r] >= zero) | np.int32(b[r] >= zero) << one
        bits |= np.int32(c[r] >= zero) << (one + one) | np.int32(d[r] >= zero) << np.int32(3)
        word[r] |= bits << shift
        x, y = abs(a[r]), abs(b[r])
        x = x if x < y else y
        u, v = abs(c[r]), abs(d[r])
        u = u if u < v else v
        x = x if x < u else u
        least[r] = x if x < least[r] else least[r]


@kernel
def _scale(row):
    """What to divide a row by so that no product overflows, as `rescale_huge` does; negative if it is not finite."""
    largest = 0.0
    for k in range(len(row)):
        size = abs(np.float64(row[k]))
        if not size < np.inf:
            return -1.0
        largest = max(largest, size)
    return largest if largest > _HUGE else 1.0


@kernel
def _dot(row, vector, scale):
    total = 0.0
    for k in range(len(row)):
        total += np.float64(row[k]) / scale * np.float64(vector[k])
    return total


@kernel
def _pack_axes(product, first, rows, matrices, axes, bounds, hashes, codes):
    """The same with the nearest signed axis of each function's `axes` projections as its digit."""
    tables, count = codes.shape[1], product.shape[1]
    exact = np.empty(axes)
    largest, second = np.empty(count, product.dtype), np.empty(count, product.dtype)
    winner, code = np.empty(count, np.int32), np.empty(count, np.int64)
    for table in range(tables):
        code[:] = 0
        place = np.int64(1)
        for h in range(hashes):
            function = table * hashes + h
            largest[:], second[:], winner[:] = -1, -1, 0
            for k in range(axes):
                _challenge(product[function * axes + k], k, largest, second, winner)
            for r in range(count):
                # Both the largest and the second may be off.
                if not (largest[r] - second[r] > 2 * bounds[r]):
                    row = rows[first + r]
                    scale = _scale(row)
                    for k in range(axes):
                        exact[k] = _dot(row, matrices[function * axes + k], scale)
                    winner[r] = _digit(exact)
                code[r] += place * winner[r]
            place *= 2 * axes
        _put(code, rows, first, table, bounds, codes)


@kernel
def _challenge(line, axis, largest, second, winner):
    """Let each row's coordinate on one more axis try for its largest absolute value; the first axis wins a tie."""
    zero = line.dtype.type(0)
    for r in range(len(line)):
        size = abs(line[r])
        wins = size > largest[r]
        runner_up = max(min(size, largest[r]), second[r])
        name = np.int32(2 * axis) + np.int32(line[r] < zero)
        second[r] = runner_up
        winner[r] = name if wins else winner[r]
        largest[r] = size if wins else largest[r]


@kernel
def _digit(row):
    """2 · axis + [negative] of the coordinate of largest absolute value, the first one of a tie."""
    best = 0
    for k in range(len(row)):
        if abs(row[k]) > abs(row[best]):
            best = k
    return np.int32(2 * best + (1 if row[best] < 0 else 0))


@kernel
def _put(code, rows, first, table, bounds, codes):
    """Write the codes of one table; a row that is not finite has no bucket."""
    n = codes.shape[2]
    for r in range(len(code)):
        head, place = divmod(first + r, n)
        lost = bounds[r] == np.inf and _scale(rows[first + r]) < 0
        codes[head, table, place] = NO_BUCKET if lost else code[r]


@kernel
def _rotate_rows(start, stop, rows, signs, hashes, codes):
    """Write the codes of rows [start, stop): per function three rounds of signs and a Hadamard transform."""
    tables, axes, dim = codes.shape[1], signs.shape[2], rows.shape[1]
    stages = 0
    while (1 << stages) < axes:
        stages += 1
    # Every stage adds a rounding of at most u times the length, which each of the three rounds scales by √axes; one
    # more rounding is that of float64 rows to float32.
    spread = np.float32(2.02 * (3 * max(stages, 1) + 1) * _UNIT * axes**1.5)
    exact = np.empty(axes)
    upright, rotated = np.empty((axes, _LANES), np.float32), np.empty((axes, _LANES), np.float32)
    largest, second = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    winner, code, bounds = np.empty(_LANES, np.int32), np.empty(_LANES, np.int64), np.empty(_LANES, np.float32)
    for first in range(start, stop, _LANES):
        count = min(_LANES, stop - first)
        upright[:] = 0
        for r in range(count):
            for k in range(dim):
                upright[k, r] = rows[first + r, k]
        _set_bounds(rows, first, spread, bounds[:count])
        for table in range(tables):
            code[:] = 0
            place = np.int64(1)
            for h in range(hashes):
                mine = signs[table * hashes + h]
                _rotate(upright, mine, rotated)
                largest[:], second[:], winner[:] = -1, -1, 0
                for k in range(axes):
                    _challenge(rotated[k], k, largest, second, winner)
                for r in range(count):
                    if not (largest[r] - second[r] > bounds[r]):
                        _rotate_exactly(rows[first + r], _scale(rows[first + r]), mine, exact)
                        winner[r] = _digit(exact)
                    code[r] += place * winner[r]
                place *= 2 * axes
            _put(code[:count], rows, first, table, bounds, codes)


@kernel
def _rotate(rows, signs, rotated):
    """Three rounds of signs and a Hadamard transform of columns of (axes, rows)."""
    axes, count = rows.shape
    for turn in range(3):
        for k in range(axes):
            sign, of, to = signs[turn, k], rows[k] if turn == 0 else rotated[k], rotated[k]
            for r in range(count):
                to[r] = of[r] * sign
        step = 1
        while step < axes:
            for block in range(0, axes, 2 * step):
                for k in range(block, block + step):
                    low, high = rotated[k], rotated[k + step]
                    for r in range(count):
                        even, odd = low[r], high[r]
                        low[r] = even + odd
                        high[r] = even - odd
            step *= 2


@kernel
def _rotate_exactly(row, scale, signs, exact):
    """The same for one row in float64, in the order of operations of `CrossPolytope.evaluate`."""
    axes = len(exact)
    for k in range(axes):
        exact[k] = np.float64(row[k]) / scale if k < len(row) else 0.0
    for turn in range(3):
        for k in range(axes):
            exact[k] *= signs[turn, k]
        step = 1
        while step < axes:
            for block in range(0, axes, 2 * step):
                for k in range(block, block + step):
                    even, odd = exact[k], exact[k + step]
                    exact[k] = even + odd
                    exact[k + step] = even - odd
            step *= 2


def equal_rows(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes in one table that are equal exactly when rows are: see `Backend.equal_rows`."""
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

    run_pieces(one, key.shape[0] * heads, "rows")
    return query_codes, key_codes
