"""Hashed attention in the form it is trained in: real collisions forward, collision probabilities backward, n² time.

With c the counts of real hash functions and ℓp their average, the counts used are ĉ = ℓp + noise·(c − ℓp); no gradient
runs through the parenthesis. At noise 0 the output is an average; at noise 1 it is that of hashing. Raising the noise
in between teaches a model little by little to do without averages.

At noise 1 the gradient of a count is not the slope of the output but what one more meeting would do,
f(c + 1_ij) − f(c). For counts that are independent and Poisson, which those of many tables and small p nearly are,
that is the gradient of the expected output without bias: d/dλ E f(c) = E[f(c + 1) − f(c)]. It is bounded where slopes
are not, and it reaches the pairs that did not meet. At a smaller noise s a meeting counts s, and the gradient is
(f(ĉ + s·1_ij) − f(ĉ)) / s, which tends to the slope.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annattn.attention.anna import hash_inputs
from annattn.attention.expected import latest_chances, pair_scores
from annattn.attention.inputs import check_hasher, check_inputs, grouped, ungrouped
from annattn.attention.position_coded import growth, unit_length
from annattn.errors import InputError
from annattn.kernels import spoiled
from annattn.lsh import Hasher

__all__ = ["sampled_collision_attention", "sampled_latest_attention"]

_LEAST_STEP = 0.02  # of a finite difference, which in float32 stands for the slope


def sampled_collision_attention(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch key_heads keys dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    hasher: Hasher,
    *,
    noise: float = 1.0,
    recency: float = 0.0,
    is_causal: bool = False,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Σ_j ĉ_ij v_j / max(1, Σ_j ĉ_ij) with ĉ = ℓp + noise·(c − ℓp): `anna_attention` at noise 1, its average at 0.

    The maximum is where an average differs from a quotient: a query that meets less than one key on average reads
    less than one value's worth, and so has a reason to meet more.

    With `recency` a > 0, values are multiplied by 2^(a·j) and what is read is scaled to length √dim (see
    `position_coded`), inside, so that the gradient is that of one more meeting through both.

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
    counts = torch.zeros_like(expected)
    for table in range(hasher.tables):
        counts += pairs.met(table)
    used = expected + noise * (counts - expected).detach()
    held, total = used.detach(), used.detach().sum(-1, keepdim=True)
    step = max(noise, _LEAST_STEP)
    if recency:
        values = pairs.values * growth(recency, key.shape[2], pairs.values)  # in float64, for its range
        size = math.sqrt(value.shape[-1])
        summed = held.double() @ values
        out = (unit_length(summed) * total.clamp(max=1) * size).to(used.dtype)
        out = _OneMoreCoded.apply(used, out, summed, values, total, size, step)
    else:
        out = held @ pairs.values / total.clamp(min=1)
        out = _OneMore.apply(used, out, held @ pairs.values.detach(), pairs.values.detach(), total, step)
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
            newest, at = (pairs.met(table) * place).max(-1, keepdim=True)
            hits.scatter_add_(-1, at, (newest > 0).to(hits.dtype))
    sampled = hits / hits.sum(-1, keepdim=True).clamp(min=1)
    out = (expected + noise * (sampled - expected).detach()) @ pairs.values
    return ungrouped(out, query).masked_fill(pairs.lost[..., None], torch.nan).to(value.dtype)


@dataclass(frozen=True)
class _Pairs:
    """All pairs of queries and keys, heads laid out in groups."""

    chances: Tensor  # p^z where the key is seen, else 0
    values: Tensor
    seen: Tensor
    query_codes: Tensor
    key_codes: Tensor
    lost: Tensor  # the queries that get NaN, as by `anna_attention`

    def met(self, table: int) -> Tensor:
        codes = self.query_codes[..., :, None, table] == self.key_codes[:, None, None, :, table]
        return codes & self.seen


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
        grouped(query_codes, key.shape[1]),
        key_codes.flatten(0, 1),
        spoiled(query_codes, key_codes, int(is_causal)),
    )


class _OneMore(torch.autograd.Function):
    """The output as it is; backward, a count gets g·(f(ĉ + s) − f(ĉ)) / s with f the quotient and s the step."""

    @staticmethod
    def forward(
        ctx: Any, used: Tensor, out: Tensor, summed: Tensor, values: Tensor, total: Tensor, step: float
    ) -> Tensor:
        ctx.save_for_backward(summed, values, total)
        ctx.step = step
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        summed, values, total = ctx.saved_tensors
        along = (grad * summed).sum(-1, keepdim=True)
        then = (along + ctx.step * (grad @ values.mT)) / (total + ctx.step).clamp(min=1)
        return (then - along / total.clamp(min=1)) / ctx.step, grad, None, None, None, None


class _OneMoreCoded(torch.autograd.Function):
    """The same with f the sum of position-coded values scaled to one length, and to zero where nothing is met."""

    @staticmethod
    def forward(
        ctx: Any, used: Tensor, out: Tensor, summed: Tensor, values: Tensor, total: Tensor, size: float, step: float
    ) -> Tensor:
        ctx.save_for_backward(out, summed, values, total)
        ctx.size, ctx.step = size, step
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        out, summed, values, total = ctx.saved_tensors
        dtype = grad.dtype
        direction, unit_values = unit_length(summed).to(dtype), unit_length(values).to(dtype)
        # The value j in units of what is there already; where nothing is, any large number stands for infinity.
        length = _length(summed).clamp(min=torch.finfo(torch.float64).tiny)
        share = (ctx.step * _length(values).mT / length).clamp(max=1e15).to(dtype)
        square = 1 + 2 * share * (direction @ unit_values.mT) + share.square()
        along = (grad * direction).sum(-1, keepdim=True) + share * (grad @ unit_values.mT)
        then = along / square.clamp(min=1e-12).sqrt() * (total + ctx.step).clamp(max=1) * ctx.size
        return (then - (grad * out).sum(-1, keepdim=True)) / ctx.step, grad, None, None, None, None, None


def _length(x: Tensor) -> Tensor:
    largest = x.abs().amax(-1, keepdim=True)
    safe = torch.where(largest > 0, largest, 1)
    return (x / safe).norm(dim=-1, keepdim=True) * safe
