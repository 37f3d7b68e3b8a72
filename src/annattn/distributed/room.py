"""Powers of two, the same on every rank, by which sums over all ranks stay within the range of their dtype."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from annattn.distributed.peers import Peers

__all__ = ["scales"]


def scales(peers: Peers, terms: int, tensors: Sequence[Tensor], doing: str) -> list[float]:
    """A factor per tensor, so that so many products of one number of each have a sum within the range.

    All are 1 unless the largest numbers of all ranks could leave it: a power of two rounds nothing, but what is tiny.
    """
    exponents = torch.tensor([_exponent(x) for x in tensors], device=peers.device)
    largest = peers.gather(exponents, doing).amax(0)
    needed = terms.bit_length() + 1
    most = math.frexp(torch.finfo(tensors[0].dtype).max)[1]
    # The sums of the single tensors must have room as well as those of their product.
    fits = int(torch.stack([*largest, largest.clamp(min=0).sum()]).amax()) + needed < most
    return [1.0 if fits else 2.0**-needed] * len(tensors)


def _exponent(x: Tensor) -> int:
    """Of a power of two above the largest finite number in it."""
    if not x.numel():
        return 0
    low, high = x.aminmax()
    largest = max(-low.item(), high.item())
    if not math.isfinite(largest):  # NaN and infinity are not the largest finite number
        largest = x.masked_fill(~x.isfinite(), 0).abs().max().item()
    return math.frexp(largest)[1]
