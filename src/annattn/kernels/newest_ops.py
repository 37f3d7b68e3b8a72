"""Newest members of buckets, and their mean, as torch.library ops; `ops` says how."""

import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.kernels.codes import nan_targets
from annattn.kernels.dispatch import choose
from annattn.kernels.interface import Call, GradientInputs, Order, Slope, SumInputs, slope_of
from annattn.kernels.ops import needs_no_op, query_key_gradient, runs_now, sum_call, tables_apart
from annattn.kernels.transforms import fold_into_batch, not_twice, wanted_gradient
from annattn.lsh import NO_BUCKET, Hasher

__all__ = ["nan_where_unknown", "newest", "newest_attention", "newest_call"]


def newest(target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
    """Per table the newest source in a causal target's bucket: see `Backend.newest`."""
    find = _positions if needs_no_op(target_codes, source_codes) else _newest
    return find(target_codes, source_codes, buckets)


def _positions(target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
    inputs = SumInputs(target_codes, source_codes, source_codes, Order.CAUSAL, buckets)
    return tables_apart(choose(sum_call("newest", inputs)).newest(target_codes, source_codes, buckets))


_newest = torch.library.custom_op("annattn::newest", _positions, mutates_args=())


@_newest.register_fake
def _(target_codes, source_codes, buckets):
    return tables_apart(target_codes.new_empty(target_codes.shape))


def newest_call(value: Tensor, positions: Tensor, slope: Slope | None = None) -> Call:
    """The mean over tables of the values at these positions, described."""
    heads = value.shape[1] if value.ndim == 4 else 0
    if (
        positions.ndim != 4
        or value.ndim != 4
        or positions.shape[0] != value.shape[0]
        or (positions.shape[1] % heads if heads else positions.shape[1])
        or positions.dtype != torch.int64
    ):
        raise InputError(
            "positions and values",
            given=f"{positions.dtype} {tuple(positions.shape)} and {tuple(value.shape)}",
            expected="int64 positions (batch, heads, n, tables) in the values of the same batch and heads",
        )
    return Call(
        "newest_mean", value.device, value.dtype, positions.shape[:3], value.shape[:3], positions.shape[3],
        value.shape[-1], order=Order.CAUSAL, slope=slope,
    )  # fmt: skip


def _attend(query: Tensor, key: Tensor, value: Tensor, positions: Tensor, gradient: str, spec: str) -> Tensor:
    return choose(newest_call(value, positions)).newest_mean(value, positions)


_newest_attention = torch.library.custom_op("annattn::newest_attention", _attend, mutates_args=())


@_newest_attention.register_fake
def _(query, key, value, positions, gradient, spec):
    return value.new_empty(*positions.shape[:3], value.shape[-1])


def _gradients(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, grad: Tensor, out: Tensor, gradient: str, spec: str
) -> tuple[Tensor, Tensor, Tensor]:
    grad_value = choose(newest_call(value, positions)).newest_value_gradient(value, positions, grad).contiguous()
    if gradient == "none":
        return query.new_zeros(query.shape), key.new_zeros(key.shape), grad_value
    count = (positions >= 0).sum(-1)
    slope = slope_of(gradient, spec)
    inputs = GradientInputs(query, key, value, grad, out, count, slope, Order.CAUSAL, newest=positions)
    return *query_key_gradient("newest_gradient", inputs, positions.shape[-1]), grad_value


_newest_attention_gradient = torch.library.custom_op("annattn::newest_attention_gradient", _gradients, mutates_args=())


@_newest_attention_gradient.register_fake
def _(query, key, value, positions, grad, out, gradient, spec):
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


_newest_attention_gradient.register_autograd(not_twice)


def _keep(ctx, inputs, output):
    *tensors, ctx.gradient, ctx.spec = inputs
    ctx.save_for_backward(*tensors, output)


def _backward(ctx, grad):
    query, key, value, positions, out = ctx.saved_tensors
    gradients = _gradients if needs_no_op(query, key, value, grad, out) else _newest_attention_gradient
    grads = gradients(query, key, value, positions, grad, out, ctx.gradient, ctx.spec)
    wanted = [g if needed else None for g, needed in zip(grads, ctx.needs_input_grad[:3], strict=True)]
    return *wanted, None, None, None


_newest_attention.register_autograd(_backward, setup_context=_keep)


class _NewestAttention(torch.autograd.Function):
    """The op for those who do not trace: the first call of an op imports all of torch's compiler."""

    forward = staticmethod(_attend)
    setup_context = staticmethod(_keep)
    backward = staticmethod(_backward)  # pyright: ignore[reportAssignmentType]


def newest_attention(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, hasher: Hasher, gradient: str
) -> Tensor:
    """The mean over tables of the values at the positions `newest` found; differentiable like `bucket_attention`."""
    wanted = wanted_gradient(hasher, gradient, query, key)
    attend = _NewestAttention.apply if runs_now() else _newest_attention
    return attend(query, key, value, positions, wanted, hasher.spec)


def nan_where_unknown(out: Tensor, target_codes: Tensor, source_codes: Tensor) -> Tensor:
    """NaN for causal targets of which `nan_targets` says so; where nobody traces and all have buckets, `out` itself."""
    if needs_no_op(target_codes, source_codes) and not any(map(_may_lack_a_bucket, (target_codes, source_codes))):
        return out
    return out.masked_fill(nan_targets(target_codes, source_codes, Order.CAUSAL)[..., None], torch.nan)


def _may_lack_a_bucket(codes: Tensor) -> bool:
    # By NumPy, which wakes no threads; of codes on another device nobody knows without waiting for them.
    return codes.device.type != "cpu" or bool((codes.numpy() == NO_BUCKET).any())


for _op in (_newest, _newest_attention, _newest_attention_gradient):
    fold_into_batch(_op)
