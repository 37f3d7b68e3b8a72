"""Several documents in one sequence: a token's document is part of its bucket code, so documents never meet."""

from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.kernels import name_codes
from annattn.lsh import IGNORED, NO_BUCKET, Hasher
from annattn.lsh.codes import CODE_BITS

__all__ = ["Documents", "packed"]


@dataclass(frozen=True)
class Documents:
    """The number of every query's and every key's document, (batch, n) each, all below `most`."""

    query: Tensor
    key: Tensor
    most: int

    def same(self) -> Tensor:
        """Which pairs are of one document, (batch, queries, keys)."""
        return self.query[:, :, None] == self.key[:, None, :]

    def join(self, query_codes: Tensor, key_codes: Tensor, hasher: Hasher) -> tuple[Tensor, Tensor, int]:
        """Codes that are equal where they were and the documents are the same; and a bound on them, or 0.

        Keys without a bucket take no part here: `unknown` says who must know of them.
        """
        key_codes = key_codes.masked_fill(key_codes == NO_BUCKET, IGNORED)
        bound = hasher.buckets
        if bound is None or bound * self.most >= 2**CODE_BITS:
            query_codes, key_codes = name_codes(query_codes, key_codes)
            bound = query_codes.numel() + key_codes.numel()
        query_codes, key_codes = (
            torch.where(codes < 0, codes, codes + numbers[:, None, :, None] * bound)
            for codes, numbers in ((query_codes, self.query), (key_codes, self.key))
        )
        buckets = hasher.dense_buckets * self.most
        return query_codes, key_codes, buckets if buckets < 2**40 else 0

    def unknown(self, key_codes: Tensor, *, is_causal: bool) -> Tensor:
        """Which queries (batch, key heads, queries) may have met a key of their document that has no bucket."""
        n, m = self.query.shape[1], self.key.shape[1]
        lost = (key_codes == NO_BUCKET).any(-1)
        place = torch.where(lost, torch.arange(m, device=lost.device), m)
        # Per document the first such key: causal queries from there on see it.
        first = torch.full((*lost.shape[:2], self.most), m, device=lost.device)
        first = first.scatter_reduce(2, self.key[:, None].expand_as(place), place, "amin")
        met = first.gather(2, self.query[:, None].expand(*lost.shape[:2], n))
        return met <= torch.arange(n, device=lost.device) + (m - n) if is_causal else met < m


def packed(documents: Tensor | None, query: Tensor, key: Tensor) -> Documents | None:
    """Documents by boundaries, or by a number per token, for queries and keys of the same tokens.

    Boundaries are `cu_seqlens` as variable-length kernels take them: 0, the end of the first document, …, n; they hold
    for every row of the batch. A document may be empty.

    >>> x = torch.zeros(1, 1, 5, 2)
    >>> packed(torch.tensor([0, 2, 5]), x, x).query
    tensor([[0, 0, 1, 1, 1]])
    """
    if documents is None:
        return None
    batch, n = query.shape[0], query.shape[2]
    if key.shape[2] != n:
        raise InputError("documents", given=f"{n} queries, {key.shape[2]} keys", expected="as many queries as keys")
    if not isinstance(documents, Tensor) or documents.dtype not in (torch.int64, torch.int32):
        given = documents.dtype if isinstance(documents, Tensor) else type(documents).__name__
        hint = "torch.tensor([0, end of the first document, ..., n])"
        raise InputError("documents", given=given, expected="a tensor of integers", hint=hint)
    documents, tracing = documents.long(), torch.compiler.is_compiling()
    if documents.ndim == 1:
        ends = documents[1:]
        if not tracing and (
            len(ends) < 1 or documents[0] != 0 or documents[-1] != n or bool((documents.diff() < 0).any())
        ):
            raise InputError(
                "documents",
                given=f"boundaries {documents.tolist()}",
                expected=f"0, the end of each document in turn, and last {n}, the length of the sequence",
            )
        places = torch.arange(n, device=documents.device)
        numbers = torch.searchsorted(ends.contiguous(), places, right=True).expand(batch, n)
        return Documents(numbers, numbers, len(ends))
    if tuple(documents.shape) != (batch, n):
        raise InputError(
            "documents",
            given=f"shape {tuple(documents.shape)}",
            expected=f"boundaries (documents + 1,), or a number per token {(batch, n)}",
        )
    most = max(n, 1)
    if documents.numel() and not tracing:
        low, high = (int(edge) for edge in documents.aminmax())
        if low < 0 or high >= n:
            raise InputError("documents", given=f"numbers from {low} to {high}", expected=f"numbers from 0 to {n - 1}")
        most = high + 1
    return Documents(documents, documents, most)
