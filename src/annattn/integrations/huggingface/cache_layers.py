"""What an `AnnaCache` holds of one layer: hash tables, a window before hash tables, or keys and values.

`update` puts the layer itself on the keys it returns, as an attribute, where the attention function finds it: only
there the model's description and the mask are known. It brings the new tokens back to `attend`.
"""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from annattn.attention import AnnaConfig, BucketState, HashedConfig, LatestMatchConfig, WindowConfig
from annattn.cache import WindowCache
from annattn.errors import InputError
from annattn.integrations.huggingface.bound import BoundLayer
from annattn.integrations.huggingface.masks import KeyMask
from annattn.integrations.huggingface.record import LayerAttention

__all__ = ["AnnaLayer", "CacheLayer", "KeysLayer", "WindowLayer", "cache_layer"]

MadeFor = tuple[LayerAttention | None, ...]


class CacheLayer(CacheLayerMixin):
    """What all layers of an `AnnaCache` can do."""

    is_sliding = False
    is_croppable = True

    def __init__(self, layer: int, made_for: MadeFor) -> None:
        super().__init__()
        self.layer, self.made_for = layer, made_for
        self._agreed: MadeFor | None = None  # the last description that was found to be the same

    @property
    @abstractmethod
    def batch(self) -> int | None:
        """How many rows it holds; None before the first token."""

    @abstractmethod
    def take(self, rows: list[int]) -> None:
        """Row b becomes a copy of what row rows[b] was; there may be more or fewer than before."""

    @abstractmethod
    def require_recent(self, tokens: int) -> None:
        """Raise InputError unless so many of the last tokens can be undone."""

    @abstractmethod
    def attend(self, bound: BoundLayer, query: Tensor, key: Tensor, value: Tensor, mask: KeyMask) -> Tensor:
        """Let each new token attend to all before it, and to itself."""

    def get_max_length(self) -> int:
        """There is no limit."""
        return -1

    def _handed_on(self, key: Tensor) -> Tensor:
        key = key.view_as(key)  # a tensor of its own, to carry the attribute
        key.annattn_layer = self  # pyright: ignore[reportAttributeAccessIssue]
        return key

    def _require_alike(self, held: tuple[int, ...], key: Tensor, value: Tensor) -> None:
        """Raise InputError unless new tokens have the batch rows, heads and widths of those held."""
        given = (*key.shape[:2], key.shape[3], value.shape[3])
        if given != held:
            words = "{} batch rows, {} key heads, keys {} and values {} wide"
            raise InputError(
                f"cache of layer {self.layer}",
                given=f"new tokens with {words.format(*given)}",
                expected=f"{words.format(*held)}, as it holds",
                hint="a new AnnaCache(model.config) for another batch or model, or cache.batch_select_indices(...)",
            )

    def _require_model(self, bound: BoundLayer) -> None:
        """Raise InputError unless the model attends in all layers as the one that the cache was made for."""
        if self._agreed is bound.model:
            return
        where, hint = "past_key_values", "AnnaCache(model.config) after convert(model, ...)"
        if len(bound.model) != len(self.made_for):
            layers = f"a model with {len(bound.model)} layers"
            raise InputError(where, given=f"a cache for {len(self.made_for)} layers", expected=layers, hint=hint)
        for layer, (own, other) in enumerate(zip(self.made_for, bound.model, strict=True)):
            if own != other:
                given, wanted = (_said(one) for one in (own, other))
                raise InputError(
                    f"cache of layer {layer}",
                    given=f"one made for {given}",
                    expected=f"one for {wanted}",
                    hint=hint,
                )
        self._agreed = bound.model


