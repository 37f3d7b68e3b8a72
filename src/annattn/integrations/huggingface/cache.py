"""A decode cache for `transformers`: hash tables where a layer attends by hashing, keys and values elsewhere."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from annattn.attention import (
    AnnaConfig,
    AttentionConfig,
    BucketState,
    HashedConfig,
    LatestMatchConfig,
    WindowConfig,
)
from annattn.cache import WindowCache
from annattn.errors import InputError
from annattn.integrations.huggingface.attention import IMPLEMENTATIONS
from annattn.integrations.huggingface.bound import BoundLayer
from annattn.integrations.huggingface.record import LayerAttention, record_in_use

__all__ = ["AnnaCache", "AnnaLayer", "WindowLayer"]

_HISTORY = 64


class AnnaLayer(CacheLayerMixin):
    """One layer's hash tables: memory and time per token do not grow with the context.

    `update` hands on the new tokens alone, with this layer as an attribute of the keys, where the attention function
    finds it: only there the mask of the new tokens is known.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, attention: HashedConfig, layer: int, history: int = _HISTORY) -> None:
        super().__init__()
        self.attention, self.layer, self.history = attention, layer, history
        self.state: BucketState | None = None
        self.took_part = torch.ones(0, 0, dtype=torch.bool)  # which of the last tokens of each row did
        self.length, self.waiting = 0, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make empty tables for this batch."""
        self.took_part = torch.ones(len(key_states), 0, dtype=torch.bool, device=key_states.device)
        batch, heads, _, dim = key_states.shape
        hasher = self.attention.hasher(dim, self.layer, None)
        keep = "newest" if isinstance(self.attention, LatestMatchConfig) else "sum"
        self.state = BucketState(
            hasher, value_dim=value_states.shape[-1], batch=batch, heads=heads, keep=keep, history=self.history
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Hand on the new tokens; the attention function brings them back with their mask."""
        if self.waiting:
            raise InputError(
                f"attention of layer {self.layer}",
                given="an AnnaCache whose tokens nobody attended to",
                expected='a model with attn_implementation="anna", converted like the cache',
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.waiting = key_states.shape[2]
        self.length += self.waiting
        key_states = key_states.view_as(key_states)  # a tensor of its own, to carry the attribute
        key_states.annattn_layer = self  # pyright: ignore[reportAttributeAccessIssue]
        return key_states, value_states

    def attend(
        self, bound: BoundLayer, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, where: str
    ) -> Tensor:
        """Store the new tokens and let each attend to all before it, and to itself."""
        if bound.attention != self.attention or bound.heads is not None:
            raise InputError(
                f"cache of {where}",
                given=f"one made for {self.attention}",
                expected=f"one made for {bound.attention}",
                hint="AnnaCache(model.config) after convert(model, ...)",
            )
        new = None if key_mask is None else key_mask[:, key_mask.shape[1] - key.shape[2] :]
        out = self._step(query, key, value, new)
        self.waiting = 0
        return out

    def _step(self, query: Tensor, key: Tensor, value: Tensor, new: Tensor | None) -> Tensor:
        assert self.state is not None
        took_part = torch.ones_like(key[:, 0, :, 0], dtype=torch.bool) if new is None else new
        self.took_part = torch.cat([self.took_part, took_part], 1)[:, -self.history :]
        return self.state.step(query, key, value, new, value.dtype)[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks cover all tokens, from the first."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """How many tokens were seen."""
        return self.length

    def get_max_length(self) -> int:
        """There is no limit."""
        return -1

    def reset(self) -> None:
        """Forget everything."""
        self.state, self.is_initialized, self.length, self.waiting = None, False, 0, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Undo so many of the last tokens, given as a negative number; at most `history`."""
        if tokens_to_remove > 0:
            raise InputError("tokens_to_remove", given=tokens_to_remove, expected="a negative number of tokens")
        if tokens_to_remove and self.is_initialized:
            self._undo(-tokens_to_remove)
            self.length += tokens_to_remove

    def _undo(self, tokens: int) -> None:
        assert self.state is not None
        if tokens > self.took_part.shape[1]:
            raise InputError(
                f"tokens to crop from layer {self.layer}",
                given=tokens,
                expected=f"at most the last {self.took_part.shape[1]}",
                hint="AnnaCache(model.config, history=...) keeps more",
            )
        self.state.crop(self.took_part[:, -tokens:].sum(1).tolist())  # a masked token left no trace
        self.took_part = self.took_part[:, :-tokens]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row b becomes a copy of what row beam_idx[b] was."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times."""
        if self.is_initialized:
            self._take([row for row in range(self._batch()) for _ in range(repeats)])

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows."""
        if self.is_initialized:
            self._take(torch.arange(self._batch())[indices.cpu()].tolist())

    def _batch(self) -> int:
        return len(self.took_part)

    def _take(self, rows: list[int]) -> None:
        assert self.state is not None
        self.state, self.took_part = self.state.twin(rows), self.took_part[rows]

    def offload(self) -> None:
        """Not needed: the tables do not grow."""

    def prefetch(self) -> None:
        """Not needed either."""


class WindowLayer(AnnaLayer):
    """One layer's last tokens as they are, and hash tables of all before them."""

    def __init__(self, attention: WindowConfig, layer: int, history: int = _HISTORY) -> None:
        super().__init__(attention, layer, history)
        self.gate, self.cache = attention.gate, None
        self._options = {"window": attention.window, "combine": attention.combine, "shift": attention.shift}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make an empty cache for this batch."""
        batch, heads, _, dim = key_states.shape
        hasher, sizes = self.attention.hasher(dim, self.layer, None), {"batch": batch, "heads": heads}
        self.cache: WindowCache | None = WindowCache(
            hasher, value_dim=value_states.shape[-1], history=self.history, **sizes, **self._options
        )
        self.is_initialized = True

    def _step(self, query: Tensor, key: Tensor, value: Tensor, new: Tensor | None) -> Tensor:
        assert self.cache is not None
        return self.cache.step(query, key, value, key_mask=new, gate=self.gate)

    def _undo(self, tokens: int) -> None:
        assert self.cache is not None
        self.cache.crop(tokens)

    def _batch(self) -> int:
        return 0 if self.cache is None else self.cache.batch

    def _take(self, rows: list[int]) -> None:
        assert self.cache is not None
        self.cache.select(rows)

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.cache = None


class AnnaCache(Cache):
    """The decode cache of a model converted to ANNA, for `past_key_values`.

    Layers that attend by ANNA, latest match or a window in all heads hold hash tables, which do not grow with the
    context; the others hold keys and values, as `transformers`' own cache does. At most the last `history` tokens can
    be cropped, which prompt-lookup and assisted generation need.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from annattn.attention import AnnaConfig
    >>> from annattn.integrations.huggingface import convert
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 8}
    >>> model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)).eval()
    >>> model = convert(model, AnnaConfig(tables=4, hashes=4), layers=[1])
    >>> cache = AnnaCache(model.config)
    >>> out = model(torch.tensor([[1, 2, 3]]), past_key_values=cache)
    >>> cache
    AnnaCache(layers=[DynamicLayer, AnnaLayer])
    """

    def __init__(self, config: Any, *, history: int = _HISTORY) -> None:
        text = config.get_text_config(decoder=True)
        recorded = record_in_use(text)
        if recorded is None and text._attn_implementation not in IMPLEMENTATIONS:
            raise InputError(
                "config",
                given=f"a model with attn_implementation={text._attn_implementation!r}",
                expected='a converted one, or attn_implementation="anna"',
                hint="convert(model, AnnaConfig(...)), then AnnaCache(model.config)",
            )
        chosen: dict[int, LayerAttention] = recorded or {}
        if recorded is None:
            default = LayerAttention(IMPLEMENTATIONS[text._attn_implementation])
            chosen = dict.fromkeys(range(text.num_hidden_layers), default)
        super().__init__(layers=[_layer(chosen.get(layer), layer, history) for layer in range(text.num_hidden_layers)])


def _layer(chosen: LayerAttention | None, layer: int, history: int) -> CacheLayerMixin:
    attention: AttentionConfig | None = None if chosen is None or chosen.heads is not None else chosen.attention
    if isinstance(attention, AnnaConfig | LatestMatchConfig):
        return AnnaLayer(attention, layer, history)
    if isinstance(attention, WindowConfig):
        return WindowLayer(attention, layer, history)
    return DynamicLayer()
