"""Definition "ANN Attention" as a test: do these weights satisfy it?"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from annattn.errors import InputError

__all__ = ["AnnaReport", "check_anna"]

# Weights that are quotients of float32 sums may miss a bound by a few roundings.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class AnnaReport:
    """Which index tuples (…, i, j) break which part of the Definition; each field is (violations, axes).

    far: w_ij > 0 although ‖q_i − k_j‖ > c·r, against the first condition.
    near: w_ij < 1 / ((|𝒩(q_i, cr)| − 1)·ℓ + 1) although ‖q_i − k_j‖ ≤ r, against the second.
    negative: w_ij < 0 or NaN.
    unnormalised: rows (…, i) that do not sum to 1. A row of zeros is let pass when its query has no r-near key: the
        Definition asks for a sum of 1 there too, which no weights can have when 𝒩(q_i, cr) is empty.
    """

    far: Tensor
    near: Tensor
    negative: Tensor
    unnormalised: Tensor

    @property
    def holds(self) -> bool:
        """Whether the weights satisfy the Definition."""
        return not any(map(len, (self.far, self.near, self.negative, self.unnormalised)))

    def __str__(self) -> str:
        parts = {"far": self.far, "near": self.near, "negative": self.negative, "unnormalised": self.unnormalised}
        found = [f"{len(rows)} {name}, first {tuple(rows[0].tolist())}" for name, rows in parts.items() if len(rows)]
        return "the Definition holds" if not found else "the Definition is broken: " + "; ".join(found)


def check_anna(
    weights: Float[Tensor, "... queries keys"],
    query: Float[Tensor, "... queries dim"],
    key: Float[Tensor, "... keys dim"],
    *,
    radius: float,
    approximation: float,
    tables: int,
) -> AnnaReport:
    """Check weights w_ij against the two conditions of Definition "ANN Attention" with parameters r, c, ℓ.

    𝒩(q, t) counts keys by index: read as a set of points, as the paper writes it, two equal keys would count once and
    no mechanism could give both a weight of 1.

    >>> q, k = torch.tensor([[0.0]]), torch.tensor([[0.0], [3.0]])
    >>> print(check_anna(torch.tensor([[0.5, 0.5]]), q, k, radius=1.0, approximation=2.0, tables=4))
    the Definition is broken: 1 far, first (0, 1); 1 near, first (0, 0)
    """
    ranks = min(weights.ndim, query.ndim, key.ndim)
    wanted = (*query.shape[:-1], key.shape[-2]) if ranks >= 2 else ()
    if ranks < 2 or weights.shape != wanted or query.shape[:-2] != key.shape[:-2] or query.shape[-1] != key.shape[-1]:
        raise InputError(
            "weights",
            given=f"{tuple(weights.shape)} for queries {tuple(query.shape)} and keys {tuple(key.shape)}",
            expected="(..., queries, keys), (..., queries, dim) and (..., keys, dim)",
        )
    if not (radius >= 0 and approximation > 1 and tables >= 1):
        raise InputError(
            "radius, approximation, tables",
            given=(radius, approximation, tables),
            expected="radius ≥ 0, approximation > 1, tables ≥ 1",
        )
    weights = weights.double()
    distance = _distances(query.double(), key.double())
    far = radius * approximation if radius else 0.0  # also for c → ∞, as in EM Attention
    reach = (distance <= far).sum(-1, keepdim=True)
    bound = 1 / ((reach - 1) * tables + 1)
    is_near = distance <= radius
    total = weights.sum(-1)
    blank = (total == 0) & ~is_near.any(-1)
    return AnnaReport(
        far=((weights > 0) & ~(distance <= far)).nonzero(),
        near=(is_near & ~(weights >= bound * (1 - _ROUNDING))).nonzero(),
        negative=(~(weights >= 0)).nonzero(),
        unnormalised=(~((total - 1).abs() <= _ROUNDING) & ~blank).nonzero(),
    )


def _distances(query: Tensor, key: Tensor) -> Tensor:
    """‖q_i − k_j‖, from differences: squares of norms would lose small distances between long vectors."""
    return torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")
