"""Softmax over a band of keys in one kernel, where a backend has one: outputs, log-sums and all gradients."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from annattn.errors import InputError
from annattn.kernels.dispatch import asked_for, choose, find
from annattn.kernels.interface import BandInputs, Call, Order

__all__ = ["band"]


def band(inputs: BandInputs) -> tuple[Tensor, Tensor] | None:
    """`Backend.band`, differentiable once; None where no backend has a kernel, or where somebody traces the call."""
    query, key, value = inputs.query, inputs.key, inputs.value
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return None
    # CPU tensors have none but Triton's interpreter, which nobody uses who does not ask for it.
    named = asked_for("triton") or asked_for("triton_atomic")
    if query.device.type == "cpu" and not named:
        return None
    if not query.dtype == key.dtype == value.dtype:
        wide = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
        inputs = replace(inputs, query=query.to(wide), key=key.to(wide), value=value.to(wide))
    call = Call(
        "band", query.device, inputs.value.dtype, query.shape[:3], key.shape[:3], 0, value.shape[-1],
        order=Order.CAUSAL if inputs.is_causal else Order.ALL,
    )  # fmt: skip
    # A backend that was asked for by name, and has the kernel for other windows, runs this one or raises.
    backend = choose(call) if named else find(call)
    if backend is None:
        return None
    return _Band.apply(inputs.query, inputs.key, inputs.value, inputs, backend)


class _Band(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, inputs: BandInputs, backend: Any) -> Any:
        ctx.backend, ctx.inputs = backend, replace(inputs, query=None, key=None, value=None)
        out, level = backend.band(inputs)
        ctx.save_for_backward(query, key, value, out, level)
        ctx.set_materialize_grads(False)
        return out, level

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        query, key, value, out, level = ctx.saved_tensors
        grad, grad_level = grads
        if grad is None and grad_level is None:
            return (None,) * 5
        inputs = replace(ctx.inputs, query=query, key=key, value=value)
        grad = torch.zeros_like(out) if grad is None else grad
        return *_BandGradient.apply(query, key, value, out, level, grad, grad_level, inputs, ctx.backend), None, None


class _BandGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        out, level, grad, grad_level, inputs, backend = given[3:]
        return backend.band_gradient(inputs, out, level, grad, grad_level)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise InputError(
            "gradient",
            given="a second derivative of a window's softmax, by a kernel",
            expected="one differentiation",
            hint='run the call with use_backend("torch")',
        )
