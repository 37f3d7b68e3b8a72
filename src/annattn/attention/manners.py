"""Arguments of torch's scaled_dot_product_attention: what they mean here, and what to use instead."""

from typing import Any

import torch
from torch import Tensor

from annattn.errors import InputError

__all__ = ["TORCH_ONLY", "as_key_mask", "torch_arguments"]

TORCH_ONLY = {
    "dropout_p": "weights are counts of shared buckets and are not dropped; apply dropout to the output",
    "scale": "ANNA sees the angle between a query and a key, which no factor changes; `hashes` sets how sharp it is",
    "enable_gqa": "key heads are always shared where there are fewer of them; leave it out",
}
"""Why torch's arguments are not taken, besides attn_mask."""


def torch_arguments(given: dict[str, Any], key_mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The key mask meant by arguments of torch's function; anything else among them is an error."""
    for name, value in given.items():
        if name in TORCH_ONLY:
            harmless = {"dropout_p": 0, "scale": None}.get(name, value)
            if value != harmless or name == "enable_gqa":
                raise InputError(name, given=repr(value), expected="not to be passed", hint=TORCH_ONLY[name])
        elif name != "attn_mask":
            raise TypeError(f"unexpected keyword argument {name!r}")
    mask = given.get("attn_mask")
    if mask is None:
        return key_mask
    if key_mask is not None:
        raise InputError("attn_mask", given="one beside key_mask", expected="one of them")
    return as_key_mask(mask, query, key, name="attn_mask")


def as_key_mask(mask: Tensor | None, query: Tensor, key: Tensor, *, name: str = "key_mask") -> Tensor | None:
    """A key mask (batch, n_keys); also from a mask of pairs (batch or 1, heads or 1, queries or 1, keys).

    The latter may be bool, True = take part, or floating-point, 0 or -inf, as long as it leaves the same keys to all
    heads and queries: padding, that is.

    >>> x = torch.zeros(1, 1, 3, 2)
    >>> as_key_mask(torch.tensor([0.0, 0.0, -torch.inf]).expand(1, 1, 3, 3), x, x)
    tensor([[ True,  True, False]])
    """
    if mask is None or (isinstance(mask, Tensor) and mask.ndim == 2 and name == "key_mask"):
        return mask
    if isinstance(mask, Tensor) and (mask.is_nested or mask.layout is not torch.strided):
        raise InputError(name, given=f"a tensor of layout {mask.layout}", expected="a dense tensor")
    hint = "pass is_causal=True for the order of time, key_mask for padding, and documents for packed sequences"
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        given = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(name, given=given, expected="(batch or 1, heads or 1, queries or 1, keys)", hint=hint)
    wanted = (key.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if any(size not in (1, full) for size, full in zip(mask.shape, wanted, strict=True)) or mask.shape[3] != wanted[3]:
        raise InputError(
            name, given=f"shape {tuple(mask.shape)}", expected=f"{wanted}, or 1 in place of the first three"
        )
    allowed = mask
    if mask.dtype != torch.bool:
        lowest = mask <= torch.finfo(mask.dtype).min if mask.is_floating_point() else mask < 0
        if not mask.is_floating_point() or not bool((lowest | (mask == 0)).all()):
            raise InputError(
                name,
                given=f"weights of {mask.dtype}",
                expected="bool, or 0 and -inf",
                hint="there are no scores to add to",
            )
        allowed = ~lowest
    same = allowed[:, :1, :1] if allowed.numel() else allowed.new_ones(*mask.shape[:1], 1, 1, mask.shape[3])
    if not bool((allowed == same).all()):
        raise InputError(name, given="another row for another query or head", expected="a padding mask", hint=hint)
    return same[:, 0, 0].expand(key.shape[0], -1)
