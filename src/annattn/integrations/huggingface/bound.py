"""What a layer of a model attends with, ready to be called: bound once and kept on the model's own attention module."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from annattn.attention import (
    AnnaConfig,
    AttentionConfig,
    HashedConfig,
    WindowConfig,
    anna_attention,
    window_attention,
)
from annattn.errors import InputError
from annattn.integrations.huggingface.masks import KeyMask, dense_attention
from annattn.integrations.huggingface.record import NAME, LayerAttention, attentions_of, record_in_use
from annattn.lsh import Hasher

__all__ = ["BoundLayer", "bind_layer", "bound_layer", "layer_name"]

_KEPT = "_annattn_bound"


class BoundLayer:
    """One layer's attention with its hash functions drawn; None attends as softmax does."""

    def __init__(
        self,
        chosen: LayerAttention | None,
        layer: int,
        head_dim: int,
        model: tuple[LayerAttention | None, ...] = (),
    ) -> None:
        self.chosen, self.layer, self.head_dim = chosen, layer, head_dim
        self.model = model
        """What all layers of the model attend with: a cache has to be made for the same."""
        self.attend = None if chosen is None else chosen.attention.bind(head_dim, layer)
        self.attention: AttentionConfig | None = None if chosen is None else chosen.attention
        self.heads = None if chosen is None else chosen.heads

    def __reduce__(self) -> tuple[Any, ...]:
        """Drawn anew from the description: a bound mechanism is a closure, which cannot be pickled."""
        return BoundLayer, (self.chosen, self.layer, self.head_dim, self.model)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, mask: KeyMask) -> Tensor:
        """(batch, heads, n, dim) with the last query aligned with the last key."""
        if self.attend is None:
            return dense_attention(query, key, value, is_causal, mask)
        if self.heads is None:
            return self._hashed(query, key, value, is_causal, mask)
        out = dense_attention(query, key, value, is_causal, mask)
        share = query.shape[1] // key.shape[1]
        heads = torch.tensor(self.heads, device=query.device)
        own = self._hashed(query[:, heads], key[:, heads // share], value[:, heads // share], is_causal, mask)
        return out.index_copy(1, heads, own.to(out.dtype))

    def check_order(self, where: str, is_causal: bool) -> None:
        """Raise InputError unless the mechanism has this order."""
        kind = None if self.attention is None else self.attention.causal
        if (kind == "never" and is_causal) or (kind == "always" and not is_causal):
            word = "no causal form" if is_causal else "only a causal form"
            raise InputError(
                where,
                given=f"{type(self.attention).__name__}, which has {word}",
                expected=f"a mechanism for a {'causal' if is_causal else 'bidirectional'} model",
            )

    def check_places(self, where: str, config: Any) -> None:
        """Raise InputError if the mechanism counts places, and the model has queries and keys of two sequences."""
        if getattr(config, "is_encoder_decoder", False) and getattr(self.attention, "window", 0):
            raise InputError(
                where,
                given=f"{type(self.attention).__name__} with a window, in an encoder-decoder model",
                expected="a mechanism without a window: between two sequences no key is near a query",
                hint="AnnaConfig, or CollisionSoftmaxConfig with window=0",
            )

    def _hashed(self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, mask: KeyMask) -> Tensor:
        assert self.attend is not None
        if mask.documents is None:
            return self.attend(query, key, value, is_causal, mask.key_mask)
        options: dict[str, Any] = {"is_causal": is_causal, "documents": mask.documents}
        if isinstance(self.attention, AnnaConfig):
            return anna_attention(query, key, value, self._hasher(), gradient=self.attention.gradient, **options)
        if isinstance(self.attention, WindowConfig):
            own = {name: getattr(self.attention, name) for name in ("window", "combine", "gate", "shift", "gradient")}
            return window_attention(query, key, value, self._hasher(), **own, **options)
        raise InputError(
            f"attention of layer {self.layer}",
            given=f"packed sequences with {type(self.attention).__name__}",
            expected="AnnaConfig or WindowConfig with them, or one sequence per batch row",
            hint="pad the sequences and pass an attention_mask",
        )

    def _hasher(self) -> Hasher:
        assert isinstance(self.attention, HashedConfig)
        return self.attention.hasher(self.head_dim, self.layer, None)


def layer_name(module: torch.nn.Module) -> str:
    """How an error names a model's layer."""
    layer = getattr(module, "layer_idx", None)
    return type(module).__name__ if layer is None else f"layer {layer} ({type(module).__name__})"


def bind_layer(module: torch.nn.Module, defaults: Mapping[str, AttentionConfig], head_dim: int) -> BoundLayer:
    """Read the model's config anew for this layer, draw its hash functions and keep them on the module."""
    config: Any = module.config
    layer = getattr(module, "layer_idx", None) or 0
    recorded = record_in_use(config)
    chosen = LayerAttention(defaults[config._attn_implementation]) if recorded is None else recorded.get(layer)
    bound = BoundLayer(chosen, layer, head_dim, attentions_of(config.get_text_config(decoder=True), defaults) or ())
    setattr(module, _KEPT, (getattr(config, NAME, None), config._attn_implementation, bound))
    return bound


def bound_layer(module: torch.nn.Module, defaults: Mapping[str, AttentionConfig], head_dim: int) -> BoundLayer:
    """The same, or what is kept from the last time if the config still says so."""
    kept = getattr(module, _KEPT, None)
    if torch.compiler.is_compiling():
        if kept is None:
            raise InputError(
                f"attention of {layer_name(module)}",
                given="a model that is compiled before its hash functions were drawn",
                expected="one that was converted or called once",
                hint="call annattn.integrations.huggingface.convert(model), or the model, before torch.compile",
            )
        return kept[2]
    config: Any = module.config
    if kept is not None and kept[:2] == (getattr(config, NAME, None), config._attn_implementation):
        return kept[2]
    return bind_layer(module, defaults, head_dim)
