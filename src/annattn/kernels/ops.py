"""The bucket primitives as torch.library ops: traceable, differentiable in the values, run by the chosen backend."""

import torch
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.dispatch import choose
from annattn.kernels.gradient import latest_gradient
from annattn.kernels.slopes import read_slope
from annattn.lsh import FAMILIES, Hasher, restore

__all__ = ["attend", "average", "collect", "equal_rows", "hash_pair", "latest", "latest_mean"]


def hash_pair(hasher: Hasher, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of queries and keys, comparable with each other; traceable for the families listed in FAMILIES."""
    if type(hasher.family) not in FAMILIES.values():
        return choose(query).hash_pair(hasher, query, key)
    return _hash_pair(query, key, list(hasher.parameters), hasher.spec)


# An op takes tensors and plain values only, so a hasher travels as its parameters and a description of the rest.
@torch.library.custom_op("annattn::hash_pair", mutates_args=())
def _hash_pair(query: Tensor, key: Tensor, parameters: list[Tensor], spec: str) -> tuple[Tensor, Tensor]:
    return choose(query).hash_pair(restore(spec, tuple(parameters)), query, key)


@_hash_pair.register_fake
def _(query, key, parameters, spec):
    tables = restore(spec, tuple(parameters)).tables
    return tuple(x.new_empty(*x.shape[:-1], tables, dtype=torch.int64) for x in (query, key))


@torch.library.custom_op("annattn::equal_rows", mutates_args=())
def equal_rows(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes in one table that are equal exactly when rows are."""
    return choose(query).equal_rows(query, key)


@equal_rows.register_fake
def _(query, key):
    return tuple(x.new_empty(*x.shape[:-1], 1, dtype=torch.int64) for x in (query, key))


@torch.library.custom_op("annattn::average", mutates_args=())
def average(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j / Σ_j c_ij and Σ_j c_ij: see `torch_backend.average`."""
    backend = choose(value)
    return backend.average(target_codes, source_codes, value, order, buckets, one_table_at_a_time)


@torch.library.custom_op("annattn::collect", mutates_args=())
def collect(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j and Σ_j c_ij: see `torch_backend.collect`."""
    backend = choose(value)
    return backend.collect(target_codes, source_codes, value, order, buckets, one_table_at_a_time)


@average.register_fake
@collect.register_fake
def _(target_codes, source_codes, value, order, buckets, one_table_at_a_time):
    shape = target_codes.shape[:3]
    return value.new_empty(*shape, value.shape[-1]), value.new_empty(shape, dtype=torch.int64)


def _keep(ctx, inputs, output):
    target_codes, source_codes, _, ctx.order, ctx.buckets, ctx.one_table_at_a_time = inputs
    ctx.save_for_backward(target_codes, source_codes, output[1])
    ctx.mark_non_differentiable(output[1])


def _collect_backward(ctx, grad_total, _grad_count):
    # dv_j = Σ_i c_ij g_i: the same sum with the roles of targets and sources exchanged.
    target_codes, source_codes, _ = ctx.saved_tensors
    grad, _ = collect(source_codes, target_codes, grad_total, -ctx.order, ctx.buckets, ctx.one_table_at_a_time)
    return None, None, grad, None, None, None


def _average_backward(ctx, grad_mean, grad_count):
    count = ctx.saved_tensors[2]
    return _collect_backward(ctx, grad_mean / count[..., None].clamp(min=1), grad_count)


collect.register_autograd(_collect_backward, setup_context=_keep)
average.register_autograd(_average_backward, setup_context=_keep)


# The mean of what a query's buckets hold, differentiable in queries and keys as well: they take no part in the forward
# pass, which knows only their codes, and get the gradient of their collision probability.
@torch.library.custom_op("annattn::attend", mutates_args=())
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_codes: Tensor,
    key_codes: Tensor,
    order: int,
    buckets: int,
    one_table_at_a_time: bool,
    slope: str,
) -> tuple[Tensor, Tensor]:
    return choose(value).average(query_codes, key_codes, value, order, buckets, one_table_at_a_time)


@_attend.register_fake
def _(query, key, value, query_codes, key_codes, order, buckets, one_table_at_a_time, slope):
    return value.new_empty(*query.shape[:3], value.shape[-1]), query.new_empty(query.shape[:3], dtype=torch.int64)


@torch.library.custom_op("annattn::attend_gradient", mutates_args=())
def _attend_gradient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_codes: Tensor,
    key_codes: Tensor,
    grad: Tensor,
    out: Tensor,
    count: Tensor,
    is_causal: bool,
    buckets: int,
    slope: str,
) -> tuple[Tensor, Tensor]:
    grads = choose(value).query_key_gradient(
        query, key, value, query_codes, key_codes, grad, out, count, is_causal, buckets, read_slope(slope)
    )
    return grads[0].to(query.dtype), grads[1].to(key.dtype)


@_attend_gradient.register_fake
def _(query, key, value, query_codes, key_codes, grad, out, count, is_causal, buckets, slope):
    return torch.empty_like(query), torch.empty_like(key)


