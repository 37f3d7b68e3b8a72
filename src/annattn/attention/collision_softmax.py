"""Softmax attention estimated from the keys a query meets: beyond the paper; the estimator of MagicPIG.

A pair outside the window and the first keys is looked at when it meets in enough tables, which happens with a known
probability π, and its weight is divided by π. So the sum over the pairs looked at of exp(s)/π·v, and that of exp(s)/π,
have as their averages over the drawing of the hash functions the sums over all pairs of exp(s)·v and of exp(s): the
numerator and the denominator of softmax attention.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from annattn.attention import reference
from annattn.attention.inputs import accumulator, attention_call, check_inputs, hash_inputs
from annattn.attention.looked_at import LookedAt, Reach, looked_at
from annattn.attention.mechanism import Attend, HashedConfig, Mechanism
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.checks import require_count, require_factor, require_flag
from annattn.errors import InputError
from annattn.kernels import fold_into_batch, nan_targets, not_twice
from annattn.lsh import Hasher, Hyperplane, restore

__all__ = [
    "MECHANISM",
    "CollisionSoftmaxConfig",
    "collision_softmax_attention",
    "collision_softmax_pairs",
    "collision_softmax_weights",
    "log_meeting_probability",
]

_TERMS = 12  # of the sum for rare meetings; the rest is below 1e-12 of it
_MOST_MEETINGS = 8
_CHUNK = 2**17  # pairs at a time: their rows of queries and keys stay near 64 MB


@attention_call
def collision_softmax_attention(
    query: Queries, key: Keys, value: Values, hasher: Hasher, *,
    scale: float | None = None, window: int = 0, first: int = 0, meetings: int = 1, centre: bool = False,
    is_causal: bool = False, key_mask: KeyMask | None = None,
) -> Outputs:  # fmt: skip
    """Σ_j w_ij v_j / Σ_j w_ij with w_ij = exp(scale·⟨q_i, k_j⟩) / π_ij over the keys looked at: estimates softmax.

    Looked at are the `first` keys, those within the `window`, and those met in at least `meetings` tables, each with
    π_ij, the probability of that (1 for the first two kinds). The work is that of hashing and of the pairs looked at,
    plus one sort of the meetings; where most pairs meet it is slower than softmax itself.

    Args:
        query: its heads may be a multiple of the key's.
        key: as in `anna_attention`, also where a key is NaN.
        value: any width; half precision is accumulated in float32.
        hasher: hash functions of a family that sees angles.
        scale: 1/√dim if not given, as in torch's scaled_dot_product_attention.
        window: how many keys before a query, its own included, are looked at in any case, and as many after it if not
            causal. From the number of keys on this is softmax attention.
        first: how many keys at the beginning are looked at in any case. Only keys that take part are counted.
        meetings: from 1 to 8; MagicPIG takes 2. More need more tables for as many pairs, and tell near from far better.
        centre: subtract from all keys the mean of the `window` keys after the first ones. Softmax does not change, but
            keys that all point one way, as those of language models do, become keys that can be told apart. Queries
            that come before the end of these keys look at all they see, so the result stays causal.
        is_causal: query i sees the keys up to its own position, the last query aligned with the last key.
        key_mask: True where a key takes part.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=4, hashes=2, seed=0)
    >>> x = torch.eye(2).reshape(1, 1, 2, 2)
    >>> aa.collision_softmax_attention(x, x, x, hasher, scale=1.0, window=2).squeeze()
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """
    check_inputs(query, key, value, key_mask, is_causal=is_causal, hasher=hasher)
    reach = _reach(window, first, meetings, centre, is_causal)
    if scale is None:
        scale = query.shape[-1] ** -0.5 if query.shape[-1] else 1.0
    require_factor("scale", scale)
    if hasher.shared:
        raise InputError(
            "hasher",
            given="one whose tables share hash functions",
            expected="independent tables: the chance of a meeting, which weights are divided by, is that of those",
            hint="draw it with shared=False",
        )
    if hasher.family.log_probability(torch.zeros(1)) is None:
        raise InputError(
            "hasher",
            given=str(hasher.family),
            expected="hash functions whose collision probability is a function of the angle",
            hint="draw them from Hyperplane or CrossPolytope",
        )
    present = query.new_ones(key.shape[0], key.shape[2], dtype=torch.bool) if key_mask is None else key_mask
    hidden = ~present[:, None, :, None]
    key, value = key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
    wide, dtype = torch.promote_types(*(accumulator(x.dtype) for x in (query, value))), value.dtype
    if centre:
        key = key.to(wide) - _centre(key.to(wide), present, reach).detach()
    codes = hash_inputs(hasher, query, key, key_mask)
    inputs = (query.to(wide), key.to(wide), value.to(wide), *codes, present)
    out, _ = _collision_softmax(*inputs, [*reach_numbers(reach)], scale, hasher.spec)
    unknown = nan_targets(*codes, int(is_causal))
    return out.masked_fill(unknown[..., None], torch.nan).to(dtype)


def _reach(window: int, first: int, meetings: int, centre: bool, is_causal: bool) -> Reach:
    window, first = require_count("window", window, least=0), require_count("first", first, least=0)
    meetings = require_count("meetings", meetings, most=_MOST_MEETINGS)
    if require_flag("centre", centre) and not window:
        raise InputError(
            "centre", given="True with window=0", expected="a window", hint="its keys give the mean that is subtracted"
        )
    return Reach(window, first, meetings, is_causal)


def reach_numbers(reach: Reach) -> tuple[int, int, int, int]:
    """A reach as an op takes it."""
    return reach.window, reach.first, reach.meetings, int(reach.is_causal)


def _centre(key: Tensor, present: Tensor, reach: Reach) -> Tensor:
    """The mean of the keys ranked from `first` to `first + window`, (batch, heads, 1, dim); zero if there are none."""
    rank = present.cumsum(1) - 1
    chosen = present & (rank >= reach.first) & (rank < reach.first + reach.window)
    weights = chosen / chosen.sum(1, keepdim=True).clamp(min=1)
    # A key of infinity would spoil the mean even with a weight of zero.
    return torch.where(chosen[:, None, :, None], key * weights[:, None, :, None].to(key.dtype), 0).sum(2, keepdim=True)


def log_meeting_probability(log_chance: Tensor, tables: int, meetings: int) -> Tensor:
    """The log of π: a pair that shares a bucket with probability exp(log_chance) per table does so in so many of them.

    >>> log_meeting_probability(torch.tensor([0.5]).log(), tables=2, meetings=1).exp()
    tensor([0.7500])
    >>> log_meeting_probability(torch.tensor([0.5]).log(), tables=2, meetings=2).exp()
    tensor([0.2500])
    """
    chance = log_chance.double().exp().clamp(1e-150, 1 - 1e-16)
    odds, term = chance / (1 - chance), torch.exp(tables * torch.log1p(-chance))
    fewer, rare = torch.zeros_like(chance), torch.zeros_like(chance)
    # For rare meetings 1 minus the chance of fewer cancels; the sum over those with enough does not, and ends soon.
    for times in range(min(tables, meetings + _TERMS) + 1):
        if times < meetings:
            fewer += term
        else:
            rare += term
        term = term * odds * ((tables - times) / (times + 1))
    return torch.where(tables * chance < 0.5, rare, 1 - fewer).clamp(min=1e-300).log().to(log_chance.dtype)


@torch.library.custom_op("annattn::collision_softmax", mutates_args=())
def _collision_softmax(
    query: Tensor, key: Tensor, value: Tensor, query_codes: Tensor, key_codes: Tensor, present: Tensor,
    reach: list[int], scale: float, spec: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The outputs, and the logarithms of their denominators; -inf where nothing is looked at."""
    out = value.new_zeros(*query.shape[:3], value.shape[-1])
    log_total = query.new_full(query.shape[:3], -torch.inf)
    for group in _groups(query, key, value, query_codes, key_codes, present, reach, scale, spec):
        largest = query.new_full((len(group.query),), -torch.inf)
        for i, _, score in group.scored():
            largest.scatter_reduce_(0, i, score, "amax")
        total, sums = torch.zeros_like(largest), out.new_zeros(len(group.query), value.shape[-1])
        for i, j, score in group.scored():
            weight = torch.exp(score - largest[i])
            total.index_add_(0, i, weight)
            sums.index_add_(0, i, weight[:, None] * group.value[j])
        out[group.at] = (sums / torch.where(total > 0, total, 1)[:, None]).view_as(out[group.at])
        log_total[group.at] = (largest + total.log()).view_as(log_total[group.at])
    return out, log_total


