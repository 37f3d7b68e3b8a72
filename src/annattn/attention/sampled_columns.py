"""Exact softmax inside blocks of rows sorted by hash, and sampled columns for all other pairs.

HyperAttention and KDEformer are this, and differ in how they sample. A key that takes no part is not sorted, sampled or
counted.
"""

import math

import torch
from torch import Tensor

from annattn.attention.inputs import accumulator
from annattn.attention.partial_softmax import Partial, partial_softmax, softmax_of_runs, taken
from annattn.errors import InputError
from annattn.lsh import Hasher

__all__ = ["blocks_and_columns", "literal_blocks", "prepared", "sampling_points", "shared_heads"]


def shared_heads(x: Tensor, heads: int) -> Tensor:
    """Key heads (batch, key heads, …) as often as query heads share them.

    >>> shared_heads(torch.ones(1, 2, 3, 4), 6).shape
    torch.Size([1, 6, 3, 4])
    """
    return x if x.shape[1] == heads else x.repeat_interleave(heads // max(x.shape[1], 1), dim=1)


def prepared(
    query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values in the dtype of the sums, with as many heads each; and which keys take part.

    The last is (batch, 1, keys). Keys that take no part, and their values, are zero: even NaN there must not matter.
    """
    live = key.new_ones(key.shape[0], 1, key.shape[2], dtype=torch.bool)
    if key_mask is not None:
        live = key_mask[:, None]
        key, value = (x.masked_fill(~live[..., None], 0) for x in (key, value))
    wide = torch.promote_types(accumulator(query.dtype), accumulator(value.dtype))
    keys, values = (shared_heads(x.to(wide), query.shape[1]) for x in (key, value))
    return query.to(wide), keys, values, live


def sampling_points(count: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """`count` numbers drawn uniformly from [0, 1), in float64: splitmix64, in operations that torch can trace.

    >>> sampling_points(2, seed=0)
    tensor([0.8833, 0.4315], dtype=torch.float64)
    """
    words = (torch.arange(1, count + 1, device=device) + ((seed << 20) & (2**63 - 1))) * -0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        words = (words ^ ((words >> shift) & ((1 << (64 - shift)) - 1))) * factor
    words = words ^ ((words >> 31) & ((1 << 33) - 1))
    return ((words >> 11) & ((1 << 53) - 1)).double() / 2**53


def blocks_and_columns(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    live: Tensor,
    columns: Tensor,
    log_weights: Tensor,
    hasher: Hasher,
    block: int,
) -> Partial:
    """Softmax of ⟨q, k⟩/√d over a query's block, and over sampled columns outside of it.

    Keys are sorted by the Gray code of their bucket, in which neighbours differ in one sign, and cut into blocks. A
    query's block is the one in which the middle key of its own bucket stands, or would stand. So it depends on no other
    query: ranks among all queries, as in the paper of HyperAttention, would let the future into the past.

    Args:
        query: (batch, heads, n, dim).
        key: (batch, heads, m, dim).
        value: (batch, heads, m, width).
        live: (batch, 1, m), True for keys that take part.
        columns: (batch, heads, samples), numbers of sampled keys; one that is sampled twice counts twice.
        log_weights: (batch, heads, samples), the logarithm of how many keys a sampled one stands for.
        hasher: one table of signs.
        block: keys per block.
    """
    m, dim = key.shape[2:]
    query_rank, key_rank = _gray_ranks(hasher, query, key)
    key_rank = torch.where(live, key_rank, torch.iinfo(torch.int64).max)
    ranks, order = key_rank.sort(dim=-1, stable=True)
    count = live.sum(-1, keepdim=True)
    low, high = (torch.searchsorted(ranks, query_rank.contiguous(), right=right) for right in (False, True))
    own_block = torch.minimum((low + high) // 2, (count - 1).clamp(min=0)) // block
    first = own_block * block
    last = torch.minimum(first + block, count)
    near = softmax_of_runs(query, taken(key, order), taken(value, order), first, last, block)
    of_place = (torch.arange(m, device=key.device) // block).expand_as(order)
    block_of_key = torch.zeros_like(order).scatter(-1, order, of_place)
    outside = block_of_key.gather(-1, columns)[..., None, :] != own_block[..., None]
    outside = outside & (count[..., None] > 0)
    scores = query @ taken(key, columns).mT / math.sqrt(max(dim, 1)) + log_weights[..., None, :]
    far = partial_softmax(scores.masked_fill(~outside, -torch.inf), taken(value, columns))
    return near.join(far)


def _gray_ranks(hasher: Hasher, *rows: Tensor) -> list[Tensor]:
    """Where the bucket of each row stands when buckets that differ in one sign are neighbours."""
    if hasher.tables != 1 or hasher.family.values != 2 or hasher.buckets is None:
        raise InputError(
            "hasher",
            given=f"{hasher.tables} tables of {hasher.hashes} hashes of {hasher.family}",
            expected="one table of at most 62 signs",
            hint="draw it with Hyperplane(dim).sample(tables=1, hashes=7)",
        )
    found = []
    for codes in hasher.joint_codes(*rows):
        rank, shift = codes[..., 0], 1
        while shift < hasher.hashes:
            rank, shift = rank ^ (rank >> shift), 2 * shift
        found.append(rank)
    return found


def literal_blocks(query: Tensor, key: Tensor, live: list[bool], hasher: Hasher, block: int) -> Tensor:
    """Which query and key of one head are in the same block, row by row; a key that takes no part is in none."""

    def gray_rank(row: Tensor) -> int:
        rank, bit = 0, 0
        for digit in reversed(hasher.digits(row[None])[0, 0].tolist()):  # the highest sign first
            bit ^= digit
            rank = 2 * rank + bit
        return rank

    of_key = {j: gray_rank(key[j]) for j in range(len(key)) if live[j]}
    order = sorted(of_key, key=lambda j: (of_key[j], j))
    same = torch.zeros(len(query), len(key), dtype=torch.bool)
    for i in range(len(query)):
        mine = gray_rank(query[i])
        lower, equal = (sum(test(rank) for rank in of_key.values()) for test in (mine.__gt__, mine.__eq__))
        middle = min((lower + lower + equal) // 2, len(order) - 1)
        for place, j in enumerate(order):
            same[i, j] = place // block == middle // block
    return same
