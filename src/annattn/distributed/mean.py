"""The mean of what a query's buckets hold on all ranks, and its gradients, each by the way that sends fewer bytes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from annattn.distributed import members, states
from annattn.distributed.agreement import agree
from annattn.distributed.codes import Codes
from annattn.distributed.peers import Peers, cpu_by_default
from annattn.distributed.room import scales
from annattn.kernels import GradientInputs, Order, bucket_sum, in_own_dtypes, query_key_gradient
from annattn.kernels.interface import Slope
from annattn.lsh import IGNORED
from annattn.lsh.rows import directions_and_lengths

__all__ = ["WAYS", "Plan", "sharded_mean"]

WAYS = ("auto", "states", "members")


@dataclass(frozen=True)
class Plan:
    """One call: among whom, what a query sees, and what queries and keys get as a gradient (`slope`, or none)."""

    peers: Peers
    order: Order
    slope: Slope | None
    keep_newest: bool
    way: str
    calling: str
    """The function, for errors."""

    @property
    def only_members(self) -> bool:
        """Whether single members are needed: sums of a bucket do not tell which is newest."""
        return self.keep_newest

    @property
    def members_back(self) -> bool:
        """The same for the gradients: a weight that depends on the pair does not factor into sums."""
        return self.keep_newest or (self.slope is not None and self.slope.constant is None)


def sharded_mean(
    query: Tensor, key: Tensor, value: Tensor, codes: Codes, plan: Plan, *, counted: bool = False
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j / Σ_j c_ij and Σ_j c_ij over the keys of all ranks; NaN where there is no answer.

    `value` is in the dtype it adds up in. If `counted`, queries and keys get a gradient of the count too, which is then
    a number of that dtype.
    """
    return _ShardedMean.apply(query, key, value, codes, plan, counted)


class _ShardedMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, codes: Codes, plan: Plan, counted: bool):
        with plan.peers.telling(plan.calling):
            (scale,) = scales(plan.peers, _terms(codes, value), [value.detach()], plan.calling)
            total, count = _forward(value.detach() * scale if scale != 1 else value.detach(), codes, plan)
        mean = total / count[..., None].clamp(min=1)
        if scale != 1:  # a mean is no larger than the largest value, whatever was rounded on the way
            largest = torch.finfo(mean.dtype).max
            mean = torch.where(mean.isfinite(), (mean / scale).clamp(-largest, largest), mean)
        mean = mean.masked_fill(codes.unknown[..., None], torch.nan)
        ctx.save_for_backward(query, key, value, mean, count)
        ctx.codes, ctx.plan = codes, plan
        ctx.set_materialize_grads(False)
        met = count.to(value.dtype) if counted else count
        if not counted:
            ctx.mark_non_differentiable(met)
        return mean, met

    @staticmethod
    @torch.autograd.function.once_differentiable
    @cpu_by_default
    @in_own_dtypes
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor | None, grad_count: Tensor | None = None
    ):
        plan: Plan = ctx.plan
        doing = f"the backward pass of {plan.calling}"
        with plan.peers.telling(doing):
            query, key, value, mean, count = ctx.saved_tensors
            if grad is None:
                grad = torch.zeros_like(mean)
            weight = grad / count[..., None].clamp(min=1)
            # Ranks that are not at the same call would wait for each other for ever.
            agree(plan.peers, doing, {}, None)
            codes: Codes = ctx.codes
            large = [value.detach(), weight] if plan.slope is not None else [weight]
            *of_value, of_weight = scales(plan.peers, _terms(codes, value) * (query.shape[-1] + 1), large, doing)
            weight, value = weight * of_weight, value.detach() * (of_value[0] if of_value else 1.0)
            if plan.slope is not None:
                # A value of 1 is one more column: it takes -g_i·out_i/C_i, and the count's own gradient.
                level = (weight * (mean.nan_to_num(0, 0, 0) * of_value[0])).sum(-1, keepdim=True)
                more = -level if grad_count is None else grad_count[..., None] * of_value[0] * of_weight - level
                weight = torch.cat([weight, more], -1)
            found = _backward(query.detach(), key.detach(), value, weight, codes, plan)
        turned = of_value[0] if of_value else 1.0
        wanted = [
            (g / of_weight / scale).to(x.dtype) if needed and g is not None else None
            for g, x, needed, scale in zip(
                found, (query, key, value), ctx.needs_input_grad, (turned, turned, 1.0), strict=False
            )
        ]
        return *wanted, None, None, None


