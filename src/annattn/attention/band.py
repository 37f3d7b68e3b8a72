"""Exact softmax attention over the keys near each query, in blocks: linear in n, for time and memory alike."""

import math

import torch
from torch import Tensor

from annattn.attention.band_blocks import Band, Blocks
from annattn.attention.band_fused import FusedBand, fused_runs
from annattn.attention.inputs import accumulator, nothing, ungrouped
from annattn.attention.packed import Documents
from annattn.attention.partial_softmax import Partial
from annattn.kernels import BandInputs, band

__all__ = ["band_softmax"]

_LEAST_BLOCK, _LARGEST_BLOCK = 32, 256  # queries that look at one run of keys
_SCORES = 2**24  # computed at a time


def band_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int,
    scale: float | None = None,
    is_causal: bool = True,
    key_mask: Tensor | None = None,
    documents: Documents | None = None,
) -> Partial:
    """softmax(scale · q_i·k_j) v_j over the keys less than `window` places before i, or on both sides of it.

    The last query is aligned with the last key. `scale` is 1/√dim unless given. Time and memory grow as n · window.
    On CPUs torch's fused attention computes the blocks, and on GPUs a kernel of Triton, where there is one; under a
    compiler or a transform of torch, and on other devices, they are matrix products.

    >>> x = torch.randn(1, 1, 5, 4)
    >>> near = band_softmax(x, x, x, window=5)
    >>> expected = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> torch.testing.assert_close(near.mean, expected)
    """
    (batch, heads, n, dim), m = query.shape, value.shape[2]
    dtype = accumulator(value.dtype)
    if n == 0 or m == 0 or window == 0 or query.numel() == 0:
        empty = query.new_full((batch, heads, n), -torch.inf, dtype=dtype)
        return Partial(nothing(query, key, value).to(dtype), empty)
    window = min(window, max(n, m))  # no two are further apart, and blocks are as long as the window
    scale = 1 / math.sqrt(dim) if scale is None else scale
    numbers = (None, None) if documents is None else (documents.query, documents.key)
    found = band(BandInputs(query, key, value, window, scale, is_causal, key_mask, *numbers))
    if found is not None:
        return Partial(*found)
    whole = Band(n, m, window, 0 if is_causal else window - 1)
    # Half precision would round the scores; what autocast thinks of matrix products does not matter here.
    with torch.autocast(query.device.type, enabled=False):
        query, key, value = (x.to(dtype) for x in (query, key, value))
        if key_mask is not None:
            hidden = ~key_mask[:, None, :, None]  # zero, since even NaN must not matter
            key, value = key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
        if fused_runs(query, key, value):
            return Partial(*FusedBand.apply(query, key, value, whole, scale, key_mask, documents))
        blocks = whole.cut(max(_LEAST_BLOCK, min(window, _LARGEST_BLOCK)))
        return _by_products(query * scale, key, value, blocks, blocks.seen(key_mask, documents, query.device))


def _by_products(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, seen: Tensor) -> Partial:
    batch, heads, n, _ = query.shape
    key_heads = key.shape[1]
    # (batch · key heads, blocks, share of query heads, …)
    queries = blocks.of_queries(query.flatten(0, 1)).unflatten(0, (batch * key_heads, -1)).transpose(1, 2)
    keys, values = (blocks.of_keys(x.flatten(0, 1))[:, :, None] for x in (key, value))
    seen = seen.expand(batch, -1, -1, -1).repeat_interleave(key_heads, 0)[:, :, None]
    step = max(1, _SCORES // (batch * heads * blocks.block * blocks.span))
    parts = [slice(start, start + step) for start in range(0, blocks.count, step)]
    found = [_softmax(queries[:, part], keys[:, part], values[:, part], seen[:, part]) for part in parts]
    out, level = (torch.cat(each, dim=1).transpose(1, 2).flatten(2, 3)[:, :, :n] for each in zip(*found, strict=True))
    return Partial(ungrouped(out, query), ungrouped(level, query))


def _softmax(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    # The lowest number, not -inf, whose derivative would be NaN in a row that sees nothing.
    scores = (query @ key.mT).masked_fill(~seen, torch.finfo(query.dtype).min)
    level = scores.logsumexp(-1)
    weights = (scores - level[..., None]).exp() * seen
    return weights @ value, level.masked_fill(~seen.any(-1), -torch.inf)
