"""Softmax over parts of the keys, and how parts are joined: what blocks, buckets and samples have in common."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

__all__ = ["Partial", "partial_softmax", "softmax_of_runs", "taken"]


@dataclass(frozen=True)
class Partial:
    """Σ_j exp(s_ij) v_j / Σ_j exp(s_ij) over some keys j, and log Σ_j exp(s_ij), which is −∞ where there are none.

    >>> near = partial_softmax(torch.zeros(1, 1), torch.tensor([[3.0]]))
    >>> far = partial_softmax(torch.zeros(1, 2), torch.tensor([[6.0], [9.0]]))
    >>> near.join(far).mean
    tensor([[6.]])
    """

    mean: Tensor
    log_total: Tensor

    def join(self, other: "Partial") -> "Partial":
        """Softmax over the keys of both; a key in both counts twice."""
        log_totals = torch.stack([self.log_total, other.log_total])
        largest = _finite(log_totals.detach().amax(0))
        mine, theirs = torch.exp(log_totals - largest)
        total = mine + theirs
        safe = torch.where(total == 0, 1, total)
        mean = (mine[..., None] * self.mean + theirs[..., None] * other.mean) / safe[..., None]
        return Partial(mean, torch.where(total == 0, -torch.inf, largest + safe.log()))

    @staticmethod
    def of_all(parts: "list[Partial]") -> "Partial":
        """All of them joined."""
        return reduce(Partial.join, parts)


def partial_softmax(scores: Tensor, value: Tensor) -> Partial:
    """The softmax of scores (..., queries, keys), −∞ where a key is not seen, over values (..., keys, width).

    >>> partial_softmax(torch.full((1, 1), -torch.inf), torch.ones(1, 1))
    Partial(mean=tensor([[0.]]), log_total=tensor([-inf]))
    """
    if not scores.shape[-1]:
        return Partial(scores @ value, scores.new_full(scores.shape[:-1], -torch.inf))
    largest = _finite(scores.detach().amax(-1, keepdim=True))
    weights = torch.exp(scores - largest)
    total = weights.sum(-1, keepdim=True)
    safe = torch.where(total == 0, 1, total)
    log_total = torch.where(total == 0, -torch.inf, largest + safe.log())
    return Partial(weights @ value / safe, log_total.squeeze(-1))


def _finite(x: Tensor) -> Tensor:
    """Nothing is subtracted where there is no key."""
    return torch.where(x == -torch.inf, 0, x)


_ROWS = 2**24  # numbers gathered at a time


def softmax_of_runs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    first: Tensor,
    length: int,
    seen: Callable[[slice, Tensor], Tensor],
) -> Partial:
    """Softmax of ⟨q, k⟩/√d in which query i reads the run of `length` consecutive keys from number first_i on.

    The work is length · n. Numbers outside of the keys are never seen.

    Args:
        query: (batch, heads, n, dim).
        key: (batch, heads, m, dim), in the order in which they are read.
        value: (batch, heads, m, width), likewise.
        first: (batch, heads, n), possibly negative.
        length: keys per run.
        seen: given a slice of the queries and the numbers of their keys (batch, heads, rows, length), says which count.
    """
    batch, heads, n, dim = query.shape
    m = key.shape[2]
    step = max(1, _ROWS // max(1, batch * heads * length * max(dim, value.shape[-1], 1)))
    parts = []
    for start in range(0, max(n, 1), step):
        rows = slice(start, min(start + step, n))
        number = first[:, :, rows, None] + torch.arange(length, device=query.device)
        inside = (number >= 0) & (number < m)
        number = number.clamp(0, max(m - 1, 0)) if m else number[..., :0]
        inside = inside[..., : number.shape[-1]] & seen(rows, number)
        keys, values = (taken(x, number.flatten(2)).unflatten(2, number.shape[2:]) for x in (key, value))
        scores = (keys @ query[:, :, rows, :, None]).squeeze(-1) / math.sqrt(max(dim, 1))
        part = partial_softmax(scores.masked_fill(~inside, -torch.inf)[..., None, :], values)
        parts.append(Partial(part.mean.squeeze(-2), part.log_total.squeeze(-1)))
    return Partial(torch.cat([one.mean for one in parts], 2), torch.cat([one.log_total for one in parts], 2))


def taken(x: Tensor, rows: Tensor) -> Tensor:
    """Rows (batch, heads, k) of x (batch, heads, n, width).

    >>> taken(torch.arange(3.0).reshape(1, 1, 3, 1), torch.tensor([[[2, 0]]])).flatten()
    tensor([2., 0.])
    """
    return x.gather(2, rows[..., None].expand(*rows.shape, x.shape[-1]))
