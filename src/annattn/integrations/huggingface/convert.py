"""Other attention in chosen layers and heads of a loaded model, recorded in its config."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from annattn.attention import AttentionConfig
from annattn.checks import require_count, require_instance
from annattn.errors import InputError
from annattn.integrations.huggingface.attention import IMPLEMENTATIONS, register
from annattn.integrations.huggingface.bound import BoundLayer, bind_layer, layer_name
from annattn.integrations.huggingface.record import IMPLEMENTATION, NAME, LayerAttention, record_in_use, write_layer

__all__ = ["attention_modules", "convert", "head_dim"]


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
    description these layers or heads go back to softmax; when all have, the model is as it was, and so is its config. A
    layer has one description, and softmax in the heads that were not given it. All checks come before any change.

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
    config = _config(model)
    if heads is not None:
        heads = [require_count("head", head, least=0, most=config.num_attention_heads - 1) for head in heads]
    recorded = _now(config, modules)
    for layer in chosen:
        wanted = _changed(recorded.pop(layer, None), attention, heads, config.num_attention_heads, layer)
        for module in modules[layer]:
            bound = BoundLayer(wanted, layer, 1)
            bound.check_order(f"attention of {layer_name(module)}", bool(getattr(module, "is_causal", True)))
            bound.check_places(f"attention of {layer_name(module)}", config)
        if wanted is not None:
            recorded[layer] = wanted
    register()
    before = _before(config)
    if not recorded:
        model.set_attn_implementation(before)
        for name in (NAME, "attn_implementation"):
            vars(config).pop(name, None)
        return model
    if config._attn_implementation != IMPLEMENTATION:
        model.set_attn_implementation(IMPLEMENTATION)
    described = {str(layer): write_layer(recorded[layer]) for layer in sorted(recorded)}
    setattr(config, NAME, {"layers": described, "before": before})
    # An attribute of this name is written by save_pretrained and read as an argument by from_pretrained.
    config.attn_implementation = config._attn_implementation
    for of_layer in modules.values():
        for module in of_layer:
            bind_layer(module, IMPLEMENTATIONS, head_dim(module))
    return model


def _before(config: Any) -> str:
    """The attention of `transformers` that the model had before any of ours, or their default."""
    if config._attn_implementation not in IMPLEMENTATIONS:
        return config._attn_implementation
    return (getattr(config, NAME, None) or {}).get("before", "sdpa")


def _now(config: Any, layers: Iterable[int]) -> dict[int, LayerAttention]:
    """What each layer that is not softmax attends with before a change."""
    recorded = record_in_use(config)
    if recorded is None and config._attn_implementation in IMPLEMENTATIONS:
        return dict.fromkeys(layers, LayerAttention(IMPLEMENTATIONS[config._attn_implementation]))
    return dict(recorded or {})


def _changed(
    old: LayerAttention | None, attention: AttentionConfig | None, heads: Sequence[int] | None, most: int, layer: int
) -> LayerAttention | None:
    """What a layer attends with once these heads got another attention; None for softmax in all of them."""
    if heads is None:
        return None if attention is None else LayerAttention(attention)
    named = set(heads)
    before = set() if old is None else set(range(most) if old.heads is None else old.heads)
    kept = before - named
    if attention is None:
        return LayerAttention(old.attention, tuple(sorted(kept))) if old is not None and kept else None
    if old is not None and kept and old.attention != attention:
        raise InputError(
            f"heads of layer {layer}",
            given=f"{attention} for heads {sorted(named)}, where heads {sorted(kept)} have {old.attention}",
            expected="one description per layer, and softmax in its other heads",
            hint="convert(model, layers=[...]) first gives a layer back to softmax",
        )
    together = kept | named
    if not together:
        return None
    return LayerAttention(attention, None if len(together) == most else tuple(sorted(together)))


def attention_modules(model: PreTrainedModel) -> dict[int, list[torch.nn.Module]]:
    """The attention modules of a model by layer, or an error if they do not call the attention interface."""
    require_instance("model", model, PreTrainedModel, "a model of transformers (PreTrainedModel)")
    found: dict[int, list[torch.nn.Module]] = {}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and head_dim(module) and hasattr(module, "config"):
            found.setdefault(layer, []).append(module)
    can_choose = model._can_set_attn_implementation()
    if can_choose and not found:
        raise InputError(
            "attention of layer 0",
            given=f"{type(model).__name__}, which has no attention module that says which layer it is",
            expected="modules with a layer_idx and the width of a head",
            hint='if it attends at all, register() and model.set_attn_implementation("anna") change all its layers',
        )
    if not can_choose:
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


def head_dim(module: Any) -> int:
    """The width of an attention module's heads; 0 if it does not say."""
    named = (getattr(module, name, None) for name in ("head_dim", "attention_head_size", "head_size"))
    return next((width for width in named if width), 0)
