"""Softmax over parts of the keys, and how parts are joined: what blocks, buckets and samples have in common."""

import math
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


_AT_A_TIME = 2**24  # numbers gathered, or scores made, at a time
_WORTH_GATHERING = 16  # from so many times as many keys as a run has; below that, matrix products of all are faster


def softmax_of_runs(
    query: Tensor, key: Tensor, value: Tensor, low: Tensor, high: Tensor, length: int, without: Tensor | None = None
) -> Partial:
    """Softmax of ⟨q, k⟩/√d in which query i reads the run of keys from number low_i up to high_i, which it leaves out.

    The work is length · n. Numbers outside of the keys are never read.

    Args:
        query: (batch, heads, n, dim).
        key: (batch, heads, m, dim), in the order in which they are read.
        value: (batch, heads, m, width), likewise.
        low: (batch, heads, n), possibly negative.
        high: (batch, heads, n), at most low + length.
        length: keys per run, at most.
        without: (batch, heads, n), the number of a key that the query leaves out.

    >>> ends = torch.tensor([[[2]]])
    >>> softmax_of_runs(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 4, 1), torch.eye(4)[None, None], ends - 2, ends, 2)
    Partial(mean=tensor([[[[0.5000, 0.5000, 0.0000, 0.0000]]]]), log_total=tensor([[[0.6931]]]))
    """
    batch, heads, n, dim = query.shape
    m, width = key.shape[2], value.shape[-1]
    query = query / math.sqrt(max(dim, 1))
    gathers = m > _WORTH_GATHERING * length
    row = length * max(dim, width, 1) if gathers else m
    step = max(1, _AT_A_TIME // max(1, batch * heads * row))
    parts = []
    for start in range(0, max(n, 1), step):
        rows = slice(start, start + step)
        first, end = (x[:, :, rows, None] for x in (low, high))
        number = torch.arange(length if gathers else m, device=query.device)
        number = first + number if gathers else number
        seen = (number >= first) & (number < end)
        seen = seen if without is None else seen & (number != without[:, :, rows, None])
        if gathers:
            seen = seen & (number >= 0) & (number < m)
            number = number.clamp(0, m - 1)
            keys, values = (taken(x, number.flatten(2)).unflatten(2, number.shape[2:]) for x in (key, value))
            scores = (keys @ query[:, :, rows, :, None]).mT.masked_fill(~seen[..., None, :], -torch.inf)
            part = partial_softmax(scores, values)
            part = Partial(part.mean.squeeze(-2), part.log_total.squeeze(-1))
        else:
            part = partial_softmax((query[:, :, rows] @ key.mT).masked_fill(~seen, -torch.inf), value)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return Partial(torch.cat([one.mean for one in parts], 2), torch.cat([one.log_total for one in parts], 2))


def taken(x: Tensor, rows: Tensor) -> Tensor:
    """Rows (batch, heads, k) of x (batch, heads, n, width).

    >>> taken(torch.arange(3.0).reshape(1, 1, 3, 1), torch.tensor([[[2, 0]]])).flatten()
    tensor([2., 0.])
    """
    return x.gather(2, rows[..., None].expand(*rows.shape, x.shape[-1]))
