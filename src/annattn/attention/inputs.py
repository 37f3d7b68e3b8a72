"""What every mechanism checks of its inputs, and how heads are laid out for the kernels."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor

from annattn.checks import require_flag
from annattn.errors import InputError
from annattn.kernels import hash_pair
from annattn.lsh import IGNORED, Hasher
from annattn.memory import require_memory, said

__all__ = [
    "accumulator",
    "attention_call",
    "check_hasher",
    "check_inputs",
    "check_mask",
    "grouped",
    "hash_inputs",
    "nothing",
    "too_large",
    "ungrouped",
]

P = ParamSpec("P")

_LAYOUT = "(batch, heads, n, dim)"
_SMALLER = "take fewer tokens, heads or tables at a time, or arrays in files: annattn.outofcore"
_WORTH_ASKING = 2**24  # rows


def check_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    *,
    is_causal: bool = False,
    hasher: Any = False,
) -> None:
    """Raise InputError unless shapes, dtypes and devices fit together, with each other and with a hasher."""
    if not isinstance(is_causal, bool):
        require_flag("is_causal", is_causal)
    is_compiling = torch.compiler.is_compiling()
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise InputError(name, given=type(tensor).__name__, expected="a torch.Tensor", hint="torch.as_tensor(...)")
        if tensor is query and name != "query":  # looked at already
            continue
        if tensor.is_quantized or (not is_compiling and tensor.is_neg()):
            given, hint = (tensor.dtype, ".dequantize()") if tensor.is_quantized else ("a view as -x", ".resolve_neg()")
            raise InputError(name, given=given, expected="numbers as they are stored", hint=f"call {hint}")
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise InputError(
                name,
                given="a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}",
                expected="a dense tensor",
                hint="pad sequences of unequal length and pass key_mask" if tensor.is_nested else "call .to_dense()",
            )
        if tensor.ndim != 4:
            raise InputError(
                name,
                given=f"{tensor.ndim} axes, shape {tuple(tensor.shape)}",
                expected=f"4 axes {_LAYOUT}",
                hint="add the missing axes with tensor[None] or unflatten the heads",
            )
        if tensor.device != query.device:
            raise InputError(name, given=f"device {tensor.device}", expected=f"the query's device {query.device}")
        if tensor.is_complex():
            raise InputError(name, given=tensor.dtype, expected="a real dtype", hint="torch.view_as_real(...)")
        if tensor.dtype.itemsize < 2 and tensor.is_floating_point():
            raise InputError(name, given=tensor.dtype, expected="a dtype of 16 bits or more", hint="call .half()")
    if not value.is_floating_point():
        raise InputError("value", given=value.dtype, expected="a floating-point dtype", hint="call value.float()")
    batch, heads, queries, dim = query.shape
    key_batch, key_heads, keys, key_dim = key.shape
    value_batch, value_heads, values, _ = value.shape
    if batch != key_batch:
        raise InputError("key batch", given=key_batch, expected=f"the query's {batch}")
    if dim != key_dim:
        raise InputError("key dim", given=key_dim, expected=f"the query's {dim}")
    if key_batch != value_batch or key_heads != value_heads or keys != values:
        raise InputError(
            "value",
            given=f"(batch, heads, n) = {tuple(value.shape[:3])}",
            expected=f"the key's {tuple(key.shape[:3])}",
            hint="every key needs one value; only their last axes may differ",
        )
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise InputError(
            "query heads",
            given=heads,
            expected=f"a multiple of the {key_heads} key heads",
            hint="grouped-query attention shares each key head among equally many query heads",
        )
    if key_mask is not None:
        check_mask(key, key_mask)
    # A graph serves every length, so it asks nothing.
    if not is_compiling and batch * heads * (queries + keys) > _WORTH_ASKING and query.device.type == "cpu":
        _check_memory(query, key, value, hasher)
    if hasher is not False and not (
        isinstance(hasher, Hasher) and hasher.family.dim == dim and key_heads % hasher.heads == 0
    ):
        check_hasher(hasher, key)


def _check_memory(query: Tensor, key: Tensor, value: Tensor, hasher: Any) -> None:
    """Raise NoMemoryError if outputs and codes alone are more than the machine holds; inputs may be expanded views."""
    queries, keys = query.shape[:3].numel(), key.shape[:3].numel()
    codes = 8 * getattr(hasher, "tables", 0) * (queries + keys)
    size = queries * value.shape[-1] * value.dtype.itemsize + codes
    require_memory(f"attention of {tuple(query.shape)} over {tuple(key.shape)}", size, _SMALLER)


def check_mask(key: Tensor, key_mask: Tensor | None) -> None:
    """Raise InputError unless the mask is a bool for every key of every batch row."""
    if key_mask is None:
        return
    if not isinstance(key_mask, Tensor) or key_mask.dtype != torch.bool:
        given = key_mask.dtype if isinstance(key_mask, Tensor) else type(key_mask).__name__
        raise InputError("key_mask", given=given, expected="torch.bool, True = take part", hint="call key_mask.bool()")
    if key_mask.layout is not torch.strided or key_mask.is_nested:
        raise InputError("key_mask", given=f"a tensor of layout {key_mask.layout}", expected="a dense tensor")
    wanted = (key.shape[0], key.shape[2])
    if tuple(key_mask.shape) != wanted:
        raise InputError("key_mask", given=f"shape {tuple(key_mask.shape)}", expected=f"(batch, n_keys) = {wanted}")
    if key_mask.device != key.device:
        raise InputError("key_mask", given=f"device {key_mask.device}", expected=f"the key's device {key.device}")


def check_hasher(hasher: Hasher, rows: Tensor) -> None:
    """Raise InputError unless this hasher can hash these rows (batch, heads, n, dim)."""
    if not isinstance(hasher, Hasher):
        raise InputError(
            "hasher",
            given=type(hasher).__name__,
            expected="a Hasher",
            hint="draw one: aa.lsh.Hyperplane(dim).sample(tables=8, hashes=8, seed=0)",
        )
    if hasher.dim != rows.shape[-1]:
        raise InputError(
            "hasher",
            given=f"one made for dim {hasher.dim}",
            expected=f"one for the query's dim {rows.shape[-1]}",
            hint=f"draw it from a family of dim {rows.shape[-1]}",
        )
    if rows.shape[1] % hasher.heads:
        raise InputError(
            "hasher",
            given=f"one with a draw for each of {hasher.heads} heads",
            expected=f"one whose draws the {rows.shape[1]} heads can share equally",
            hint="draw it with heads=1, or with heads= the number of key heads",
        )


def attention_call(attend: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The function, in the dtypes of its inputs: autocast would round its sums. Too large for memory is a sentence."""

    @wraps(attend)
    def plain(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        device = tensors[0].device.type if tensors else "cpu"
        try:
            if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
                return attend(*args, **kwargs)
            with torch.autocast(device, enabled=False):
                return attend(*args, **kwargs)
        except (MemoryError, RuntimeError) as error:
            better = too_large(error, *tensors)
            if better is error:
                raise
            raise better from error

    return plain


def too_large(error: MemoryError | RuntimeError, *inputs: Tensor) -> MemoryError | RuntimeError:
    """The error, or if memory ran out, a sentence with the shapes that it was for."""
    shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
    return said(error, f"attention over {shapes} does not fit in memory; {_SMALLER}")


def nothing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Zeros as outputs, where there is nothing to read or nobody to read it; inputs still get a gradient, of zero.

    >>> x = torch.ones(1, 2, 0, 4, requires_grad=True)
    >>> nothing(x, x, x).requires_grad
    True
    """
    tied = sum(x.flatten()[:0].sum().to(value.dtype) for x in (query, key, value))
    return value.new_zeros(*query.shape[:3], value.shape[-1]) + tied


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums are kept in: half precision adds up in float32."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def grouped(x: Tensor, key_heads: int) -> Tensor:
    """(batch, heads, n, …) to (batch · key heads, share, n, …), as the kernels want it."""
    batch, heads, *rest = x.shape
    share = heads // key_heads if key_heads else 0
    return x.reshape(batch * key_heads, share, *rest)


def ungrouped(x: Tensor, query: Tensor) -> Tensor:
    """The inverse of `grouped` for what was computed from this query."""
    return x.reshape(*query.shape[:2], *x.shape[2:])


def hash_inputs(hasher: Hasher, query: Tensor, key: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Codes of queries and keys, with the masked keys ignored."""
    query_codes, key_codes = hash_pair(hasher, query, key)
    if key_mask is not None:
        key_codes = key_codes.masked_fill(~key_mask[:, None, :, None], IGNORED)
    return query_codes, key_codes