class KeysLayer(CacheLayer, DynamicLayer):
    """One layer's keys and values, for softmax and for mechanisms that have no smaller state."""

    @property
    def batch(self) -> int | None:
        """See `CacheLayer`."""
        return len(self.keys) if self.is_initialized and self.keys is not None and self.keys.ndim == 4 else None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Append new tokens and hand on all there are."""
        if self.batch is not None:
            assert self.keys is not None
            assert self.values is not None
            held = (*self.keys.shape[:2], self.keys.shape[3], self.values.shape[3])
            self._require_alike(held, key_states, value_states)
        self._before = self.keys, self.values, self.is_initialized
        keys, values = DynamicLayer.update(self, key_states, value_states, *args, **options)
        return self._handed_on(keys), values

    @torch.compiler.disable
    def attend(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, bound: BoundLayer, query: Tensor, key: Tensor, value: Tensor, mask: KeyMask
    ) -> Tensor:
        """See `CacheLayer`."""
        try:
            self._require_model(bound)
        except InputError:
            self.keys, self.values, self.is_initialized = self._before
            raise
        finally:
            self._before = None, None, False
        return bound(query, key, value, True, mask)

    def take(self, rows: list[int]) -> None:
        """See `CacheLayer`."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]

    def require_recent(self, tokens: int) -> None:
        """See `CacheLayer`."""
        _require_tokens(self.layer, tokens, self.get_seq_length(), self.is_initialized)


