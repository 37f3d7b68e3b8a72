"""Reformer attention as the paper defines it ("Discussion on Reformer"): sort by hash, attend inside chunks."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from annattn.attention import reference
from annattn.attention.inputs import accumulator, attention_call, check_hasher, check_inputs
from annattn.attention.mechanism import Attend, Causal, Mechanism, SeededConfig, angular
from annattn.checks import require_count
from annattn.errors import InputError
from annattn.lsh import NO_BUCKET, Hasher, Hyperplane

__all__ = ["MECHANISM", "ReformerConfig", "reformer_attention", "reformer_weights"]


@attention_call
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
    chunk = require_count("chunk", chunk)
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
    (codes,) = hasher.joint_codes(query_key)
    # Rows without a bucket go last; their chunk turns NaN, as softmax of NaN is NaN.
    codes = codes[..., 0]
    return torch.where(codes == NO_BUCKET, torch.iinfo(torch.int64).max, codes).argsort(dim=-1, stable=True)


def reformer_weights(query: Tensor, key: Tensor, seen: Tensor, *, chunk: int, hasher: Hasher) -> Tensor:
    """exp⟨q_i, q_j⟩ normalised over the chunk of i; queries are the keys, and all are seen.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=1, hashes=1)
    >>> x = torch.tensor([[1.0], [1.0], [1.0]])
    >>> reformer_weights(x, x, torch.ones(3, 3), chunk=2, hasher=hasher)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """
    n = len(query)
    (codes,) = hasher.joint_codes(query)
    label = torch.zeros(n, dtype=torch.int64)
    for place, row in enumerate(sorted(range(n), key=codes[:, 0].tolist().__getitem__)):
        label[row] = place // chunk
    scores = query.double() @ key.double().T
    return reference.normalised(torch.exp(scores) * (label[:, None] == label[None]) * seen)


@dataclass(frozen=True)
class ReformerConfig(SeededConfig):
    """`reformer_attention` with chunks of `chunk` rows, sorted by z = `hashes` hash functions.

    >>> ReformerConfig(chunk=32).shared_query_key
    True
    """

    causal: ClassVar[Causal] = "never"
    takes_mask: ClassVar[bool] = False
    shared_query_key: ClassVar[bool] = True
    drawn: ClassVar[tuple[str, ...]] = ("hashes",)
    family: str = "hyperplane"
    hashes: int = 8
    chunk: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        angular(self.family, 2)

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        drawn = self.layer_seed(layer, seed)
        hasher = angular(self.family, head_dim).sample(tables=1, hashes=self.hashes, seed=drawn)
        return lambda q, k, v, is_causal, mask: reformer_attention(q.to(v.dtype), v, chunk=self.chunk, hasher=hasher)


MECHANISM = Mechanism(
    reformer_attention,
    reformer_weights,
    ReformerConfig,
    lambda dim: {"chunk": 3, "hasher": Hyperplane(dim).sample(tables=1, hashes=3)},
)
