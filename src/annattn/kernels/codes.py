"""How heads share codes, and which targets cannot have an answer."""

import torch
from torch import Tensor

from annattn.lsh import NO_BUCKET

__all__ = ["heads_and_shares", "nan_targets"]


def heads_and_shares(target_codes: Tensor, source_codes: Tensor) -> tuple[int, int, int]:
    """How many heads the two sides have in common, and how many of each side's share one of them."""
    targets, sources = target_codes.shape[1], source_codes.shape[1]
    heads = min(targets, sources)
    return (heads, targets // heads, sources // heads) if heads else (0, 0, 0)


def nan_targets(target_codes: Tensor, source_codes: Tensor, order: int) -> Tensor:
    """Which targets (batch, heads, n) must be NaN: those without a bucket, and those that may see a source without one.

    Where that source belongs is unknown, and any number would be a guess.
    """
    n, m = target_codes.shape[2], source_codes.shape[2]
    _, share, _ = heads_and_shares(target_codes, source_codes)
    lost = (source_codes == NO_BUCKET).any(-1)
    if order == 0 or m == 0:
        met = lost.any(-1, keepdim=True).expand(*lost.shape[:2], n)
    else:
        horizon = torch.arange(n, device=lost.device) + (m - n)
        met = lost.int().cummax(-1).values.bool()[..., horizon.clamp(min=0)] & (horizon >= 0)
    return met.repeat_interleave(share, 1) | (target_codes == NO_BUCKET).any(-1)