def _keep_attend(ctx, inputs, output):
    query, key, value, query_codes, key_codes, ctx.order, ctx.buckets, ctx.one_table_at_a_time, ctx.slope = inputs
    ctx.save_for_backward(query, key, value, query_codes, key_codes, *output)
    ctx.mark_non_differentiable(output[1])


def _attend_backward(ctx, grad, _grad_count):
    query, key, value, query_codes, key_codes, out, count = ctx.saved_tensors
    grad_query = grad_key = grad_value = None
    if ctx.needs_input_grad[2]:
        weight = grad / count[..., None].clamp(min=1)
        grad_value, _ = collect(key_codes, query_codes, weight, -ctx.order, ctx.buckets, ctx.one_table_at_a_time)
    if any(ctx.needs_input_grad[:2]):
        grad_query, grad_key = _attend_gradient(
            query, key, value, query_codes, key_codes, grad, out, count, ctx.order > 0, ctx.buckets, ctx.slope
        )
    return grad_query, grad_key, grad_value, None, None, None, None, None, None


_attend.register_autograd(_attend_backward, setup_context=_keep_attend)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    codes: tuple[Tensor, Tensor],
    *,
    order: int,
    buckets: int,
    one_table_at_a_time: bool,
    slope: str,
) -> tuple[Tensor, Tensor]:
    """`average` with the gradient for queries and keys that `slope` (see `kernels.slopes`) asks for."""
    if not slope:
        return average(*codes, value, order, buckets, one_table_at_a_time)
    return _attend(query, key, value, *codes, order, buckets, one_table_at_a_time, slope)


@torch.library.custom_op("annattn::latest_mean", mutates_args=())
def _latest_mean(query: Tensor, key: Tensor, value: Tensor, newest: Tensor, slope: str) -> Tensor:
    heads, share, _ = heads_and_shares(newest, value)
    batch, _, n, tables = newest.shape
    at = newest.reshape(batch, heads, share * n, tables)
    total = value.new_zeros(batch, heads, share * n, value.shape[-1])
    if value.shape[2]:
        for position in at.unbind(-1):
            index = position.clamp(min=0)[..., None].expand(-1, -1, -1, value.shape[-1])
            total += torch.where((position >= 0)[..., None], value.gather(2, index), 0)
    total = total.reshape(*newest.shape[:3], value.shape[-1])
    return total / (newest >= 0).sum(-1, keepdim=True).clamp(min=1)


@_latest_mean.register_fake
def _(query, key, value, newest, slope):
    return value.new_empty(*newest.shape[:3], value.shape[-1])


@torch.library.custom_op("annattn::latest_mean_gradient", mutates_args=())
def _latest_mean_gradient(
    query: Tensor, key: Tensor, value: Tensor, newest: Tensor, grad: Tensor, out: Tensor, slope: str
) -> tuple[Tensor, Tensor, Tensor]:
    heads, share, _ = heads_and_shares(newest, value)
    batch, _, n, tables = newest.shape
    weight = (grad / (newest >= 0).sum(-1, keepdim=True).clamp(min=1)).reshape(batch, heads, share * n, -1)
    grad_value = torch.zeros_like(value)
    if value.shape[2]:
        for position in newest.reshape(batch, heads, share * n, tables).unbind(-1):
            index = position.clamp(min=0)[..., None].expand(weight.shape)
            grad_value.scatter_add_(2, index, torch.where((position >= 0)[..., None], weight, 0))
    if not slope:
        return torch.zeros_like(query), torch.zeros_like(key), grad_value
    grads = latest_gradient(query, key, value, newest, grad, out, slope=read_slope(slope))
    return grads[0].to(query.dtype), grads[1].to(key.dtype), grad_value


@_latest_mean_gradient.register_fake
def _(query, key, value, newest, grad, out, slope):
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep_latest(ctx, inputs, output):
    *tensors, ctx.slope = inputs
    ctx.save_for_backward(*tensors, output)


def _latest_backward(ctx, grad):
    query, key, value, newest, out = ctx.saved_tensors
    grads = _latest_mean_gradient(query, key, value, newest, grad, out, ctx.slope)
    wanted = [g if needed else None for g, needed in zip(grads, ctx.needs_input_grad[:3], strict=True)]
    return *wanted, None, None


_latest_mean.register_autograd(_latest_backward, setup_context=_keep_latest)


def latest_mean(query: Tensor, key: Tensor, value: Tensor, newest: Tensor, slope: str) -> Tensor:
    """The mean over tables of the values at the positions `latest` found; differentiable like `attend`."""
    return _latest_mean(query, key, value, newest, slope)


@torch.library.custom_op("annattn::latest", mutates_args=())
def latest(target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
    """Per table the newest source in a causal target's bucket: see `torch_backend.latest`."""
    return choose(target_codes).latest(target_codes, source_codes, buckets)


@latest.register_fake
def _(target_codes, source_codes, buckets):
    return torch.empty_like(target_codes)
