"""Which keys a query may see, as hashed attention takes it: a mask of keys, or documents, beside causality."""

from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.errors import InputError

__all__ = ["KeyMask", "dense_attention", "read_mask"]


@dataclass(frozen=True)
class KeyMask:
    """The keys that take part (batch, keys), or the number of each token's document."""

    key_mask: Tensor | None = None
    documents: Tensor | None = None


def read_mask(mask: Tensor | None, where: str) -> KeyMask:
    """A layer's mask as one of keys: (batch, keys) from our mask function, or (batch, 1, 1, keys) from anyone."""
    if mask is None:
        return KeyMask()
    if isinstance(mask, Tensor) and mask.ndim == 2:
        return KeyMask(key_mask=mask) if mask.dtype == torch.bool else KeyMask(documents=mask)
    if isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[1:3] == (1, 1):
        # Added to scores, a mask leaves a key out where it is far below zero.
        keep = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        if mask.dtype != torch.bool and bool((keep & (mask != 0)).any()):
            raise InputError(f"attention mask of {where}", given="a bias of scores", expected="0 or -inf")
        return KeyMask(key_mask=keep[:, 0, 0])
    raise InputError(
        f"attention mask of {where}",
        given=f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__,
        expected="(batch, keys), or (batch, 1, 1, keys)",
        hint="hashed attention leaves out keys, not pairs; causality comes from the model",
    )


def dense_attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, mask: KeyMask) -> Tensor:
    """Softmax attention, for layers and heads that were not converted; the last query is aligned with the last key."""
    queries, keys = query.shape[2], key.shape[2]
    seen = None
    if mask.key_mask is not None:
        seen = mask.key_mask[:, None, None, :]
    if mask.documents is not None:
        seen = (mask.documents[:, :, None] == mask.documents[:, None, :])[:, None]
    if is_causal and (seen is not None or queries != keys):
        causal = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        # A padded query sees itself, so that its row, which nobody reads, is a number.
        own = causal & ~causal.tril(-1 + keys - queries)
        seen = causal if seen is None else (seen & causal) | own
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, is_causal=is_causal and seen is None, enable_gqa=True
    )
