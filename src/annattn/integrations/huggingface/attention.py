"""The attention and mask functions that `transformers` calls, and their registration."""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    find_packed_sequence_indices,
    packed_sequence_mask_function,
)

from annattn.attention import AnnaConfig, AttentionConfig, CollisionSoftmaxConfig, WindowConfig
from annattn.errors import InputError
from annattn.integrations.huggingface.bound import BoundLayer, bound_layer, layer_name
from annattn.integrations.huggingface.masks import KeyMask, read_mask

__all__ = ["IMPLEMENTATIONS", "attend", "key_mask", "register"]

IMPLEMENTATIONS: dict[str, AttentionConfig] = {
    "anna": AnnaConfig(tables=16, hashes=6),
    "anna_window": WindowConfig(tables=16, hashes=6, window=64),
    "collision_softmax": CollisionSoftmaxConfig(
        family="cross_polytope", tables=135, hashes=1, meetings=4, window=64, first=4, centre=True
    ),
}
"""The names for `attn_implementation`, with what a layer attends with whose config does not say."""

_UNSUPPORTED = {
    "sliding_window": "a sliding window",
    "softcap": "capped scores",
    "s_aux": "attention sinks as parameters",
    "position_bias": "a bias of scores by position",
    "head_mask": "a mask of heads",
}


def register() -> None:
    """Make "anna", "anna_window" and "collision_softmax" values of `attn_implementation`; calling it again is harmless.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> register()
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 8}
    >>> config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    >>> model = LlamaForCausalLM._from_config(config, attn_implementation="anna")
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 8])
    """
    for name in IMPLEMENTATIONS:
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, key_mask)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What `transformers` calls in every layer: (batch, heads, n, dim) in, (batch, n, heads, dim) and None out."""
    layer = bound_layer(module, IMPLEMENTATIONS, query.shape[-1])
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    _check(module, layer, dropout, causal, options)
    mask = read_mask(attention_mask, layer_name(module))
    if mask == KeyMask():
        mask = _packed(query, key, options.get("position_ids"), layer_name(module))
    stored = getattr(key, "annattn_layer", None)
    if scaling is not None:
        # Mechanisms that see lengths divide by √dim; those that see angles do not care.
        query = query * (scaling * query.shape[-1] ** 0.5)
    if stored is not None:
        if not causal:
            raise InputError(
                f"cache of {layer_name(module)}",
                given="an AnnaCache for cross attention",
                expected="EncoderDecoderCache(AnnaCache(model.config), DynamicCache())",
            )
        if module.training and torch.is_grad_enabled():
            raise InputError(
                f"cache of {layer_name(module)}",
                given="an AnnaCache while training",
                expected="none: it keeps nothing that a gradient could be taken of",
                hint="pass use_cache=False, or call model.eval()",
            )
        out = stored.attend(layer, query, key, value, mask)
    else:
        out = layer(query, key, value, causal, mask)
    return out.transpose(1, 2).contiguous(), None


def _packed(query: Tensor, key: Tensor, positions: Any, where: str) -> KeyMask:
    """Documents that positions tell apart, where transformers has not looked: it does so without any cache only."""
    if not isinstance(positions, Tensor) or positions.ndim != 2 or torch.compiler.is_compiling():
        return KeyMask()
    documents = find_packed_sequence_indices(positions.expand(len(query), -1))
    if documents is None:
        return KeyMask()
    if key.shape[2] != query.shape[2]:
        raise InputError(
            f"attention of {where}",
            given="position_ids that start again, after tokens in a cache",
            expected="packed sequences without a cache, or one sequence per batch row",
            hint="pass use_cache=False",
        )
    return KeyMask(documents=documents)


def _check(module: torch.nn.Module, layer: BoundLayer, dropout: float, causal: bool, options: dict[str, Any]) -> None:
    where = f"attention of {layer_name(module)}"
    for name, meaning in _UNSUPPORTED.items():
        if options.get(name) is not None:
            raise InputError(where, given=f"{name}: {meaning}", expected="plain causal or bidirectional attention")
    if dropout:
        raise InputError(
            where,
            given=f"dropout {dropout}",
            expected="none: hashed attention has no weights to drop",
            hint="model.eval(), or load the model with its attention dropout set to 0",
        )
    layer.check_order(where, causal)
    layer.check_places(where, module.config)


def key_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """The mask `transformers` hands to the layers: which keys take part (batch, keys), or documents, or nothing.

    Packed sequences come as a (batch, keys) tensor of document numbers, in int64 where a key mask is bool.
    """
    documents = _documents(mask_function, options.get("config"))
    if mask_function is not bidirectional_mask_function:
        aligned = not isinstance(q_offset, Tensor) and q_offset + q_length == kv_offset + kv_length
        if not aligned:
            raise InputError(
                "past_key_values",
                given="a cache of fixed length, in which the last key is not the last query's",
                expected="an AnnaCache or a DynamicCache",
            )
    if documents is not None:
        return documents
    if attention_mask is None:
        return None
    if attention_mask.shape[-1] < kv_offset + kv_length:
        raise InputError(
            "attention_mask",
            given=f"{attention_mask.shape[-1]} columns",
            expected=f"one for each of {kv_offset + kv_length} tokens, those in the cache included",
        )
    return attention_mask[:, kv_offset : kv_offset + kv_length].bool()


_PACKED = packed_sequence_mask_function(torch.zeros(1, 1)).__code__


def _documents(mask_function: Any, config: Any) -> Tensor | None:
    """The document numbers of packed sequences; None for a plain mask. Any other is an error."""
    if mask_function in (causal_mask_function, bidirectional_mask_function):
        return None
    if torch.compiler.is_compiling():
        # transformers cannot tell while it is traced whether sequences are packed, and a closure cannot be read then.
        raise InputError(
            "attention_mask",
            given="none, in a compiled model",
            expected="one",
            hint="pass attention_mask=torch.ones_like(input_ids) where there is no padding",
        )
    parts = _cells(mask_function).get("mask_functions", ())
    packed = [_cells(part) for part in parts if getattr(part, "__code__", None) is _PACKED]
    plain = [part for part in parts if part in (causal_mask_function, bidirectional_mask_function)]
    if len(packed) == len(plain) == 1 and len(parts) == 2:
        return packed[0]["packed_sequence_mask"].long()
    types = getattr(config, "layer_types", None) or ()
    other = [str(layer) for layer, kind in enumerate(types) if kind != "full_attention"]
    raise InputError(
        f"attention mask of {'layers ' + ', '.join(other) if other else 'all layers'}",
        given=f"the pattern {getattr(mask_function, '__qualname__', mask_function)}",
        expected="causal, bidirectional or packed sequences, with padding",
        hint="sliding windows, chunks and blocks have no form in hashed attention",
    )


def _cells(function: Any) -> dict[str, Any]:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return {name: cell.cell_contents for name, cell in zip(names, function.__closure__ or (), strict=True)}
