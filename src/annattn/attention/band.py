"""Exact softmax attention over the keys near each query, in blocks: linear in n, for time and memory alike."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from annattn.attention.inputs import accumulator, grouped, ungrouped
from annattn.attention.packed import Documents

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
) -> tuple[Tensor, Tensor]:
    """softmax(scale · q_i·k_j) v_j over the keys less than `window` places before i, or on both sides of it.

    Returns the outputs and log Σ_j exp(scale · q_i·k_j), -inf where a query sees no key; its output is then zero. The
    last query is aligned with the last key. `scale` is 1/√dim unless given. Time and memory grow as n · window.

    >>> x = torch.randn(1, 1, 5, 4)
    >>> out, _ = band_softmax(x, x, x, window=5)
    >>> expected = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> torch.testing.assert_close(out, expected)
    """
    (batch, heads, n, dim), (_, key_heads, m, width) = query.shape, value.shape
    dtype = accumulator(value.dtype)
    if n == 0 or m == 0 or window == 0 or query.numel() == 0:
        empty = query.new_full((batch, heads, n), -torch.inf, dtype=dtype)
        return query.new_zeros(batch, heads, n, width, dtype=dtype), empty
    # Half precision would round the scores; what autocast thinks of matrix products does not matter here.
    with torch.autocast(query.device.type, enabled=False):
        query, key, value = (x.to(dtype) for x in (query, key, value))
        query = query * (1 / math.sqrt(dim) if scale is None else scale)
        block = min(n, max(_LEAST_BLOCK, min(window, _LARGEST_BLOCK)))
        blocks, ahead = -(-n // block), 0 if is_causal else window - 1
        span = block + window - 1 + ahead
        # Keys from the first that query 0 sees to the last that the last one does, with room where there are none.
        first = m - n - (window - 1)
        edges = (-first, first + (blocks - 1) * block + span - m)
        real = torch.ones(batch, m, dtype=torch.bool, device=query.device) if key_mask is None else key_mask
        if key_mask is not None:
            hidden = ~key_mask[:, None, :, None]  # zero, since even NaN must not matter
            key, value = key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
        keys, values = (pad(x, (0, 0, *edges)).unfold(2, span, block) for x in (key, value))
        seen = pad(real, edges).unfold(1, span, block)[:, :, None, :]
        place = torch.arange(span, device=query.device) - torch.arange(block, device=query.device)[:, None]
        seen = seen & (place >= 0) & (place < window + ahead)
        if documents is not None:
            of_key = pad(documents.key, edges, value=-1).unfold(1, span, block)
            of_query = pad(documents.query, (0, blocks * block - n), value=-2).unflatten(1, (blocks, block))
            seen = seen & (of_query[..., None] == of_key[:, :, None, :])
        # (batch · key heads, blocks, share of query heads, …)
        queries = grouped(pad(query, (0, 0, 0, blocks * block - n)), key_heads).unflatten(2, (blocks, block))
        queries = queries.transpose(1, 2)
        keys, values = keys.flatten(0, 1)[:, :, None], values.flatten(0, 1)[:, :, None].mT
        seen = seen.repeat_interleave(key_heads, 0)[:, :, None]
        step = max(1, _SCORES // (batch * heads * block * span))
        parts = [slice(start, start + step) for start in range(0, blocks, step)]
        found = [_softmax(queries[:, part], keys[:, part], values[:, part], seen[:, part]) for part in parts]
        out, level = (
            torch.cat(each, dim=1).transpose(1, 2).flatten(2, 3)[:, :, :n] for each in zip(*found, strict=True)
        )
        shape = torch.empty(batch, heads, 0, device="meta")
        return ungrouped(out, shape), ungrouped(level, shape)


def _softmax(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    # The lowest number, not -inf, whose derivative would be NaN in a row that sees nothing.
    scores = (query @ key).masked_fill(~seen, torch.finfo(query.dtype).min)
    level = scores.logsumexp(-1)
    weights = (scores - level[..., None]).exp() * seen
    return weights @ value, level.masked_fill(~seen.any(-1), -torch.inf)
