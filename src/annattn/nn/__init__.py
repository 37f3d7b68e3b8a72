"""Transformers over the mechanisms of `attention`, and their checkpoints."""

from annattn.attention import (
    AnnaConfig,
    AttentionConfig,
    ExactMatchConfig,
    ExpectedCollisionConfig,
    ExpectedLatestConfig,
    LatestMatchConfig,
    LowRankConfig,
    ReformerConfig,
    SampledCollisionConfig,
    SampledLatestConfig,
    SoftmaxConfig,
    WindowConfig,
)
from annattn.nn.anna_attention import AnnaAttention, TrainingSchedule
from annattn.nn.checkpoint import load_model, save_model
from annattn.nn.exact import ExactConfig, ExactLayerConfig, ExactTransformer
from annattn.nn.transformer import Transformer, TransformerConfig

__all__ = [
    "AnnaAttention",
    "AnnaConfig",
    "AttentionConfig",
    "ExactConfig",
    "ExactLayerConfig",
    "ExactMatchConfig",
    "ExactTransformer",
    "ExpectedCollisionConfig",
    "ExpectedLatestConfig",
    "LatestMatchConfig",
    "LowRankConfig",
    "ReformerConfig",
    "SampledCollisionConfig",
    "SampledLatestConfig",
    "SoftmaxConfig",
    "TrainingSchedule",
    "Transformer",
    "TransformerConfig",
    "WindowConfig",
    "load_model",
    "save_model",
]