@_collision_softmax.register_fake
def _(query, key, value, query_codes, key_codes, present, reach, scale, spec):
    return value.new_empty(*query.shape[:3], value.shape[-1]), query.new_empty(query.shape[:3])


@torch.library.custom_op("annattn::collision_softmax_gradient", mutates_args=())
def _collision_softmax_gradient(
    query: Tensor, key: Tensor, value: Tensor, query_codes: Tensor, key_codes: Tensor, present: Tensor, out: Tensor,
    log_total: Tensor, grad: Tensor, reach: list[int], scale: float, spec: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """That of softmax over the pairs looked at, with π held fixed: an unbiased estimate for both sums, as they are."""
    grads = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)]
    for group in _groups(query, key, value, query_codes, key_codes, present, reach, scale, spec):
        g, total = grad[group.at].flatten(0, 1), log_total[group.at].flatten()
        mean = (g * out[group.at].flatten(0, 1)).sum(1)
        of_query, of_key, of_value = torch.zeros_like(group.query), *(x[group.key_at] for x in grads[1:])
        for i, j, score in group.scored():
            weight = torch.exp(score - total[i])
            slope = scale * weight * ((g[i] * group.value[j]).sum(1) - mean[i])
            of_value.index_add_(0, j, weight[:, None] * g[i])
            of_query.index_add_(0, i, slope[:, None] * group.key[j])
            of_key.index_add_(0, j, slope[:, None] * group.query[i])
        grads[0][group.at] = of_query.view_as(grads[0][group.at])
    return grads[0], grads[1], grads[2]


