"""What hashing gives on average: attention by collision probabilities, smooth in queries and keys, quadratic in n."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annattn.attention.inputs import accumulator, check_inputs, grouped, ungrouped, unit_rows
from annattn.checks import require_count
from annattn.errors import InputError
from annattn.lsh import HashFamily

__all__ = ["expected_collision_attention", "expected_latest_attention", "latest_chances", "pair_scores"]


def expected_collision_attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    *,
    family: HashFamily,
    hashes: int,
    is_causal: bool = False,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Σ_j p_ij v_j / Σ_j p_ij with p_ij = p(cosine of q_i and k_j)^z: `anna_attention` with infinitely many tables.

    By the law of large numbers the counts c_ij of ℓ tables, over ℓ, tend to p_ij. It is softmax attention with the
    logits z·log p, so it trains as softmax attention does.

    >>> import annattn as aa
    >>> x = torch.eye(2).reshape(1, 1, 2, 2)
    >>> aa.expected_collision_attention(x, x, x, family=aa.lsh.Hyperplane(2), hashes=2).squeeze()
    tensor([[0.8000, 0.2000],
            [0.2000, 0.8000]])
    """
    scores, values, seen = pair_scores(query, key, value, family, hashes, is_causal, key_mask)
    # The lowest number, not -inf, whose derivative would be NaN in a row that sees nothing.
    weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
    out = (weights * seen).to(values.dtype) @ values
    return ungrouped(out, query).to(value.dtype)


def expected_latest_attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    *,
    family: HashFamily,
    hashes: int,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Σ_j p_ij · Π_{j' > j} (1 − p_ij') · v_j: the newest value of one table's bucket, on average over its functions.

    The product is the chance that no later key meets the query, were keys to meet it independently; keys that equal one
    another do not, so this is the average of `latest_match_attention` for one table only when far keys are unlike each
    other. What is missing to 1 is the chance of an empty bucket, and gives zeros. Known elsewhere as stick-breaking.

    >>> import annattn as aa
    >>> x = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    >>> v = torch.tensor([[[[1.0], [2.0]]]])
    >>> aa.expected_latest_attention(x, x, v, family=aa.lsh.Hyperplane(2), hashes=2).flatten().round(decimals=3)
    tensor([1., 2.])
    """
    scores, values, seen = pair_scores(query, key, value, family, hashes, True, key_mask)
    out = latest_chances(scores.exp() * seen).to(values.dtype) @ values
    return ungrouped(out, query).to(value.dtype)


def latest_chances(meets: Float[Tensor, "... queries keys"]) -> Float[Tensor, "... queries keys"]:
    """The chance that a key is met and no later one is, from the chances of being met.

    >>> latest_chances(torch.tensor([[0.5, 0.5, 0.0]]))
    tensor([[0.2500, 0.5000, 0.0000]])
    """
    # Kept off 1, so that the logarithm and its derivative stay finite.
    misses = torch.log1p(-meets.clamp(max=1 - torch.finfo(meets.dtype).eps))
    later_misses = misses.flip(-1).cumsum(-1).flip(-1) - misses
    return meets * later_misses.exp()


def pair_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    family: HashFamily,
    hashes: int,
    is_causal: bool,
    key_mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """z·log p of every pair, the values, and who sees whom, heads laid out in groups."""
    check_inputs(query, key, value, key_mask)
    require_count("hashes", hashes)
    if family.dim != query.shape[-1]:
        raise InputError("family", given=f"one of dim {family.dim}", expected=f"one of the query's {query.shape[-1]}")
    hidden = None if key_mask is None else ~key_mask[:, None, :, None]
    if hidden is not None:
        key, value = key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
    queries, keys = query.shape[2], key.shape[2]
    # Values may be wider than queries and keys; the pairs are then not worth it.
    query, key, value = (x.to(accumulator(x.dtype)) for x in (query, key, value))
    unit_query, unit_key, values = (grouped(x, key.shape[1]) for x in (unit_rows(query), unit_rows(key), value))
    scores = family.log_probability(unit_query @ unit_key.mT)
    if scores is None:
        raise InputError(
            "family",
            given=str(family),
            expected="one whose collision probability is a function of the angle",
            hint="use Hyperplane or CrossPolytope",
        )
    seen = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=query.device)
    if is_causal:
        seen = seen.tril(keys - queries)
    if key_mask is not None:
        seen = seen & key_mask.repeat_interleave(key.shape[1], 0)[:, None, None, :]
    return hashes * scores, values, seen
