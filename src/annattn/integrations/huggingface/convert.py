"""Other attention in chosen layers and heads of a loaded model, recorded in its config."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from annattn.attention import AttentionConfig
from annattn.checks import require_count
from annattn.errors import InputError
from annattn.integrations.huggingface.attention import IMPLEMENTATIONS, register
from annattn.integrations.huggingface.bound import BoundLayer, bind_layer, layer_name
from annattn.integrations.huggingface.record import NAME, LayerAttention, layer_attentions, write_layer

__all__ = ["attention_modules", "convert"]


def convert(
    model: PreTrainedModel,
    attention: AttentionConfig | None = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> PreTrainedModel:
    """Let these layers, or these query heads of them, attend by a description; the others stay as they are.

    The model is changed in place and returned. Its config records the change, so `save_pretrained` keeps it, and
    `from_pretrained` restores it once `register` was called. Calling it again changes further layers. Without a
    description the model goes back to softmax in these layers. All checks come before any change.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from annattn.attention import AnnaConfig
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 8}
    >>> model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1))
    >>> convert(model, AnnaConfig(tables=4, hashes=4), layers=[1]).config.annattn["layers"]["1"]["tables"]
    4
    """
    modules = attention_modules(model)
    chosen = sorted(modules) if layers is None else [require_count("layer", layer, least=0) for layer in layers]
    for layer in chosen:
        if layer not in modules:
            raise InputError("layers", given=layer, expected=f"layers from 0 to {max(modules)}")
    wanted = None if attention is None else LayerAttention(attention, None if heads is None else tuple(heads))
    if heads is not None:
        most = _config(model).num_attention_heads
        for head in heads:
            require_count("head", head, least=0, most=most - 1)
    for layer in chosen:
        for module in modules[layer]:
            bound = BoundLayer(wanted, layer, 1)
            bound.check_order(f"attention of {layer_name(module)}", bool(getattr(module, "is_causal", True)))
    config = _config(model)
    recorded = {layer: write_layer(kept) for layer, kept in (layer_attentions(config) or {}).items()}
    for layer in chosen:
        recorded.pop(layer, None)
        if wanted is not None:
            recorded[layer] = write_layer(wanted)
    register()
    if config._attn_implementation not in IMPLEMENTATIONS:
        model.set_attn_implementation("anna")
    setattr(config, NAME, {"layers": {str(layer): recorded[layer] for layer in sorted(recorded)}})
    # An attribute of this name is written by save_pretrained and read as an argument by from_pretrained.
    config.attn_implementation = config._attn_implementation
    for of_layer in modules.values():
        for module in of_layer:
            bind_layer(module, IMPLEMENTATIONS, _head_dim(module))
    return model


def attention_modules(model: PreTrainedModel) -> dict[int, list[torch.nn.Module]]:
    """The attention modules of a model by layer, or an error if they do not call the attention interface."""
    if not isinstance(model, PreTrainedModel):
        raise InputError("model", given=type(model).__name__, expected="a model of transformers (PreTrainedModel)")
    found: dict[int, list[torch.nn.Module]] = {}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and _head_dim(module) and hasattr(module, "config"):
            found.setdefault(layer, []).append(module)
    if not model._can_set_attn_implementation() or not found:
        first = layer_name(found[min(found)][0]) if found else "layer 0"
        raise InputError(
            f"attention of {first}",
            given=f"{type(model).__name__}, which does not use the attention interface",
            expected="a model whose attention is chosen by attn_implementation",
            hint="see transformers' page on AttentionInterface",
        )
    return found


def _config(model: PreTrainedModel) -> Any:
    return model.config.get_text_config()


def _head_dim(module: Any) -> int:
    return getattr(module, "head_dim", None) or getattr(module, "attention_head_size", None) or 0
