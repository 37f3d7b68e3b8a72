"""What every mechanism checks of its inputs, and how heads are laid out for the kernels."""

from typing import Any

import torch
from torch import Tensor

from annattn.checks import require_flag
from annattn.errors import InputError
from annattn.kernels import hash_pair
from annattn.lsh import IGNORED, Hasher

__all__ = [
    "accumulator",
    "check_hasher",
    "check_inputs",
    "check_mask",
    "grouped",
    "hash_inputs",
    "ungrouped",
]

_LAYOUT = "(batch, heads, n, dim)"


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
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise InputError(name, given=type(tensor).__name__, expected="a torch.Tensor", hint="torch.as_tensor(...)")
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
    if not value.is_floating_point():
        raise InputError("value", given=value.dtype, expected="a floating-point dtype", hint="call value.float()")
    if query.shape[0] != key.shape[0]:
        raise InputError("key batch", given=key.shape[0], expected=f"the query's {query.shape[0]}")
    if query.shape[3] != key.shape[3]:
        raise InputError("key dim", given=key.shape[3], expected=f"the query's {query.shape[3]}")
    if key.shape[:3] != value.shape[:3]:
        raise InputError(
            "value",
            given=f"(batch, heads, n) = {tuple(value.shape[:3])}",
            expected=f"the key's {tuple(key.shape[:3])}",
            hint="every key needs one value; only their last axes may differ",
        )
    if query.shape[1] != key.shape[1] and (key.shape[1] == 0 or query.shape[1] % key.shape[1]):
        raise InputError(
            "query heads",
            given=query.shape[1],
            expected=f"a multiple of the {key.shape[1]} key heads",
            hint="grouped-query attention shares each key head among equally many query heads",
        )
    if key_mask is not None:
        check_mask(key, key_mask)
    if hasher is not False and not (
        isinstance(hasher, Hasher) and hasher.family.dim == query.shape[3] and key.shape[1] % hasher.heads == 0
    ):
        check_hasher(hasher, key)


def check_mask(key: Tensor, key_mask: Tensor | None) -> None:
    """Raise InputError unless the mask is a bool for every key of every batch row."""
    if key_mask is None:
        return
    if not isinstance(key_mask, Tensor) or key_mask.dtype != torch.bool:
        given = key_mask.dtype if isinstance(key_mask, Tensor) else type(key_mask).__name__
        raise InputError("key_mask", given=given, expected="torch.bool, True = take part", hint="call key_mask.bool()")
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
