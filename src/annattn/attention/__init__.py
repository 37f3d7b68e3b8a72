"""Attention mechanisms as pure functions, one a file; `reference` is the paper's text, taken literally."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from annattn.attention import reference
from annattn.attention.anna import anna_attention
from annattn.attention.definition import AnnaReport, check_anna
from annattn.attention.exact_match import exact_match_attention
from annattn.attention.expected import expected_collision_attention, expected_latest_attention
from annattn.attention.latest_match import latest_match_attention
from annattn.attention.low_rank import low_rank_attention
from annattn.attention.plan import Plan, plan
from annattn.attention.reformer import reformer_attention
from annattn.attention.sampled import sampled_collision_attention, sampled_latest_attention
from annattn.attention.softmax import softmax_attention
from annattn.lsh import Hyperplane

__all__ = [
    "MECHANISMS",
    "AnnaReport",
    "Mechanism",
    "Plan",
    "anna_attention",
    "check_anna",
    "exact_match_attention",
    "expected_collision_attention",
    "expected_latest_attention",
    "latest_match_attention",
    "low_rank_attention",
    "plan",
    "reference",
    "reformer_attention",
    "sampled_collision_attention",
    "sampled_latest_attention",
    "softmax_attention",
]


@dataclass(frozen=True)
class Mechanism:
    """A mechanism over separate queries, keys and values, and what the shared tests need to know of it.

    attend: the public function, called (query, key, value, key_mask=…, is_causal=…, **options).
    weights: the matrix w_ij of one head by `reference`, called (query, key, seen, **options).
    options: sensible options for a head dimension.
    always_causal: there is no `is_causal` to pass.
    by_angle: weights depend on angles, which for nearly equal rows the cosine tells to √eps only.
    """

    attend: Callable[..., Tensor]
    weights: Callable[..., Tensor]
    options: Callable[[int], dict[str, Any]]
    always_causal: bool = False
    by_angle: bool = False


MECHANISMS: dict[str, Mechanism] = {
    "anna": Mechanism(
        anna_attention, reference.anna_weights, lambda dim: {"hasher": Hyperplane(dim).sample(tables=8, hashes=4)}
    ),
    "exact_match": Mechanism(exact_match_attention, reference.exact_match_weights, lambda dim: {}),
    "latest_match": Mechanism(
        latest_match_attention,
        reference.latest_match_weights,
        lambda dim: {"hasher": Hyperplane(dim).sample(tables=8, hashes=4)},
        always_causal=True,
    ),
    "expected_collision": Mechanism(
        expected_collision_attention,
        reference.expected_collision_weights,
        lambda dim: {"family": Hyperplane(dim), "hashes": 4},
        by_angle=True,
    ),
    "sampled_collision": Mechanism(
        sampled_collision_attention,
        reference.anna_weights,
        lambda dim: {"hasher": Hyperplane(dim).sample(tables=8, hashes=4)},
    ),
    "sampled_latest": Mechanism(
        sampled_latest_attention,
        reference.latest_match_weights,
        lambda dim: {"hasher": Hyperplane(dim).sample(tables=8, hashes=4)},
        always_causal=True,
    ),
    "expected_latest": Mechanism(
        expected_latest_attention,
        reference.expected_latest_weights,
        lambda dim: {"family": Hyperplane(dim), "hashes": 4},
        always_causal=True,
        by_angle=True,
    ),
    "softmax": Mechanism(softmax_attention, reference.softmax_weights, lambda dim: {"beta": 1.0}),
    "low_rank": Mechanism(low_rank_attention, reference.low_rank_weights, lambda dim: {}),
}
"""Every mechanism by name; the shared tests run over it."""