def _terms(codes: Codes, value: Tensor) -> int:
    """At most so many numbers are added up into one, over all ranks."""
    tokens = max(sum(codes.slices.queries), sum(codes.slices.keys))
    return tokens * codes.query.shape[1] * codes.query.shape[3] * (value.shape[-1] + 1)


def _shared(codes: Tensor, whole: Codes) -> Tensor:
    """The codes that may occur elsewhere."""
    return codes if whole.shared == whole.bound else torch.where(codes >= whole.shared, IGNORED, codes)


def _own(codes: Tensor, whole: Codes) -> Tensor:
    """The codes that may not."""
    return torch.where(codes < whole.shared, IGNORED, codes)


def _times(codes: Codes, plan: Plan) -> tuple[Tensor, Tensor]:
    rank, device = plan.peers.rank, codes.query.device
    firsts = (sum(codes.slices.queries[:rank]), sum(codes.slices.keys[:rank]))
    lengths = (codes.query.shape[2], codes.key.shape[2])
    query, key = (torch.arange(n, device=device) + first for n, first in zip(lengths, firsts, strict=True))
    return query, key


def _choose(plan: Plan, by_states: list[int] | None, by_members: list[int]) -> bool:
    """Whether members travel: if they must, or if they are asked for, or if all ranks together then send less."""
    if plan.way != "auto" and by_states is not None:
        return plan.way == "members"
    return by_states is None or sum(by_members) < sum(by_states)


def _forward(value: Tensor, codes: Codes, plan: Plan) -> tuple[Tensor, Tensor]:
    peers, order = plan.peers, plan.order
    query_codes, key_codes = _shared(codes.query, codes), _shared(codes.key, codes)
    batch, heads, _, tables = codes.key.shape
    if peers.size == 1 and not plan.keep_newest:
        return _sum(codes.query, codes.key, value, order, codes.bound)
    doing = f"{plan.calling}, exchange of what buckets hold"
    routing = members.route(peers, query_codes, key_codes, doing)
    columns = members.columns_forward(value.shape[-1], value.dtype)
    by_members = members.sent_bytes(routing, columns, tables, peers.size)
    rows = batch * heads * tables * codes.shared
    state_columns = [(value.shape[-1], value.dtype), (1, torch.int64)]
    by_states = None if plan.only_members else states.sent_bytes(rows, state_columns, order, peers.size)
    if _choose(plan, by_states, by_members):
        with peers.predicting(plan.calling, "members", by_members[peers.rank]):
            total, count = members.attend(
                peers, routing, query_codes, key_codes, value, _times(codes, plan), order, columns, doing,
                keep_newest=plan.keep_newest,
            )  # fmt: skip
        if codes.shared < codes.bound:
            alone, number = _sum(_own(codes.query, codes), _own(codes.key, codes), value, order, codes.bound)
            total, count = total + alone, count + number
        return total, count
    assert by_states is not None
    with peers.predicting(plan.calling, "states", by_states[peers.rank]):
        held = states.fill(key_codes, value, heads, codes.shared)
        others, numbers = states.add_up_others(peers, held, order, doing)
    del held
    total, count = _sum(codes.query, codes.key, value, order, codes.bound)
    total = total + states.read(others, query_codes, heads, codes.shared)
    return total, count + states.read(numbers, query_codes, heads, codes.shared)[..., 0]


def _sum(target_codes: Tensor, source_codes: Tensor, value: Tensor, order: Order, bound: int) -> tuple[Tensor, Tensor]:
    return bucket_sum(target_codes, source_codes, value, order, bound if bound < 2**40 else 0, False)


