"""Definition "ANN Attention" as a test: do these weights satisfy it?"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from annattn.checks import require_flag
from annattn.errors import InputError

__all__ = ["AnnaParameters", "AnnaReport", "check_anna", "softmax_parameters"]

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


@dataclass(frozen=True)
class AnnaParameters:
    """The parameters r, c and ℓ of Definition "ANN Attention"."""

    radius: float
    approximation: float
    tables: int


def softmax_parameters(beta: float, *, radius: float, norm: float = 1.0, equal_norms: bool = True) -> AnnaParameters:
    """The c and ℓ with which softmax(β·q·k) satisfies the Definition, for r and vectors no longer than `norm`.

    Softmax gives every key some weight, so every key must lie within c·r: c = 2·norm/r. Then 𝒩(q, c·r) is all N keys,
    and 1/((N − 1)·ℓ + 1) is what a near key needs. It has 1/(1 + Σ_j' e^(s_j' − s_j)), so ℓ = ⌈e^D⌉ is enough if no
    score exceeds that of a near key by more than D, and two keys show that no smaller ℓ is. If all vectors have length
    `norm`, as in the paper's experiments, D = β·r²/2. If they are only bounded, D = β·(norm + r)²/4 for r ≤ norm and
    β·norm·r beyond.

    >>> softmax_parameters(4.0, radius=0.5)
    AnnaParameters(radius=0.5, approximation=4.0..., tables=2)
    """
    if not (beta >= 0 and norm > 0 and 0 < radius < 2 * norm):
        raise InputError(
            "beta, norm, radius", given=(beta, norm, radius), expected="β ≥ 0, norm > 0, 0 < radius < 2·norm"
        )
    if require_flag("equal_norms", equal_norms):
        ahead = beta * radius**2 / 2
    else:
        ahead = beta * (norm + radius) ** 2 / 4 if radius <= norm else beta * norm * radius
    if ahead > 40:
        raise InputError("beta", given=beta, expected="scores less than 40 apart: ℓ would be e^40", hint="lower radius")
    # Distances are rounded: a little more than 2·norm keeps opposite vectors within c·r.
    return AnnaParameters(radius, 2 * norm / radius * (1 + 2.0**-40), math.ceil(math.exp(ahead) * (1 - 2.0**-40)))


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
