"""Approximate Nearest Neighbor Attention: Definition "ANN Attention", by Algorithm 1 or the linear-memory algorithm."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from annattn.attention import reference
from annattn.attention.inputs import check_inputs, too_large
from annattn.attention.manners import torch_arguments
from annattn.attention.mechanism import Attend, Gradient, Mechanism, TrainableConfig
from annattn.attention.packed import Documents, packed
from annattn.attention.shapes import KeyMask, Keys, Outputs, Packing, Queries, Values
from annattn.checks import require_choice
from annattn.kernels import Order, bucket_attention, hash_pair
from annattn.lsh import IGNORED, Hasher

__all__ = ["MECHANISM", "AnnaConfig", "anna_attention", "anna_mean", "anna_weights"]

Empty = Literal["zero", "nan"]
Algorithm = Literal["auto", "tables", "linear_memory"]
_EMPTY, _ALGORITHMS = get_args(Empty), get_args(Algorithm)


def anna_attention(
    query: Queries,
    key: Keys,
    value: Values,
    hasher: Hasher,
    *,
    is_causal: bool = False,
    key_mask: KeyMask | None = None,
    documents: Packing | None = None,
    empty: Empty = "zero",
    algorithm: Algorithm = "auto",
    gradient: Gradient = "linear",
    **torch_only: Any,
) -> Outputs:
    """Σ_j c_ij v_j / Σ_j c_ij, with c_ij the number of tables in which query i and key j share a bucket.

    Args:
        query: its heads may be a multiple of the key's; each key head then serves equally many query heads.
        key: a key with NaN or infinity has no bucket, so every query that may see it gets NaN; so does a query with
            NaN or infinity. Masked keys are never looked at.
        value: any width; half precision is accumulated in float32.
        hasher: the drawn hash functions g_1 … g_ℓ, one draw for all heads or one per key head.
        is_causal: query i sees the keys up to its own position, the last query aligned with the last key.
        key_mask: True where a key takes part.
        documents: boundaries 0, end of the first, …, n of the documents packed into the sequence (`cu_seqlens`), or a
            number per token; nobody meets a token of another document.
        empty: what a query that meets no key gets, "zero" or "nan"; the paper leaves its 0/0 open.
        algorithm: "tables" builds all ℓ tables (Algorithm 1), "linear_memory" one at a time; "auto" takes the tables
            while they hold no more rows than queries, keys, values and outputs do. The numbers are the same.
        gradient: what queries and keys get. A collision has no derivative, so it is that of the collision probability
            p(x)^z at cosine x, on the pairs that met: "exact" weighs a pair by z·p'(x)/p(x), "linear" by a constant,
            which keeps the backward pass linear in n; "none" trains the values alone. Theirs is exact either way.
        torch_only: arguments of torch's scaled_dot_product_attention. An `attn_mask` that is a padding mask is taken as
            the key mask it is; the others are errors that say what to use.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=4, hashes=8, seed=0)
    >>> x = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]]]])
    >>> aa.anna_attention(x, x, torch.arange(4.0).reshape(1, 1, 4, 1), hasher).flatten()
    tensor([1.5000, 1.0000, 2.0000, 1.5000])
    """
    if torch_only:
        key_mask = torch_arguments(torch_only, key_mask, query, key)
    check_inputs(query, key, value, key_mask, is_causal=is_causal, hasher=hasher)
    if empty not in _EMPTY or algorithm not in _ALGORITHMS:
        require_choice("empty", empty, _EMPTY)
        require_choice("algorithm", algorithm, _ALGORITHMS)
    own = None if documents is None else packed(documents, query, key)
    try:
        out, count = anna_mean(query, key, value, hasher, is_causal, key_mask, own, gradient, algorithm)
    except (MemoryError, RuntimeError) as error:
        better = too_large(error, query, key, value)
        if better is error:
            raise
        raise better from error
    if empty == "nan":
        out = out.masked_fill(count[..., None] == 0, torch.nan)
    return out.to(value.dtype)


def anna_mean(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hasher: Hasher,
    is_causal: bool,
    key_mask: Tensor | None,
    documents: Documents | None,
    gradient: Gradient,
    algorithm: Algorithm = "auto",
    *,
    counted: bool = False,
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j / C_i and C_i = Σ_j c_ij of checked inputs, in the dtype they add up in.

    If `counted`, queries and keys get a gradient of C_i too.
    """
    query_codes, key_codes = hash_pair(hasher, query, key)
    if key_mask is not None:
        key_codes = key_codes.masked_fill(~key_mask[:, None, :, None], IGNORED)
    n_keys, buckets, unknown = key.shape[2], hasher.dense_buckets, None
    if documents is not None:
        unknown = documents.unknown(key_codes, is_causal=is_causal)
        query_codes, key_codes, buckets = documents.join(query_codes, key_codes, hasher)
    one_table = algorithm == "linear_memory"
    if algorithm == "auto" and not torch.compiler.is_compiling():  # a graph serves every length, so none decides
        rows_in_tables = hasher.tables * min(hasher.buckets or n_keys, n_keys)
        one_table = rows_in_tables > 2 * (query.shape[2] + n_keys)
    out, count = bucket_attention(
        query,
        key,
        value.float() if value.dtype.itemsize < 4 else value,
        (query_codes, key_codes),
        hasher,
        order=Order.CAUSAL if is_causal else Order.ALL,
        buckets=buckets,
        one_table_at_a_time=one_table,
        gradient=gradient,
        counted=counted,
    )
    if unknown is not None:
        out = out.masked_fill(
            unknown.repeat_interleave(query.shape[1] // max(key.shape[1], 1), 1)[..., None], torch.nan
        )
    return out, count


def anna_weights(query: Tensor, key: Tensor, seen: Tensor, *, hasher: Hasher) -> Tensor:
    """w_ij = c_ij / Σ_j' c_ij' over the keys seen.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=2, hashes=1)
    >>> anna_weights(torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]]), reference.visible(1, 2), hasher=hasher)
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    return reference.normalised(reference.collision_counts(query, key, hasher) * seen)


@dataclass(frozen=True)
class AnnaConfig(TrainableConfig):
    """`anna_attention` with ℓ = `tables` and z = `hashes`.

    >>> AnnaConfig(tables=32, hashes=4).family
    'hyperplane'
    """

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        hasher, gradient = self.hasher(head_dim, layer, seed), self.gradient
        return lambda q, k, v, is_causal, mask: anna_attention(
            q, k, v, hasher, is_causal=is_causal, key_mask=mask, gradient=gradient
        )


MECHANISM = Mechanism(anna_attention, anna_weights, AnnaConfig, AnnaConfig.options)
