"""Attention mechanisms, one per file: the function, its literal weight matrix, and the description of a layer."""

from annattn.attention import (
    anna,
    collision,
    collision_softmax,
    exact_match,
    latest,
    latest_match,
    low_rank,
    reference,
    reformer,
    softmax,
    window,
)
from annattn.attention.anna import AnnaConfig, anna_attention
from annattn.attention.collision import (
    ExpectedCollisionConfig,
    SampledCollisionConfig,
    expected_collision_attention,
    sampled_collision_attention,
)
from annattn.attention.collision_softmax import CollisionSoftmaxConfig, collision_softmax_attention
from annattn.attention.definition import AnnaParameters, AnnaReport, check_anna, softmax_parameters
from annattn.attention.exact_match import ExactMatchConfig, exact_match_attention
from annattn.attention.latest import (
    ExpectedLatestConfig,
    SampledLatestConfig,
    expected_latest_attention,
    sampled_latest_attention,
)
from annattn.attention.latest_match import LatestMatchConfig, latest_match_attention
from annattn.attention.low_rank import LowRankConfig, low_rank_attention
from annattn.attention.mechanism import AttentionConfig, HashedConfig, Mechanism
from annattn.attention.plan import Plan, plan
from annattn.attention.reformer import ReformerConfig, reformer_attention
from annattn.attention.softmax import SoftmaxConfig, softmax_attention
from annattn.attention.state import BucketState
from annattn.attention.window import WindowConfig, window_attention

__all__ = [
    "MECHANISMS",
    "AnnaConfig",
    "AnnaParameters",
    "AnnaReport",
    "AttentionConfig",
    "BucketState",
    "CollisionSoftmaxConfig",
    "ExactMatchConfig",
    "ExpectedCollisionConfig",
    "ExpectedLatestConfig",
    "HashedConfig",
    "LatestMatchConfig",
    "LowRankConfig",
    "Mechanism",
    "Plan",
    "ReformerConfig",
    "SampledCollisionConfig",
    "SampledLatestConfig",
    "SoftmaxConfig",
    "WindowConfig",
    "anna_attention",
    "check_anna",
    "collision_softmax_attention",
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
    "softmax_parameters",
    "window_attention",
]

MECHANISMS: dict[str, Mechanism] = {
    "softmax": softmax.MECHANISM,
    "anna": anna.MECHANISM,
    "window": window.MECHANISM,
    "latest_match": latest_match.MECHANISM,
    "exact_match": exact_match.MECHANISM,
    "expected_collision": collision.EXPECTED,
    "expected_latest": latest.EXPECTED,
    "sampled_collision": collision.SAMPLED,
    "sampled_latest": latest.SAMPLED,
    "collision_softmax": collision_softmax.MECHANISM,
    "low_rank": low_rank.MECHANISM,
    "reformer": reformer.MECHANISM,
}
"""Every mechanism by the name it has in a checkpoint; the shared tests run over it."""
