"""Wide codes and whole rows as small numbers, exactly: equal ones, and only those, get the same number."""

import numpy as np
import torch
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.numba import memory
from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.threads import pieces_of, run_pieces
from annattn.lsh import IGNORED, NO_BUCKET, Identity
from annattn.seeds import splitmix64

__all__ = ["equal_rows", "number_codes", "room_for", "set_codes"]

_mixed = kernel(splitmix64)


@kernel
def set_codes(codes, reverse, limit, into, lost):
    """The codes (share, n) of one table in order of time; rows without a bucket, and unsound codes, are noted."""
    share, n = codes.shape
    nobody, wrong = False, False
    for head in range(share):
        line = codes[head]
        for at in range(n):
            code = line[n - 1 - at if reverse else at]
            nobody |= code == NO_BUCKET
            unsound = (code >= limit) | (code < IGNORED)
            wrong |= unsound
            into[at * share + head] = IGNORED if unsound else code
    if nobody:
        lost[0] = True
    if wrong:
        lost[1] = True


@kernel
def number_codes(targets, sources, names, numbers, new_targets, new_sources):
    """Number the codes of `sources` in order of appearance, exactly; targets that meet none of them get IGNORED.

    Open addressing with the full code compared, so that no two codes ever share a number. `names` and `numbers` are
    room to work in, of `room_for` the sources. Returns how many numbers there are.
    """
    names[:] = -1
    mask = np.uint64(len(names) - 1)
    used = 0
    for row in range(len(sources)):
        code = sources[row]
        if code < 0:
            new_sources[row] = code
            continue
        at = _find(names, mask, code)
        if names[at] == -1:
            names[at] = code
            numbers[at] = used
            used += 1
        new_sources[row] = numbers[at]
    for row in range(len(targets)):
        code = targets[row]
        if code < 0:
            new_targets[row] = code
            continue
        at = _find(names, mask, code)
        new_targets[row] = numbers[at] if names[at] == code else IGNORED
    return used


@kernel
def _find(names, mask, code):
    """Where a code stands, or the free place where it would."""
    at = _mixed(np.uint64(code)) & mask
    while names[at] != -1 and names[at] != code:
        at = (at + np.uint64(1)) & mask
    return at


@kernel
def room_for(entries):
    """A power of two with at least half of it free."""
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


def equal_rows(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes in one table that are equal exactly when rows are: see `Backend.equal_rows`."""
    family = Identity(query.shape[-1])
    for x in (query, key):
        family.check_rows(x)
    heads, share, _ = heads_and_shares(query, key)
    groups, n, m, dim = key.shape[0] * heads, query.shape[2], key.shape[2], query.shape[3]
    query_codes, key_codes = memory.empty(*query.shape[:3], 1), memory.empty(*key.shape[:3], 1)
    if not groups or not n + m:
        return query_codes, key_codes
    # Equal bits are equal numbers, but for -0.0, which is 0.0, and NaN, which nothing equals.
    floating = query.dtype.is_floating_point
    kind = query.dtype if query.dtype.itemsize >= 4 else torch.float32
    bits = _BITS[kind] if floating else np.int64
    queries, keys = (x.detach().to(kind if floating else torch.int64).contiguous().numpy() for x in (query, key))
    queries, keys = queries.view(bits).reshape(groups, share * n, dim), keys.view(bits).reshape(groups, m, dim)
    # The bits of infinity: those of a size above it are NaN. Integers have neither.
    infinity = np.array(np.inf, queries.dtype.str.replace("i", "f")).view(bits) if floating else bits(0)
    of_queries, of_keys = query_codes.numpy().reshape(groups, -1), key_codes.numpy().reshape(groups, -1)
    pieces, _ = pieces_of(groups, (share * n + m) * dim, 1)
    edges = groups * np.arange(pieces + 1) // pieces

    def one(piece: int) -> None:
        _number_rows(queries, keys, bits(infinity), edges[piece], edges[piece + 1], of_queries, of_keys)

    run_pieces(one, pieces, "rows", query.dtype)
    return query_codes, key_codes


_BITS = {torch.float32: np.int32, torch.float64: np.int64}


@kernel
def _number_rows(queries, keys, infinity, first_group, last_group, of_queries, of_keys):
    """Number equal rows of a group alike, in order of appearance, keys first; rows with NaN get IGNORED.

    Open addressing, with whole rows compared.
    """
    (_, n, width), m = queries.shape, keys.shape[1]
    factors = np.empty(width, np.uint64)
    for k in range(width):
        factors[k] = _mixed(np.uint64(k + 1)) | np.uint64(1)
    holders = np.empty(room_for(m + n), np.int64)
    mask = np.uint64(len(holders) - 1)
    for group in range(first_group, last_group):
        holders[:] = -1
        targets, sources = queries[group].reshape(-1), keys[group].reshape(-1)
        used = 0
        for row in range(m + n):
            rows, at = (sources, row * width) if row < m else (targets, (row - m) * width)
            scrambled, usable = _scrambled(rows, at, width, infinity, factors)
            number = np.int64(IGNORED)
            place = scrambled & mask
            while usable:
                holder = holders[place]
                if holder == -1:
                    holders[place] = row
                    number = used
                    used += 1
                    break
                others, other = (sources, holder * width) if holder < m else (targets, (holder - m) * width)
                if _same(rows, at, others, other, width, infinity):
                    number = of_keys[group, holder] if holder < m else of_queries[group, holder - m]
                    break
                place = (place + np.uint64(1)) & mask
            if row < m:
                of_keys[group, row] = number
            else:
                of_queries[group, row - m] = number


@kernel(inlined=True)
def _scrambled(rows, at, width, infinity, factors):
    """A number that equal rows have in common and others hardly ever, and whether a row is free of NaN."""
    at, kind = np.uint64(at), rows.dtype.type
    least = kind(np.iinfo(rows.dtype).min)
    total, unusable = np.uint64(0), kind(0)
    for k in range(np.uint64(width)):
        bits = rows[at + k]
        if infinity != 0:
            bits = kind(0) if bits == least else bits
            unusable |= kind((bits & ~least) > infinity)
        word = np.uint64(np.int64(bits))
        total += (word ^ (word >> np.uint64(32))) * factors[k]
    return _mixed(total), unusable == 0


@kernel(inlined=True)
def _same(rows, at, others, other, width, infinity):
    """Whether two rows without NaN are equal."""
    at, other, kind = np.uint64(at), np.uint64(other), rows.dtype.type
    least = kind(np.iinfo(rows.dtype).min)
    differ = kind(0)
    for k in range(np.uint64(width)):
        a, b = rows[at + k], others[other + k]
        # Zeros of either sign have no bits but the first.
        zeros = infinity != 0 and ((a | b) & ~least) == 0
        differ |= kind(0) if zeros else a ^ b
    return differ == 0
