"""Approximate Nearest Neighbor Attention: Definition "ANN Attention", by Algorithm 1 or the linear-memory algorithm."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annattn.attention.inputs import accumulator, check_hasher, check_inputs, grouped, meets_flagged, ungrouped
from annattn.errors import InputError
from annattn.kernels import collect, hash_pair
from annattn.lsh import NO_BUCKET, Hasher

__all__ = ["anna_attention", "hash_together"]

Empty = Literal["zero", "nan"]
Algorithm = Literal["auto", "tables", "linear_memory"]


def anna_attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    hasher: Hasher,
    *,
    is_causal: bool = False,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    empty: Empty = "zero",
    algorithm: Algorithm = "auto",
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Σ_j c_ij v_j / Σ_j c_ij, with c_ij the number of tables in which query i and key j share a bucket.

    Args:
        query: its heads may be a multiple of the key's; each key head then serves equally many query heads.
        key: a key with NaN or infinity has no bucket, so every query that may see it gets NaN; so does a query with
            NaN or infinity. Masked keys are never looked at.
        value: any width; half precision is accumulated in float32.
        hasher: the drawn hash functions g_1 … g_ℓ, shared by all heads.
        is_causal: query i sees the keys up to its own position, the last query aligned with the last key.
        key_mask: True where a key takes part.
        empty: what a query that meets no key gets, "zero" or "nan"; the paper leaves its 0/0 open.
        algorithm: "tables" builds all ℓ tables (Algorithm 1), "linear_memory" one at a time; "auto" takes the tables
            while they hold no more rows than queries and keys together. The numbers are the same.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=4, hashes=8, seed=0)
    >>> x = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]]]])
    >>> aa.anna_attention(x, x, torch.arange(4.0).reshape(1, 1, 4, 1), hasher).flatten()
    tensor([1.5000, 1.0000, 2.0000, 1.5000])
    """
    check_inputs(query, key, value, key_mask)
    check_hasher(hasher, query)
    if empty not in ("zero", "nan"):
        raise InputError("empty", given=repr(empty), expected='"zero" or "nan"')
    if algorithm not in ("auto", "tables", "linear_memory"):
        raise InputError("algorithm", given=repr(algorithm), expected='"auto", "tables" or "linear_memory"')
    query_codes, key_codes, poisoned = hash_together(hasher, query, key, key_mask, is_causal=is_causal)
    key_heads, n_keys = key.shape[1:3]
    rows_in_tables = hasher.tables * min(hasher.buckets or n_keys, n_keys)
    one_table = algorithm == "linear_memory" or (algorithm == "auto" and rows_in_tables > 2 * (query.shape[2] + n_keys))
    total, count = collect(
        grouped(query_codes, key_heads),
        grouped(key_codes, key_heads),
        grouped(value.to(accumulator(value.dtype)), key_heads),
        int(is_causal),
        hasher.buckets or 0,
        one_table,
    )
    count = ungrouped(count, query)[..., None]
    out = ungrouped(total, query) / count.clamp(min=1)
    if empty == "nan":
        poisoned = poisoned | (count == 0)
    return out.masked_fill(poisoned, torch.nan).to(value.dtype)


def hash_together(
    hasher: Hasher, query: Tensor, key: Tensor, key_mask: Tensor | None, *, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of queries and of the keys that take part, and which outputs must be NaN (batch, heads, queries, 1).

    An output is NaN when its query, or a key it may see, has no bucket: where that key belongs is unknown, and any
    number would be a guess.
    """
    query_codes, key_codes = hash_pair(hasher, query, key)
    lost = key_codes[..., 0] == NO_BUCKET
    if key_mask is not None:
        lost = lost & key_mask[:, None]
        key_codes = key_codes.masked_fill(~key_mask[:, None, :, None], NO_BUCKET)
    share = query.shape[1] // key.shape[1] if key.shape[1] else 0
    met = meets_flagged(lost, query.shape[2], is_causal=is_causal).repeat_interleave(share, 1)
    return query_codes, key_codes, ((query_codes[..., 0] == NO_BUCKET) | met)[..., None]
