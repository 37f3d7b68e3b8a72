"""Attention mechanisms, one per file: the function, its literal weight matrix, and the description of a layer."""

from annattn.attention import (
    anna,
    based,
    collision,
    collision_softmax,
    exact_match,
    hyper,
    kdeformer,
    latest,
    latest_match,
    linformer,
    low_rank,
    performer,
    polysketch,
    reference,
    reformer,
    reformer_rounds,
    routing,
    scatterbrain,
    sliding_window,
    softmax,
    window,
)
from annattn.attention.anna import AnnaConfig, anna_attention
from annattn.attention.based import BasedConfig, BasedFeatures
from annattn.attention.collision import (
    ExpectedCollisionConfig,
    SampledCollisionConfig,
    expected_collision_attention,
    sampled_collision_attention,
)
from annattn.attention.collision_softmax import CollisionSoftmaxConfig, collision_softmax_attention
from annattn.attention.definition import AnnaParameters, AnnaReport, check_anna, softmax_parameters
from annattn.attention.exact_match import ExactMatchConfig, exact_match_attention
from annattn.attention.features import FeatureMap
from annattn.attention.hyper import HyperConfig, hyper_attention
from annattn.attention.kdeformer import KdeformerConfig, kdeformer_attention
from annattn.attention.latest import (
    ExpectedLatestConfig,
    SampledLatestConfig,
    expected_latest_attention,
    sampled_latest_attention,
)
from annattn.attention.latest_match import LatestMatchConfig, latest_match_attention
from annattn.attention.linformer import LinformerConfig, linformer_attention
from annattn.attention.low_rank import LowRankConfig, low_rank_attention
from annattn.attention.mechanism import AttentionConfig, HashedConfig, Mechanism
from annattn.attention.performer import PerformerConfig, PerformerFeatures
from annattn.attention.plan import Plan, plan
from annattn.attention.polysketch import PolySketchConfig, PolySketchFeatures
from annattn.attention.reformer import ReformerConfig, reformer_attention
from annattn.attention.reformer_rounds import ReformerRoundsConfig, reformer_rounds_attention
from annattn.attention.routing import RoutingConfig, routing_attention
from annattn.attention.scatterbrain import ScatterbrainConfig, scatterbrain_attention
from annattn.attention.sliding_window import SlidingWindowConfig, sliding_window_attention
from annattn.attention.softmax import SoftmaxConfig, softmax_attention
from annattn.attention.state import BucketState
from annattn.attention.window import WindowConfig, window_attention

__all__ = [
    "MECHANISMS",
    "AnnaConfig",
    "AnnaParameters",
    "AnnaReport",
    "AttentionConfig",
    "BasedConfig",
    "BasedFeatures",
    "BucketState",
    "CollisionSoftmaxConfig",
    "ExactMatchConfig",
    "ExpectedCollisionConfig",
    "ExpectedLatestConfig",
    "FeatureMap",
    "HashedConfig",
    "HyperConfig",
    "KdeformerConfig",
    "LatestMatchConfig",
    "LinformerConfig",
    "LowRankConfig",
    "Mechanism",
    "PerformerConfig",
    "PerformerFeatures",
    "Plan",
    "PolySketchConfig",
    "PolySketchFeatures",
    "ReformerConfig",
    "ReformerRoundsConfig",
    "RoutingConfig",
    "SampledCollisionConfig",
    "SampledLatestConfig",
    "ScatterbrainConfig",
    "SlidingWindowConfig",
    "SoftmaxConfig",
    "WindowConfig",
    "anna_attention",
    "check_anna",
    "collision_softmax_attention",
    "exact_match_attention",
    "expected_collision_attention",
    "expected_latest_attention",
    "hyper_attention",
    "kdeformer_attention",
    "latest_match_attention",
    "linformer_attention",
    "low_rank_attention",
    "plan",
    "reference",
    "reformer_attention",
    "reformer_rounds_attention",
    "routing_attention",
    "sampled_collision_attention",
    "sampled_latest_attention",
    "scatterbrain_attention",
    "sliding_window_attention",
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
    "performer": performer.MECHANISM,
    "polysketch": polysketch.MECHANISM,
    "based": based.MECHANISM,
    "linformer": linformer.MECHANISM,
    "scatterbrain": scatterbrain.MECHANISM,
    "sliding_window": sliding_window.MECHANISM,
    "reformer": reformer.MECHANISM,
    "reformer_rounds": reformer_rounds.MECHANISM,
    "hyper": hyper.MECHANISM,
    "kdeformer": kdeformer.MECHANISM,
    "routing": routing.MECHANISM,
}
"""Every mechanism by the name it has in a checkpoint; the shared tests run over it."""
