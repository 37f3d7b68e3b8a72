"""Reformer attention as the paper defines it ("Discussion on Reformer"): sort by hash, attend inside chunks."""

import torch
from jaxtyping import Float
from torch import Tensor

from annattn.attention.inputs import accumulator, check_hasher, check_inputs
from annattn.checks import require_count
from annattn.errors import InputError
from annattn.lsh import NO_BUCKET, Hasher

__all__ = ["reformer_attention"]


def reformer_attention(
    query_key: Float[Tensor, "batch heads n dim"],
    value: Float[Tensor, "batch heads n value_dim"],
    *,
    chunk: int,
    hasher: Hasher,
) -> Float[Tensor, "batch heads n value_dim"]:
    """softmax(⟨q_i, q_j⟩) over the j in the chunk of i, chunks being runs of `chunk` rows in the order of their hash.

    Queries and keys are the same rows, so one tensor holds both; the hasher has one table. Ties in the hash keep the
    order of the tokens; when `chunk` does not divide n the last chunk is shorter.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=1, hashes=2, seed=0)
    >>> x = torch.tensor([[[[9.0, 0.0], [-9.0, 0.0], [9.0, 0.0], [-9.0, 0.0]]]])
    >>> aa.reformer_attention(x, torch.arange(4.0).reshape(1, 1, 4, 1), chunk=2, hasher=hasher).flatten()
    tensor([1., 2., 1., 2.])
    """
    check_inputs(query_key, query_key, value, None)
    check_hasher(hasher, query_key)
    require_count("chunk", chunk)
    if query_key.dtype != value.dtype:
        raise InputError("value", given=value.dtype, expected=f"the rows' {query_key.dtype}", hint="cast one of them")
    n = query_key.shape[2]
    chunk = min(chunk, max(n, 1))
    order = _hash_order(query_key, hasher)
    spare = -n % chunk

    def in_chunks(x: Tensor) -> Tensor:
        x = x.gather(2, order[..., None].expand(*x.shape))
        return torch.nn.functional.pad(x, (0, 0, 0, spare)).unflatten(2, (-1, chunk)) if n else x[:, :, None]

    wide = accumulator(value.dtype)
    rows, values = in_chunks(query_key.to(wide)), in_chunks(value.to(wide))
    scores = rows @ rows.mT
    real = torch.arange(n + spare, device=value.device).reshape(-1, 1, chunk) < n if n else torch.ones(1, 1, 0) > 0
    weights = torch.softmax(scores.masked_fill(~real, -torch.inf), dim=-1)
    sorted_out = (weights @ values).flatten(2, 3)[:, :, :n]
    return (
        torch.zeros_like(sorted_out).scatter(2, order[..., None].expand(*sorted_out.shape), sorted_out).to(value.dtype)
    )


def _hash_order(query_key: Tensor, hasher: Hasher) -> Tensor:
    """The order of the rows by hash value, (batch, heads, n)."""
    if hasher.tables != 1:
        raise InputError(
            "hasher", given=f"{hasher.tables} tables", expected="one table", hint="draw it with sample(tables=1, ...)"
        )
    (codes,) = hasher.together(query_key)
    # Rows without a bucket go last; their chunk turns NaN, as softmax of NaN is NaN.
    codes = codes[..., 0]
    return torch.where(codes == NO_BUCKET, torch.iinfo(torch.int64).max, codes).argsort(dim=-1, stable=True)
