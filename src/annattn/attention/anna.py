"""Approximate Nearest Neighbor Attention: Definition "ANN Attention", by Algorithm 1 or the linear-memory algorithm."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annattn.attention.inputs import accumulator, check_hasher, check_inputs
from annattn.errors import InputError
from annattn.kernels import IGNORED, attend, hash_pair, write_slope
from annattn.lsh import Hasher

__all__ = ["Gradient", "anna_attention", "bucket_hint", "hash_inputs", "wanted_slope"]

Empty = Literal["zero", "nan"]
Gradient = Literal["linear", "exact", "none"]
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
    gradient: Gradient = "linear",
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
            while they hold no more rows than queries, keys, values and outputs do. The numbers are the same.
        gradient: what queries and keys get. A collision has no derivative, so it is that of the collision probability
            p(x)^z at cosine x, on the pairs that met: "exact" weighs a pair by z·p'(x)/p(x), "linear" by a constant,
            which keeps the backward pass linear in n; "none" trains the values alone. Theirs is exact either way.

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
    query_codes, key_codes = hash_inputs(hasher, query, key, key_mask)
    n_keys = key.shape[2]
    rows_in_tables = hasher.tables * min(hasher.buckets or n_keys, n_keys)
    one_table = algorithm == "linear_memory" or (algorithm == "auto" and rows_in_tables > 2 * (query.shape[2] + n_keys))
    out, count = attend(
        query,
        key,
        value.to(accumulator(value.dtype)),
        (query_codes, key_codes),
        order=int(is_causal),
        buckets=bucket_hint(hasher),
        one_table_at_a_time=one_table,
        slope=wanted_slope(hasher, gradient, query, key),
    )
    if empty == "nan":
        out = out.masked_fill(count[..., None] == 0, torch.nan)
    return out.to(value.dtype)


def hash_inputs(hasher: Hasher, query: Tensor, key: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes of queries and keys, with the masked keys ignored."""
    query_codes, key_codes = hash_pair(hasher, query, key)
    if key_mask is not None:
        key_codes = key_codes.masked_fill(~key_mask[:, None, :, None], IGNORED)
    return query_codes, key_codes


def bucket_hint(hasher: Hasher) -> int:
    """How many buckets a table has, for kernels to choose dense tables by; 0 when far too many for that."""
    return hasher.buckets if hasher.buckets is not None and hasher.buckets < 2**40 else 0


def wanted_slope(hasher: Hasher, gradient: str, query: Tensor, key: Tensor) -> str:
    """The gradient asked for, when queries or keys want one."""
    needed = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    return write_slope(hasher, gradient, needed=needed)