def _backward(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, codes: Codes, plan: Plan
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """The gradients for queries, keys and values, given g_i/C_i and, with a slope, one more column of it."""
    peers, order, dtype = plan.peers, plan.order, weight.dtype
    query, key = query.to(dtype), key.to(dtype)
    query_codes, key_codes = _shared(codes.query, codes), _shared(codes.key, codes)
    batch, heads, _, tables = codes.key.shape
    if peers.size == 1 and not plan.keep_newest:
        return _local(query, key, value, weight, codes.query, codes.key, codes.bound, plan)
    doing = f"the backward pass of {plan.calling}, exchange of what buckets hold"
    turns, width, dim = plan.slope is not None, value.shape[-1], query.shape[-1]
    routing = members.route(peers, query_codes, key_codes, doing)
    columns = members.columns_back(dim, width, dtype, turns=turns)
    by_members = members.sent_bytes(routing, columns, tables, peers.size)
    by_states = (
        None if plan.members_back else _states_back_bytes(codes, plan, batch * heads * tables, dim, width, dtype)
    )
    if _choose(plan, by_states, by_members):
        with peers.predicting(f"{plan.calling}, backward", "members", by_members[peers.rank]):
            found = members.gradients(
                peers, routing, query_codes, key_codes, (query, key, value, weight), _times(codes, plan), order,
                plan.slope, columns, doing, keep_newest=plan.keep_newest,
            )  # fmt: skip
        if codes.shared < codes.bound:
            own = _own(codes.query, codes), _own(codes.key, codes)
            found = _plus(found, _local(query, key, value, weight, *own, codes.bound, plan))
        return found
    assert by_states is not None
    with peers.predicting(f"{plan.calling}, backward", "states", by_states[peers.rank]):
        found = _others(query, key, value, weight, query_codes, key_codes, codes.shared, plan, doing)
    return _plus(found, _local(query, key, value, weight, codes.query, codes.key, codes.bound, plan))


Gradients = tuple[Tensor | None, Tensor | None, Tensor]


def _plus(a: Gradients, b: Gradients) -> Gradients:
    query, key = (x if y is None or x is None else x + y for x, y in zip(a[:2], b[:2], strict=True))
    return query, key, a[2] + b[2]


def _states_back_bytes(codes: Codes, plan: Plan, tables: int, dim: int, width: int, dtype: torch.dtype) -> list[int]:
    rows, size, order = tables * codes.shared, plan.peers.size, plan.order
    found = states.sent_bytes(rows, [(width, dtype)], Order(-order), size)
    if plan.slope is not None:
        outer = [((width + 1) * dim, dtype)]
        more = [states.sent_bytes(rows, outer, Order(way), size) for way in (order, -order)]
        found = [sum(each) for each in zip(found, *more, strict=True)]
    return found


def _local(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, query_codes: Tensor, key_codes: Tensor, bound: int,
    plan: Plan,
) -> Gradients:  # fmt: skip
    """The gradients due to pairs of this rank."""
    width = value.shape[-1]
    back = Order(-plan.order)
    grad_value, _ = _sum(key_codes, query_codes, weight[..., :width].contiguous(), back, bound)
    if plan.slope is None:
        return None, None, grad_value
    inputs = GradientInputs(
        query, key, pad(value, (0, 1), value=1.0), weight, torch.zeros_like(weight),
        torch.ones(weight.shape[:3], dtype=torch.int64, device=weight.device), plan.slope, plan.order, query_codes,
        key_codes, bound if bound < 2**40 else 0,
    )  # fmt: skip
    return *query_key_gradient("gradient", inputs, query_codes.shape[-1]), grad_value


def _others(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, query_codes: Tensor, key_codes: Tensor, bound: int,
    plan: Plan, doing: str,
) -> Gradients:  # fmt: skip
    """The gradients due to pairs with other ranks: from sums per bucket of g_i/C_i, v_j ⊗ k_j and g_i/C_i ⊗ q_i."""
    peers, heads, width = plan.peers, key.shape[1], value.shape[-1]
    order, back = plan.order, Order(-plan.order)
    pull = weight[..., :width].contiguous()
    (others,) = states.add_up_others(peers, [states.fill(query_codes, pull, heads, bound)[0]], back, doing)
    grad_value = states.read(others, key_codes, heads, bound)
    if plan.slope is None:
        return None, None, grad_value
    assert plan.slope.constant is not None
    unit_query, query_length = directions_and_lengths(query)
    unit_key, key_length = directions_and_lengths(key)
    value = pad(value, (0, 1), value=1.0)
    held = states.fill_outer(key_codes, value, unit_key, heads, bound)
    (held,) = states.add_up_others(peers, [held], order, doing)
    grad_query = states.read_outer(held, query_codes, weight, heads, bound)
    held = states.fill_outer(query_codes, weight, unit_query, heads, bound)
    (held,) = states.add_up_others(peers, [held], back, doing)
    grad_key = states.read_outer(held, key_codes, value, heads, bound)
    turned = (
        plan.slope.constant * (grad - (grad * unit).sum(-1, keepdim=True) * unit) / length
        for grad, unit, length in ((grad_query, unit_query, query_length), (grad_key, unit_key, key_length))
    )
    grad_query, grad_key = turned
    return grad_query, grad_key, grad_value
