"""Bucket codes that mean the same on every rank, and which queries cannot have an answer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.attention.packed import Documents
from annattn.distributed.names import name_tuples
from annattn.distributed.peers import Peers
from annattn.errors import InputError
from annattn.kernels import Order, choose, hash_call, nan_targets
from annattn.lsh import IGNORED, NO_BUCKET, Hasher
from annattn.lsh.codes import CODE_BITS

__all__ = ["Codes", "Slices", "equal_row_codes", "hashed_codes", "own_documents", "slices"]


@dataclass(frozen=True)
class Slices:
    """How many queries and keys each rank holds."""

    queries: list[int]
    keys: list[int]

    def first(self, rank: int) -> int:
        """The place of a rank's first query among those of all."""
        return sum(self.queries[:rank])

    def from_the_end(self) -> "Slices":
        """For ranks in reverse order."""
        return Slices(self.queries[::-1], self.keys[::-1])


@dataclass(frozen=True)
class Codes:
    """Codes (batch, heads, n, tables) of this rank's queries and keys.

    Codes below `shared` may occur on several ranks; those from there up to `bound` occur on this one alone, or are none
    of the others' business. `unknown` says which queries cannot have an answer.
    """

    query: Tensor
    key: Tensor
    bound: int
    shared: int
    unknown: Tensor
    slices: Slices


def slices(peers: Peers, query: Tensor, key: Tensor, *, aligned: bool, doing: str) -> Slices:
    """The lengths of all ranks' slices; where positions count (`aligned`), as many queries as keys on each."""
    lengths = torch.tensor([query.shape[2], key.shape[2]], device=query.device)
    queries, keys = peers.gather(lengths, doing).T.tolist()
    wrong = [rank for rank in range(peers.size) if queries[rank] != keys[rank]]
    if aligned and wrong:
        raise InputError(
            f"slice of rank {wrong[0]}",
            given=f"{queries[wrong[0]]} queries and {keys[wrong[0]]} keys",
            expected="as many queries as keys on each rank, for causal attention or a window",
            hint="cut queries, keys and values at the same places",
        )
    return Slices(queries, keys)


def hashed_codes(
    peers: Peers,
    cut: Slices,
    hasher: Hasher,
    query: Tensor,
    key: Tensor,
    key_mask: Tensor | None,
    own: Documents | None,
    order: Order,
    doing: str,
) -> Codes:
    """The buckets of queries and keys, by hash functions that every rank has alike."""
    if hasher.buckets is None or (own is not None and hasher.buckets * own.most >= 2**CODE_BITS):
        query_codes, key_codes, bound = _named(peers, hasher, query, key, own, doing)
        shared = bound
    else:
        backend = choose(hash_call(hasher, query, key))
        query_codes, key_codes = (backend.hash_rows(hasher, x.detach()) for x in (query, key))
        bound = shared = hasher.buckets
    if key_mask is not None:
        key_codes = key_codes.masked_fill(~key_mask[:, None, :, None], IGNORED)
    unknown = _unknown(peers, query_codes, key_codes, own, order, doing)
    key_codes = key_codes.masked_fill(key_codes == NO_BUCKET, IGNORED)  # `unknown` knows of them
    if own is not None and hasher.buckets is not None and bound == hasher.buckets:
        present = torch.zeros(own.most, dtype=torch.uint8, device=query.device)
        present[torch.cat([own.key, own.query]).flatten()] = 1
        everywhere = peers.gather(present, doing)
        # Documents on several ranks come first, so that only these take part in what is exchanged.
        on_several = everywhere.sum(0) > 1
        number = torch.argsort(~on_several, stable=True).argsort()
        query_codes, key_codes = (
            torch.where(codes < 0, codes, codes + number[of][:, None, :, None] * bound)
            for codes, of in ((query_codes, own.query), (key_codes, own.key))
        )
        shared, bound = bound * int(on_several.sum()), bound * own.most
    return Codes(query_codes, key_codes, bound, shared, unknown, cut)


def equal_row_codes(
    peers: Peers, cut: Slices, query: Tensor, key: Tensor, key_mask: Tensor | None, doing: str
) -> Codes:
    """One table whose code is the identity of the row: −0.0 equals 0.0, NaN equals nothing."""
    rows, numbers = [], []
    for x in (query, key):
        flat = x.detach().flatten(0, 2)
        if flat.shape[1] == 0:  # rows without coordinates are all equal
            flat = flat.new_zeros(len(flat), 1)
        number = torch.ones(len(flat), dtype=torch.bool, device=x.device)
        if x.is_floating_point():
            number = ~flat.isnan().any(-1)
            flat = (flat + 0.0).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize])
        rows.append(flat.long())
        numbers.append(number)
    split = [len(part) for part in rows]
    names, bound = name_tuples(peers, torch.cat(rows), doing)
    parts = torch.where(torch.cat(numbers), names, IGNORED).split(split)
    query_codes, key_codes = (part.reshape(*x.shape[:3], 1) for part, x in zip(parts, (query, key), strict=True))
    if key_mask is not None:
        key_codes = key_codes.masked_fill(~key_mask[:, None, :, None], IGNORED)
    unknown = torch.zeros(query.shape[:3], dtype=torch.bool, device=query.device)
    return Codes(query_codes, key_codes, bound, bound, unknown, cut)


