"""Hashed attention in the form it is trained in: real collisions forward, collision probabilities backward, n² time.

With c the counts of real hash functions and ℓp their average, the counts used are ĉ = ℓp + noise·(c − ℓp); no gradient
runs through the parenthesis. At noise 0 the output is an average; at noise 1 it is that of hashing. Raising the noise
in between teaches a model little by little to do without averages.

The gradient is the slope at the counts used, so for every noise it also reaches the pairs that did not meet.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annattn.attention.anna import hash_inputs
from annattn.attention.expected import latest_chances, pair_scores
from annattn.attention.inputs import check_hasher, check_inputs, grouped, ungrouped
from annattn.errors import InputError
from annattn.kernels import spoiled
from annattn.lsh import Hasher

__all__ = ["sampled_collision_attention", "sampled_latest_attention"]


def sampled_collision_attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    hasher: Hasher,
    *,
    noise: float = 1.0,
    is_causal: bool = False,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Σ_j ĉ_ij v_j / max(1, Σ_j ĉ_ij) with ĉ = ℓp + noise·(c − ℓp): `anna_attention` at noise 1, its average at 0.

    The maximum is where an average differs from a quotient: a query that meets less than one key on average reads
    less than one value's worth, and so has a reason to meet more.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=4, hashes=2, seed=0)
    >>> x, v = torch.eye(2).reshape(1, 1, 2, 2), torch.tensor([[[[1.0], [0.0]]]])
    >>> aa.sampled_collision_attention(x, x, v, hasher, noise=0.0).flatten()
    tensor([0.8000, 0.2000])
    >>> torch.equal(aa.sampled_collision_attention(x, x, v, hasher), aa.anna_attention(x, x, v, hasher))
    True
    """
    pairs = _pairs(query, key, value, hasher, noise, is_causal, key_mask)
    expected = hasher.tables * pairs.chances
    used = expected + noise * (_counts(pairs, hasher) - expected).detach() if noise else expected
    out = used.to(pairs.values.dtype) @ pairs.values / used.sum(-1, keepdim=True).clamp(min=1)
    return ungrouped(out, query).masked_fill(pairs.lost[..., None], torch.nan).to(value.dtype)


def sampled_latest_attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    hasher: Hasher,
    *,
    noise: float = 1.0,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """`latest_match_attention` at noise 1, `expected_latest_attention` at 0, and its gradient at both.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=4, hashes=8, seed=0)
    >>> x = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]]])
    >>> aa.sampled_latest_attention(x, x, torch.arange(4.0).reshape(1, 1, 4, 1), hasher).flatten()
    tensor([0., 1., 2., 3.])
    """
    pairs = _pairs(query, key, value, hasher, noise, True, key_mask)
    expected = latest_chances(pairs.chances)
    hits = torch.zeros_like(expected)
    if key.shape[2]:
        place = torch.arange(1, key.shape[2] + 1, device=key.device)
        for table in range(hasher.tables):
            newest, at = ((pairs.met(table) & pairs.seen) * place).max(-1, keepdim=True)
            hits.scatter_add_(-1, at, (newest > 0).to(hits.dtype))
    sampled = hits / hits.sum(-1, keepdim=True).clamp(min=1)
    used = expected + noise * (sampled - expected).detach()
    out = used.to(pairs.values.dtype) @ pairs.values
    return ungrouped(out, query).masked_fill(pairs.lost[..., None], torch.nan).to(value.dtype)


@dataclass(frozen=True)
class _Pairs:
    """All pairs of queries and keys, heads laid out in groups."""

    chances: Tensor  # p^z where the key is seen, else 0
    values: Tensor
    seen: Tensor
    query_codes: Tensor  # tables first
    key_codes: Tensor
    lost: Tensor  # the queries that get NaN, as by `anna_attention`

    def met(self, table: int) -> Tensor:
        return self.query_codes[table][..., :, None] == self.key_codes[table][:, None, None, :]


def _counts(pairs: _Pairs, hasher: Hasher) -> Tensor:
    """In how many tables each pair meets, added up in one byte a pair where that is enough."""
    narrow = hasher.tables < 256
    counts = torch.zeros(pairs.chances.shape, dtype=torch.uint8 if narrow else torch.int32, device=pairs.seen.device)
    for table in range(hasher.tables):
        met = pairs.met(table)
        counts += met.view(torch.uint8) if narrow else met
    return counts.to(pairs.chances.dtype) * pairs.seen


def _pairs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hasher: Hasher,
    noise: float,
    is_causal: bool,
    key_mask: Tensor | None,
) -> _Pairs:
    check_inputs(query, key, value, key_mask)
    check_hasher(hasher, query)
    if not 0 <= noise <= 1:
        raise InputError("noise", given=noise, expected="a number from 0 to 1")
    scores, values, seen = pair_scores(query, key, value, hasher.family, hasher.hashes, is_causal, key_mask)
    query_codes, key_codes = hash_inputs(hasher, query.detach(), key.detach(), key_mask)
    return _Pairs(
        scores.exp() * seen,
        values,
        seen,
        _by_table(grouped(query_codes, key.shape[1]), hasher),
        _by_table(key_codes.flatten(0, 1), hasher),
        spoiled(query_codes, key_codes, int(is_causal)),
    )


def _by_table(codes: Tensor, hasher: Hasher) -> Tensor:
    """Tables first, and in two bytes a code where they hold it: these are read once for every pair."""
    narrow = hasher.buckets is not None and hasher.buckets <= 2**15
    return codes.movedim(-1, 0).to(torch.int16 if narrow else codes.dtype).contiguous()
