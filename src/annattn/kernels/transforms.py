"""What ops say to torch's transforms: vmap works, a derivative that is not there is refused."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import forward_ad

from annattn.errors import InputError
from annattn.kernels.interface import GRADIENTS
from annattn.lsh import FAMILIES, Hasher

__all__ = [
    "fold_into_batch",
    "in_own_dtypes",
    "not_twice",
    "refuse_transforms",
    "transforms_active",
    "wanted_gradient",
]

transforms_active = torch._C._are_functorch_transforms_active


def refuse_transforms() -> None:
    """Say that torch.func and forward-mode differentiation cannot see through an op; vmap can.

    They would take its output for a constant, or fail somewhere inside torch.
    """
    active = _functorch.get_interpreter_stack() or []
    if forward_ad._current_level < 0 and all(one.key() == _functorch.TransformType.Vmap for one in active):
        return
    raise InputError(
        "attention",
        given="a call inside torch.func (grad, vjp, jvp, jacrev) or forward-mode AD",
        expected="a call outside of them, or inside torch.vmap",
        hint="use torch.autograd.grad or backward() for gradients",
    )


def in_own_dtypes(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass in the dtypes of its inputs: called inside autocast, its products would be rounded."""

    @wraps(backward)
    def plain(ctx: Any, *grads: Tensor | None) -> Any:
        device = next((grad.device.type for grad in grads if grad is not None), "cpu")
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return backward(ctx, *grads)
        with torch.autocast(device, enabled=False):
            return backward(ctx, *grads)

    return plain


def not_twice(ctx, *_):
    """The derivative of a gradient that has none."""
    raise InputError(
        "gradient",
        given="a derivative of the gradient that queries and keys get",
        expected="one differentiation",
        hint='where there is gradient="none", values can be differentiated by as often as you like',
    )


def wanted_gradient(hasher: Hasher, gradient: str, query: Tensor, key: Tensor) -> str:
    """The gradient queries and keys get: "none" if they want none; raises if the family cannot give what is asked."""
    if gradient not in GRADIENTS:
        raise InputError("gradient", given=repr(gradient), expected=f"one of {GRADIENTS}")
    asked = query.requires_grad or key.requires_grad
    # Inside torch.vmap nobody knows.
    if gradient == "none" or not torch.is_grad_enabled() or not (asked or transforms_active()):
        return "none"
    if type(hasher.family) not in FAMILIES.values() or not hasher.family.linear_slope:
        if not asked:
            return "none"
        raise InputError(
            "gradient",
            given=f"{gradient!r} with {hasher.family}",
            expected="a listed family whose collision probability is a function of the angle",
            hint='pass gradient="none", or detach queries and keys, to train the values alone',
        )
    return gradient


def fold_into_batch(op):
    """Teach an op torch.vmap: one more axis of many is one larger batch, since every tensor begins with its batch."""

    def rule(info, in_dims, *args):
        folded = []
        for dim, x in zip(in_dims, args, strict=True):
            if isinstance(x, Tensor):
                x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
                x = x.flatten(0, 1)
            elif isinstance(dim, list) and any(one is not None for one in dim):
                raise InputError("hasher", given="one per entry of vmap", expected="one for all", hint="loop over them")
            folded.append(x)
        found = op(*folded)
        many = found if isinstance(found, tuple) else (found,)
        many = tuple(x.unflatten(0, (info.batch_size, len(x) // info.batch_size)) for x in many)
        return (many, (0,) * len(many)) if isinstance(found, tuple) else (many[0], 0)

    op.register_vmap(rule)
