"""HyperAttention: exact blocks of rows sorted by hash, and uniformly sampled columns for all other pairs."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from annattn.attention import reference
from annattn.attention.inputs import attention_call, check_inputs
from annattn.attention.mechanism import Attend, Mechanism, SeededConfig
from annattn.attention.partial_softmax import Partial, partial_softmax
from annattn.attention.sampled_columns import blocks_and_columns, literal_blocks, prepared, sampling_points
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.checks import require_count
from annattn.lsh import Hasher, Hyperplane
from annattn.seeds import check_seed

__all__ = ["MECHANISM", "HyperConfig", "hyper_attention", "hyper_weights"]


@attention_call
def hyper_attention(
    query: Queries, key: Keys, value: Values, hasher: Hasher, *,
    block: int = 256, columns: int = 256, exact_below: int = 4096, seed: int = 0,
    is_causal: bool = False, key_mask: KeyMask | None = None,
) -> Outputs:  # fmt: skip
    """Softmax of ⟨q, k⟩/√d over a block of keys with nearby hashes, and s = `columns` keys that stand for the rest.

    Each sampled key outside the block stands for n/s keys. With no columns, a query reads its block alone. A causal
    call cuts the sequence at `exact_below` · 2^k until pieces have at most `exact_below` tokens, which are computed
    exactly; the queries of a later piece read the keys of the earlier one as above. The seed decides which keys are
    sampled, the same for all heads.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=1, hashes=7)
    >>> q, k, v = torch.randn(3, 1, 1, 100, 4)
    >>> exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    >>> torch.testing.assert_close(aa.attention.hyper_attention(q, k, v, hasher), exact)
    """
    check_inputs(query, key, value, key_mask, is_causal=is_causal, hasher=hasher)
    block, columns = require_count("block", block), require_count("columns", columns, least=0)
    exact_below = require_count("exact_below", exact_below)
    batch, heads, n, dim = query.shape
    m, offset = key.shape[2], n - key.shape[2]
    queries, keys, values, live = prepared(query, key, value, key_mask)
    points = sampling_points(columns, check_seed(seed), query.device)

    def approximate(first: int, last: int, start: int, stop: int) -> Partial:
        """Queries [first, last) over keys [start, stop)."""
        part = live[..., start:stop]
        sampled = _sampled(points, part).expand(batch, heads, -1)
        weight = torch.log(part.sum(-1, keepdim=True).clamp(min=1).to(queries) / max(columns, 1)).expand(sampled.shape)
        rows = queries[:, :, first:last], keys[:, :, start:stop], values[:, :, start:stop]
        return blocks_and_columns(*rows, part, sampled, weight, hasher, block)

    def causal(start: int, stop: int) -> Partial:
        """Queries at the places [start, stop) of the keys, over the keys there."""
        first, last = max(start + offset, 0), max(stop + offset, 0)
        if stop - start <= exact_below:
            place = torch.arange(first - offset, last - offset, device=query.device)
            seen = (torch.arange(start, stop, device=query.device) <= place[:, None]) & live[..., None, start:stop]
            scores = queries[:, :, first:last] @ keys[:, :, start:stop].mT / math.sqrt(max(dim, 1))
            return partial_softmax(scores.masked_fill(~seen, -torch.inf), values[:, :, start:stop])
        middle = start + _first_piece(stop - start, exact_below)
        early, late = causal(start, middle), causal(middle, stop)
        late = late.join(approximate(max(middle + offset, 0), last, start, middle))
        return Partial(torch.cat([early.mean, late.mean], 2), torch.cat([early.log_total, late.log_total], 2))

    if not is_causal:
        return approximate(0, n, 0, m).mean.to(value.dtype)
    found = causal(0, m).mean
    unseeing = found.new_zeros(batch, heads, n - found.shape[2], value.shape[-1])  # queries before the first key
    return torch.cat([unseeing, found], 2).to(value.dtype)


def _first_piece(length: int, piece: int) -> int:
    """The largest piece · 2^k below the length: cuts do not move as the sequence grows."""
    while 2 * piece < length:
        piece *= 2
    return piece


def _sampled(points: Tensor, live: Tensor) -> Tensor:
    """The keys at these shares of the way through those that take part, (batch, 1, points)."""
    if not live.shape[-1]:
        return live.new_zeros(*live.shape[:2], 0, dtype=torch.int64)
    wanted = (points * live.sum(-1, keepdim=True)).long()
    numbers = live.long().cumsum(-1) - 1
    return torch.searchsorted(numbers, wanted).clamp(max=live.shape[-1] - 1)


def hyper_weights(
    query: Tensor, key: Tensor, seen: Tensor, *,
    hasher: Hasher,
    is_causal: bool = False, block: int, columns: int, exact_below: int = 4096, seed: int = 0,
) -> Tensor:  # fmt: skip
    """exp(s_ij) in the block, and n/s · exp(s_ij) for each time key j was sampled outside of it; normalised.

    >>> import annattn as aa
    >>> x = torch.ones(2, 4)
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=1, hashes=7)
    >>> hyper_weights(x, x, torch.ones(2, 2), hasher=hasher, block=2, columns=1)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    (n, m), seen = seen.shape, seen.bool()
    takes_part = seen.any(0).tolist()  # the last query sees all that anybody sees
    points = sampling_points(columns, seed).tolist()
    factor = torch.zeros(n, m, dtype=torch.float64)

    def approximate(rows: list[int], start: int, stop: int) -> None:
        live = [j for j in range(start, stop) if takes_part[j]]
        if not rows or not live:
            return
        same = literal_blocks(query[rows], key[start:stop], takes_part[start:stop], hasher, block)
        sampled = [live[int(point * len(live))] for point in points]
        for number, i in enumerate(rows):
            for j in live:
                inside = same[number, j - start]
                factor[i, j] = 1.0 if inside else len(live) / max(columns, 1) * sampled.count(j)

    def causal(start: int, stop: int) -> None:
        rows = [i for i in range(n) if start <= i + m - n < stop]
        if stop - start <= exact_below:
            for i in rows:
                factor[i, start:stop] = seen[i, start:stop].double()
            return
        middle = start + max(exact_below << k for k in range(60) if exact_below << k < stop - start)
        causal(start, middle)
        causal(middle, stop)
        approximate([i for i in rows if i + m - n >= middle], start, middle)

    if is_causal:
        causal(0, m)
    else:
        approximate(list(range(n)), 0, m)
    scores = torch.exp(query.double() @ key.double().T / math.sqrt(max(query.shape[1], 1)))
    return reference.normalised(torch.where(factor > 0, scores * factor, 0.0))


@dataclass(frozen=True)
class HyperConfig(SeededConfig):
    """`hyper_attention` with blocks sorted by z = `hashes` signs.

    >>> HyperConfig(block=32, columns=32).hashes
    7
    """

    may_be_zero: ClassVar[tuple[str, ...]] = ("columns",)
    drawn: ClassVar[tuple[str, ...]] = ("hashes", "columns")
    hashes: int = 7
    block: int = 256
    columns: int = 256
    exact_below: int = 4096
    seed: int = 0

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        drawn = self.layer_seed(layer, seed)
        hasher = Hyperplane(head_dim).sample(tables=1, hashes=self.hashes, seed=drawn)
        sizes = {"block": self.block, "columns": self.columns, "exact_below": self.exact_below, "seed": drawn}
        return lambda q, k, v, is_causal, mask: hyper_attention(
            q, k, v, hasher, is_causal=is_causal, key_mask=mask, **sizes
        )


MECHANISM = Mechanism(
    hyper_attention,
    hyper_weights,
    HyperConfig,
    lambda dim: {
        "hasher": Hyperplane(dim).sample(tables=1, hashes=3), "block": 2, "columns": 3, "exact_below": 3,
    },
    weights_need=("is_causal",),
)  # fmt: skip