@_collision_softmax_gradient.register_fake
def _(query, key, value, query_codes, key_codes, present, out, log_total, grad, reach, scale, spec):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))


def _keep(ctx, inputs, output):
    *tensors, ctx.reach, ctx.scale, ctx.spec = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad, _grad_total):
    grads = _collision_softmax_gradient(*ctx.saved_tensors, grad, ctx.reach, ctx.scale, ctx.spec)
    wanted = [g if needed else None for g, needed in zip(grads, ctx.needs_input_grad[:3], strict=True)]
    return *wanted, *[None] * 6


_collision_softmax.register_autograd(_backward, setup_context=_keep)
_collision_softmax_gradient.register_autograd(not_twice)
for _op in (_collision_softmax, _collision_softmax_gradient):
    fold_into_batch(_op)


@dataclass(frozen=True)
class _Group:
    """One key head, the query heads it serves as one run of rows, and the pairs looked at."""

    at: tuple[int, slice]
    key_at: tuple[int, int]
    query: Tensor
    key: Tensor
    value: Tensor
    pairs: LookedAt
    scale: float
    hasher: Hasher
    meetings: int

    def scored(self):
        """Chunks of pairs (i, j) with scale·⟨q_i, k_j⟩ − log π_ij."""
        lengths = [torch.where(norm > 0, norm, 1) for norm in (self.query.norm(dim=1), self.key.norm(dim=1))]
        for start in range(0, len(self.pairs.query), _CHUNK):
            i, j = (column[start : start + _CHUNK] for column in (self.pairs.query, self.pairs.key))
            dot = (self.query[i] * self.key[j]).sum(1)
            score = self.scale * dot
            chance = slice(max(0, self.pairs.certain - start), None)
            cosine = dot[chance] / (lengths[0][i[chance]] * lengths[1][j[chance]])
            logs = self.hasher.family.log_probability(cosine.clamp(-1, 1))
            assert logs is not None
            score[chance] -= log_meeting_probability(self.hasher.hashes * logs, self.hasher.tables, self.meetings)
            yield i, j, score


def _groups(query, key, value, query_codes, key_codes, present, reach, scale, spec):
    """The key heads of a call, one after the other."""
    hasher = restore(spec, ())
    window, first, meetings, is_causal = reach
    reach = Reach(window, first, meetings, bool(is_causal))
    share = query.shape[1] // key.shape[1] if key.shape[1] else 0
    for b in range(query.shape[0]):
        for h in range(key.shape[1]):
            at = (b, slice(h * share, (h + 1) * share))
            pairs = looked_at(query_codes[at].flatten(0, 1), key_codes[b, h], present[b], query.shape[2], reach)
            yield _Group(
                at, (b, h), query[at].flatten(0, 1), key[b, h], value[b, h], pairs, scale, hasher, meetings
            )  # fmt: skip


