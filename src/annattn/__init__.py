"""Fast attention by nearest-neighbour hashing, and its equivalence with massively parallel computation."""

from annattn import attention, compiler, errors, experiments, kernels, lsh, mpc, nn, tasks, theorems
from annattn.attention import (
    AnnaReport,
    Plan,
    anna_attention,
    check_anna,
    exact_match_attention,
    expected_collision_attention,
    expected_latest_attention,
    latest_match_attention,
    low_rank_attention,
    plan,
    reformer_attention,
    sampled_collision_attention,
    sampled_latest_attention,
    softmax_attention,
)
from annattn.cache import BucketCache

__version__ = "0.1.0"

__all__ = [
    "AnnaReport",
    "BucketCache",
    "Plan",
    "anna_attention",
    "attention",
    "check_anna",
    "compiler",
    "errors",
    "exact_match_attention",
    "expected_collision_attention",
    "expected_latest_attention",
    "experiments",
    "kernels",
    "latest_match_attention",
    "low_rank_attention",
    "lsh",
    "mpc",
    "nn",
    "plan",
    "reformer_attention",
    "sampled_collision_attention",
    "sampled_latest_attention",
    "softmax_attention",
    "tasks",
    "theorems",
]
