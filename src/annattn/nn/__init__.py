"""Transformers over the mechanisms of `attention`, and their checkpoints."""

from annattn.nn.checkpoint import load_model, save_model
from annattn.nn.mechanisms import (
    ATTENTIONS,
    AnnaConfig,
    AttentionConfig,
    ExactMatchConfig,
    ExpectedCollisionConfig,
    ExpectedLatestConfig,
    LatestMatchConfig,
    LowRankConfig,
    SampledCollisionConfig,
    SampledLatestConfig,
    SoftmaxConfig,
)
from annattn.nn.transformer import Transformer, TransformerConfig

__all__ = [
    "ATTENTIONS",
    "AnnaConfig",
    "AttentionConfig",
    "ExactMatchConfig",
    "ExpectedCollisionConfig",
    "ExpectedLatestConfig",
    "LatestMatchConfig",
    "LowRankConfig",
    "SampledCollisionConfig",
    "SampledLatestConfig",
    "SoftmaxConfig",
    "Transformer",
    "TransformerConfig",
    "load_model",
    "save_model",
]