def _named(
    peers: Peers, hasher: Hasher, query: Tensor, key: Tensor, own: Documents | None, doing: str
) -> tuple[Tensor, Tensor, int]:
    """Numbers of the tuples of hash values that occur, and with documents of those and the document."""
    tuples, shapes = [], []
    for x, numbers in ((query, None if own is None else own.query), (key, None if own is None else own.key)):
        digits = hasher.digits(x.detach()).masked_fill(~hasher.hashable(x)[..., None, None], 0)
        if numbers is not None:
            of = numbers[:, None, :, None, None].expand(*digits.shape[:4], 1)
            digits = torch.cat([digits, of], -1)
        shapes.append(digits.shape[:-1])
        tuples.append(digits.flatten(0, -2))
    names, bound = name_tuples(peers, torch.cat(tuples), doing)
    parts = names.split([len(part) for part in tuples])
    query_codes, key_codes = (
        torch.where(hasher.hashable(x)[..., None], part.reshape(shape), NO_BUCKET)
        for x, part, shape in zip((query, key), parts, shapes, strict=True)
    )
    return query_codes, key_codes, bound


def own_documents(peers: Peers, cut: Slices, documents: Tensor, query: Tensor, doing: str) -> Documents:
    """The documents of this rank's tokens: boundaries are those of the whole sequence, numbers those of its slice."""
    n, whole = query.shape[2], sum(cut.queries)
    if cut.queries != cut.keys:
        raise InputError("documents", given="other numbers of queries and keys", expected="as many on each rank")
    if documents.ndim == 1:
        ends = documents[1:].long()
        good = len(ends) and documents[0] == 0 and documents[-1] == whole and not bool((documents.diff() < 0).any())
        if not good:
            raise InputError(
                "documents",
                given=f"boundaries {documents.tolist()}",
                expected=f"0, the end of each document in turn, and last {whole}, the length of the whole sequence",
                hint="every rank passes the boundaries of the whole sequence",
            )
        places = torch.arange(n, device=query.device) + cut.first(peers.rank)
        numbers = torch.searchsorted(ends.contiguous(), places, right=True).expand(query.shape[0], n)
        return Documents(numbers, numbers, len(ends))
    numbers = documents.long()
    edges = numbers.aminmax() if numbers.numel() else (numbers.new_zeros(()), numbers.new_zeros(()))
    low, high = peers.gather(torch.stack(tuple(edges)), doing).T.tolist()
    if min(low) < 0 or max(high) >= max(whole, 1):
        given = f"numbers from {min(low)} to {max(high)}"
        raise InputError("documents", given=given, expected=f"numbers from 0 to {whole - 1}")
    return Documents(numbers, numbers, max(high) + 1)


def _unknown(
    peers: Peers, query_codes: Tensor, key_codes: Tensor, own: Documents | None, order: Order, doing: str
) -> Tensor:
    """Which queries may have met a key without a bucket, here or on another rank, or have none themselves."""
    share = query_codes.shape[1] // max(key_codes.shape[1], 1)
    lost = (key_codes == NO_BUCKET).any(-1)
    places = lost.nonzero()
    of = torch.zeros_like(places[:, 2]) if own is None else own.key[places[:, 0], places[:, 2]]
    most = 1 if own is None else own.most
    here = torch.unique((places[:, 0] * key_codes.shape[1] + places[:, 1]) * most + of)
    if own is None:
        unknown = nan_targets(query_codes, key_codes, order)
    else:
        unknown = own.unknown(key_codes, is_causal=order == Order.CAUSAL).repeat_interleave(share, 1)
        unknown = unknown | (query_codes == NO_BUCKET).any(-1)
    counts = peers.gather(torch.tensor([len(here)], device=lost.device), doing)[:, 0].tolist()
    if not any(counts):
        return unknown
    padded = torch.full((max(counts),), -1, dtype=torch.int64, device=lost.device)
    padded[: len(here)] = here
    everywhere = peers.gather(padded, doing)
    elsewhere = everywhere[: peers.rank] if order == Order.CAUSAL else everywhere
    batch, heads, n = query_codes.shape[0], key_codes.shape[1], query_codes.shape[2]
    mine = torch.arange(batch * heads, device=lost.device).reshape(batch, heads, 1) * most
    mine = mine + (0 if own is None else own.query[:, None])
    met = torch.isin(mine.expand(batch, heads, n), elsewhere)
    return unknown | met.repeat_interleave(share, 1)