def collision_softmax_pairs(
    query: Tensor, key: Tensor, hasher: Hasher, *, is_causal: bool = False, key_mask: Tensor | None = None, **reach: Any
) -> int:
    """How many pairs `collision_softmax_attention` looks at with these options.

    >>> import annattn as aa
    >>> x = torch.eye(2).reshape(1, 1, 2, 2)
    >>> collision_softmax_pairs(x, x, aa.lsh.Hyperplane(2).sample(tables=4, hashes=2), window=1)
    2
    """
    reach.pop("scale", None)
    value = key.new_ones(*key.shape[:3], 0)
    check_inputs(query, key, value, key_mask, is_causal=is_causal, hasher=hasher)
    options = {"window": 0, "first": 0, "meetings": 1, "centre": False} | reach
    limits = _reach(**options, is_causal=is_causal)
    present = query.new_ones(key.shape[0], key.shape[2], dtype=torch.bool) if key_mask is None else key_mask
    key = key.masked_fill(~present[:, None, :, None], 0)
    if options["centre"]:
        key = key - _centre(key, present, limits)
    codes = hash_inputs(hasher, query, key, key_mask)
    groups = _groups(query, key, value, *codes, present, reach_numbers(limits), 1.0, hasher.spec)
    return sum(len(group.pairs.query) for group in groups)


def collision_softmax_weights(
    query: Tensor, key: Tensor, seen: Tensor, *,
    hasher: Hasher, scale: float, window: int = 0, first: int = 0, meetings: int = 1, centre: bool = False,
) -> Tensor:  # fmt: skip
    """exp(scale·⟨q_i, k_j⟩) / π_ij over the keys looked at, normalised; pair by pair.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=2, hashes=1)
    >>> x = torch.tensor([[1.0], [1.0]])
    >>> collision_softmax_weights(x, x, reference.visible(2, 2), hasher=hasher, scale=1.0)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    taking_part = [j for j in range(len(key)) if bool(seen[:, j].any())]
    rank = {j: place for place, j in enumerate(taking_part)}
    if centre and (block := taking_part[first : first + window]):
        key = key.double() - key[block].double().mean(0)
    counts = reference.collision_counts(query, key, hasher)
    chances = reference.collision_probabilities(query, key, hasher.family, hasher.hashes)
    # A row of zeros has one bucket, which another row hits as often as that of a row at a right angle.
    zero = (query == 0).all(1)[:, None] | (key == 0).all(1)
    chances[zero] = hasher.family.collision_probability(math.sqrt(2)) ** hasher.hashes
    scores = torch.zeros(len(query), len(key), dtype=torch.float64)
    for i in range(len(query)):
        stand = sum(j <= i + len(key) - len(query) for j in taking_part) - 1
        for j in taking_part:
            sure = rank[j] < first or abs(stand - rank[j]) < window
            p, missed = chances[i, j].item(), 0.0
            for c in range(meetings):
                missed += math.comb(hasher.tables, c) * p**c * (1 - p) ** (hasher.tables - c)
            if seen[i, j] and (sure or counts[i, j] >= meetings):
                weight = math.exp(scale * (query[i].double() @ key[j].double()).item())
                scores[i, j] = weight if sure else weight / (1 - missed)
    return reference.normalised(scores)


@dataclass(frozen=True)
class CollisionSoftmaxConfig(HashedConfig):
    """`collision_softmax_attention`: softmax attention estimated from ℓ = `tables` of z = `hashes`.

    >>> CollisionSoftmaxConfig(tables=40, window=64).meetings
    2
    """

    may_be_zero: ClassVar[tuple[str, ...]] = ("window", "first")
    window: int = 0
    first: int = 0
    meetings: int = 2
    centre: bool = False
    scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _reach(self.window, self.first, self.meetings, self.centre, True)
        if self.scale is not None:
            object.__setattr__(self, "scale", require_factor("scale", self.scale))

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        hasher = self.hasher(head_dim, layer, seed)
        reach = {"window": self.window, "first": self.first, "meetings": self.meetings, "centre": self.centre}
        return lambda q, k, v, is_causal, mask: collision_softmax_attention(
            q, k, v, hasher, scale=self.scale, is_causal=is_causal, key_mask=mask, **reach
        )


MECHANISM = Mechanism(
    collision_softmax_attention,
    collision_softmax_weights,
    CollisionSoftmaxConfig,
    lambda dim: {
        "hasher": Hyperplane(dim).sample(tables=8, hashes=4),
        "scale": 0.5,
        "window": 2,
        "first": 1,
        "centre": True,
    },
    by_angle=True,
)