class AnnaLayer(CacheLayer):
    """One layer's hash tables: memory and time per token do not grow with the context."""

    def __init__(self, attention: HashedConfig, layer: int, made_for: MadeFor, history: int) -> None:
        super().__init__(layer, made_for)
        self.attention, self.history = attention, history
        self.state: BucketState | None = None
        self.length, self.waiting = 0, 0
        self._held: tuple[int, ...] = ()

    @property
    def batch(self) -> int | None:
        """See `CacheLayer`."""
        return self._held[0] if self.is_initialized else None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make empty tables for this batch."""
        batch, heads, _, dim = key_states.shape
        self._held = (batch, heads, dim, value_states.shape[3])
        self.took_part = torch.ones(batch, 0, dtype=torch.bool, device=key_states.device)  # of the last tokens
        self.seen = torch.zeros(batch, dtype=torch.long, device=key_states.device)  # how many of all took part
        self._make(self.attention.hasher(dim, self.layer, None), heads, value_states.shape[3], batch)
        self.is_initialized = True

    def _make(self, hasher: Any, heads: int, value_dim: int, batch: int) -> None:
        keep = "newest" if isinstance(self.attention, LatestMatchConfig) else "sum"
        self.state = BucketState(
            hasher, value_dim=value_dim, batch=batch, heads=heads, keep=keep, history=self.history
        )  # fmt: skip

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Hand on the new tokens alone; they are stored when they attend."""
        if self.waiting:
            raise InputError(
                f"attention of layer {self.layer}",
                given="an AnnaCache whose tokens nobody attended to",
                expected='a model with attn_implementation="anna", converted like the cache',
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._require_alike(self._held, key_states, value_states)
        self.waiting = key_states.shape[2]
        return self._handed_on(key_states), value_states

    @torch.compiler.disable
    def attend(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, bound: BoundLayer, query: Tensor, key: Tensor, value: Tensor, mask: KeyMask
    ) -> Tensor:
        """Store the new tokens and let each attend to all before it, and to itself."""
        count, self.waiting = self.waiting, 0
        self._require_model(bound)
        new = self._new_part(mask, count)
        out = self._step(query, key, value, new)
        took_part = torch.ones_like(key[:, 0, :, 0], dtype=torch.bool) if new is None else new
        kept = torch.cat([self.took_part, took_part], 1)
        self.took_part = kept[:, max(0, kept.shape[1] - self.history) :]
        self.seen = self.seen + took_part.sum(1)
        self.length += count
        return out

    def _new_part(self, mask: KeyMask, count: int) -> Tensor | None:
        """The new tokens' part of a mask of all tokens; an error unless the other part is as it was."""
        where = f"attention mask of layer {self.layer}"
        if mask.documents is not None:
            raise InputError(
                where, given="packed sequences and an AnnaCache", expected="one of them", hint="pass use_cache=False"
            )
        total = self.length + count
        if mask.key_mask is None:
            same = bool((self.seen == self.length).all())
        elif mask.key_mask.shape[1] != total:
            raise InputError(where, given=f"{mask.key_mask.shape[1]} keys", expected=f"one for each of {total} tokens")
        else:
            same = bool((mask.key_mask[:, : self.length].sum(1) == self.seen).all())
        if not same:
            raise InputError(
                where,
                given="one that changes which of the earlier tokens take part",
                expected="the mask so far, with columns for the new tokens after it",
                hint="hash tables cannot take a token out again; transformers' DynamicCache can",
            )
        return None if mask.key_mask is None else mask.key_mask[:, self.length :]

    def _step(self, query: Tensor, key: Tensor, value: Tensor, new: Tensor | None) -> Tensor:
        assert self.state is not None
        return self.state.step(query, key, value, new, value.dtype)[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks cover all tokens, from the first."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """How many tokens were seen."""
        return self.length + self.waiting

    def reset(self) -> None:
        """Forget everything."""
        self.state, self.is_initialized, self.length, self.waiting = None, False, 0, 0

    def require_recent(self, tokens: int) -> None:
        """See `CacheLayer`."""
        there = self.took_part.shape[1] if self.is_initialized else 0
        _require_tokens(
            self.layer, tokens, there, self.is_initialized, "AnnaCache(model.config, history=...) keeps more"
        )

    def crop(self, tokens_to_remove: int) -> None:
        """Undo so many of the last tokens, given as a negative number, as far as `require_recent` allows."""
        if tokens_to_remove and self.is_initialized:
            gone = self.took_part[:, tokens_to_remove:].sum(1)
            self._undo(-tokens_to_remove, gone.tolist())
            self.took_part, self.seen = self.took_part[:, :tokens_to_remove], self.seen - gone
            self.length += tokens_to_remove

    def _undo(self, tokens: int, took_part: list[int]) -> None:
        assert self.state is not None
        self.state.crop(took_part)  # a masked token left no trace

    def take(self, rows: list[int]) -> None:
        """See `CacheLayer`."""
        self.took_part, self.seen = self.took_part[rows], self.seen[rows]
        self._held = (len(rows), *self._held[1:])
        self._select(rows)

    def _select(self, rows: list[int]) -> None:
        assert self.state is not None
        self.state = self.state.twin(rows)

    def offload(self) -> None:
        """Not needed: the tables do not grow."""

    def prefetch(self) -> None:
        """Not needed either."""


class WindowLayer(AnnaLayer):
    """One layer's last tokens as they are, and hash tables of all before them."""

    def __init__(self, attention: WindowConfig, layer: int, made_for: MadeFor, history: int) -> None:
        super().__init__(attention, layer, made_for, history)
        self.gate = attention.gate
        self.cache: WindowCache | None = None
        self._options = {"window": attention.window, "combine": attention.combine, "shift": attention.shift}

    def _make(self, hasher: Any, heads: int, value_dim: int, batch: int) -> None:
        sizes = {"batch": batch, "heads": heads, "value_dim": value_dim}
        self.cache = WindowCache(hasher, history=self.history, **sizes, **self._options)

    def _step(self, query: Tensor, key: Tensor, value: Tensor, new: Tensor | None) -> Tensor:
        assert self.cache is not None
        return self.cache.step(query, key, value, key_mask=new, gate=self.gate)

    def _undo(self, tokens: int, took_part: list[int]) -> None:
        assert self.cache is not None
        self.cache.crop(tokens)

    def _select(self, rows: list[int]) -> None:
        assert self.cache is not None
        self.cache.select(rows)

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.cache = None


def _said(chosen: LayerAttention | None) -> str:
    if chosen is None:
        return "softmax"
    return str(chosen.attention) + ("" if chosen.heads is None else f" in heads {chosen.heads}")


def _require_tokens(layer: int, tokens: int, there: int, is_initialized: bool, hint: str = "") -> None:
    # Like transformers' own layers, one that holds nothing yet has nothing to undo and says nothing.
    if is_initialized and tokens > there:
        raise InputError(
            f"tokens to crop from layer {layer}", given=tokens, expected=f"at most the last {there}", hint=hint
        )


def cache_layer(layer: int, made_for: MadeFor, history: int) -> CacheLayer:
    """What a layer of a model needs that attends as described."""
    chosen = made_for[layer]
    attention = None if chosen is None or chosen.heads is not None else chosen.attention
    if isinstance(attention, AnnaConfig | LatestMatchConfig):
        return AnnaLayer(attention, layer, made_for, history)
    if isinstance(attention, WindowConfig):
        return WindowLayer(attention, layer, made_for, history)
    return KeysLayer(layer, made_for)
