"""What a model's config says of its attention: `config.annattn`, plain data that `save_pretrained` writes.

`{"layers": {"3": {"mechanism": "anna", "tables": 8, …, "heads": [0, 1]}}, "before": "sdpa"}`: a layer that is not
listed keeps softmax, and so do the heads that are not. The record describes what `attn_implementation="anna"` means in
this model. Without it, and under another name, all layers attend by the name's own description. `before` is the
attention of `transformers` that the model goes back to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from annattn.attention import AttentionConfig
from annattn.checks import require_count
from annattn.errors import InputError
from annattn.nn.checkpoint import read_attention, write_attention

__all__ = [
    "IMPLEMENTATION",
    "NAME",
    "LayerAttention",
    "attentions_of",
    "layer_attentions",
    "read_layer",
    "record_in_use",
    "write_layer",
]

NAME = "annattn"
IMPLEMENTATION = "anna"  # the value of attn_implementation that a record gives its meaning


@dataclass(frozen=True)
class LayerAttention:
    """What one layer attends with, and which of its query heads do so; None for all."""

    attention: AttentionConfig
    heads: tuple[int, ...] | None = None


def write_layer(layer: LayerAttention) -> dict[str, Any]:
    """A layer as JSON-ready data.

    >>> from annattn.attention import SoftmaxConfig
    >>> write_layer(LayerAttention(SoftmaxConfig(), heads=(0, 2)))
    {'mechanism': 'softmax', 'beta': 1.0, 'dropout': 0.0, 'heads': [0, 2]}
    """
    heads = {} if layer.heads is None else {"heads": list(layer.heads)}
    return write_attention(layer.attention) | heads


def read_layer(data: Any, layer: int | str) -> LayerAttention:
    """The inverse of `write_layer`; an error names the layer."""
    try:
        options = dict(data)
        heads = options.pop("heads", None)
        chosen = None if heads is None else tuple(require_count("head", head, least=0) for head in heads)
        return LayerAttention(read_attention(options), chosen)
    except (InputError, TypeError, ValueError) as wrong:
        raise InputError(
            f"attention of layer {layer}", given="an impossible description", expected=str(wrong)
        ) from None


def layer_attentions(config: Any) -> dict[int, LayerAttention] | None:
    """The layers that a model's config says were converted; None if it says nothing.

    >>> from transformers import LlamaConfig
    >>> layer_attentions(LlamaConfig(annattn={"layers": {"1": {"mechanism": "anna", "tables": 4}}}))[1].attention.tables
    4
    """
    recorded = getattr(config, NAME, None)
    if recorded is None:
        return None
    if not isinstance(recorded, dict) or not isinstance(recorded.get("layers"), dict):
        raise InputError(f"config.{NAME}", given=repr(recorded)[:80], expected='a dict {"layers": {"0": {...}}}')
    return {int(layer): read_layer(data, layer) for layer, data in recorded["layers"].items()}


def record_in_use(config: Any) -> dict[int, LayerAttention] | None:
    """The same where the model's attention has the name that the record is about; None where it has another.

    >>> from transformers import LlamaConfig
    >>> record_in_use(LlamaConfig(annattn={"layers": {}}, attn_implementation="sdpa")) is None
    True
    """
    return layer_attentions(config) if config._attn_implementation == IMPLEMENTATION else None


def attentions_of(config: Any, defaults: Mapping[str, AttentionConfig]) -> tuple[LayerAttention | None, ...] | None:
    """What each layer of a model attends with, None for softmax; None if the model's attention is not ours.

    >>> from transformers import LlamaConfig
    >>> record = {"layers": {"1": {"mechanism": "anna", "tables": 4}}}
    >>> config = LlamaConfig(num_hidden_layers=2, annattn=record, attn_implementation="anna")
    >>> [chosen and chosen.attention.tables for chosen in attentions_of(config, {})]
    [None, 4]
    """
    recorded, layers = record_in_use(config), config.num_hidden_layers
    if recorded is not None:
        return tuple(recorded.get(layer) for layer in range(layers))
    if config._attn_implementation not in defaults:
        return None
    return (LayerAttention(defaults[config._attn_implementation]),) * layers
