"""HyperAttention: exact blocks of rows sorted by hash, and uniformly sampled columns for all other pairs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

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
    heads, n, m = *query.shape[1:3], key.shape[2]
    queries, keys, values, live = prepared(query, key, value, key_mask)
    points = sampling_points(columns, check_seed(seed), query.device)

    def approximate(queries: Tensor, keys: Tensor, values: Tensor, live: Tensor) -> Partial:
        sampled = _sampled(points, live).expand(-1, heads, -1)
        weight = torch.log(live.sum(-1, keepdim=True).clamp(min=1).to(queries) / max(columns, 1))
        return blocks_and_columns(queries, keys, values, live, sampled, weight.expand(sampled.shape), hasher, block)

    if not is_causal:
        return approximate(queries, keys, values, live).mean.to(value.dtype)
    unseeing = max(n - m, 0)  # queries before the first key
    rows = queries[:, :, unseeing:], keys, values, live
    found, size = _own_pieces(*rows, exact_below), exact_below
    while size < m:
        found = found.join(_earlier_halves(*rows, size, approximate))
        size *= 2
    return pad(found.mean, (0, 0, unseeing, 0)).to(value.dtype)


_Read = Callable[[Tensor, Tensor, Tensor, Tensor], Partial]
_AT_A_TIME = 2**24  # scores


def _own_pieces(query: Tensor, key: Tensor, value: Tensor, live: Tensor, size: int) -> Partial:
    """Softmax over the keys of a query's own piece of `size` tokens, up to its place."""
    n, m, dim = query.shape[2], *key.shape[2:]
    start, stop = (m - n) // size, -(-m // size)

    def exact(queries: Tensor, keys: Tensor, values: Tensor, there: Tensor) -> Partial:
        scores = queries @ keys.mT / math.sqrt(max(dim, 1))
        seen = torch.ones(scores.shape[2:], dtype=torch.bool, device=key.device).tril(scores.shape[3] - scores.shape[2])
        return partial_softmax(scores.masked_fill(~(seen & there.mT), -torch.inf), values)

    rows = key, value, live[..., None]
    if stop - start == 1:  # also a few queries at the end of many keys
        return exact(query, *(x[:, :, start * size :] for x in rows))
    at_a_time = max(1, _AT_A_TIME // (max(query.shape[1], 1) * size * size))
    pieces = (_cut(x, start, stop, size, m).split(at_a_time) for x in (query, *rows))
    return _uncut([exact(*group) for group in zip(*pieces, strict=True)], start, stop, size, query, m)


def _earlier_halves(query: Tensor, key: Tensor, value: Tensor, live: Tensor, size: int, read: _Read) -> Partial:
    """Of every 2 · size tokens, queries of the second half read keys of the first; the others read nothing."""
    n, m = query.shape[2], key.shape[2]
    start = (m - n) // (2 * size)
    stop = max(start + 1, (m + size - 1) // (2 * size))  # from there on there is no second half
    keys, values, there = (_cut(x, start, stop, 2 * size, m)[:, :, :size] for x in (key, value, live[..., None]))
    found = read(_cut(query, start, stop, 2 * size, m)[:, :, size:], keys, values, there[..., 0])
    both = Partial(pad(found.mean, (0, 0, size, 0)), pad(found.log_total, (size, 0), value=-torch.inf))
    return _uncut([both], start, stop, 2 * size, query, m)


def _cut(x: Tensor, start: int, stop: int, size: int, m: int) -> Tensor:
    """Pieces start, …, stop - 1 of `size` places, beside each other in the batch; the last row is at place m - 1."""
    pieces = pad(x, (0, 0, m - x.shape[2] - start * size, stop * size - m)).unflatten(2, (stop - start, size))
    return pieces.movedim(2, 1).flatten(0, 1)


def _uncut(parts: list[Partial], start: int, stop: int, size: int, query: Tensor, m: int) -> Partial:
    """What each query read, from what its piece read; nothing where there is no piece."""
    batch, _, n, _ = query.shape
    mean, log_total = torch.cat([one.mean for one in parts]), torch.cat([one.log_total for one in parts])
    mean, log_total = (x.unflatten(0, (batch, stop - start)).movedim(1, 2).flatten(2, 3) for x in (mean, log_total))
    ends = start * size - (m - n), m - stop * size
    return Partial(pad(mean, (0, 0, *ends)), pad(log_total, ends, value=-torch.inf))


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
