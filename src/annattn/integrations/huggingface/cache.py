"""A decode cache for `transformers`: hash tables where a layer attends by hashing, keys and values elsewhere."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from annattn.checks import LARGEST_COUNT, require_count, require_instance
from annattn.errors import InputError
from annattn.integrations.huggingface.attention import IMPLEMENTATIONS
from annattn.integrations.huggingface.cache_layers import CacheLayer, cache_layer
from annattn.integrations.huggingface.record import attentions_of

__all__ = ["AnnaCache"]

_HISTORY = 64


class AnnaCache(Cache):
    """The decode cache of a model converted to ANNA, for `past_key_values`.

    Layers that attend by ANNA, latest match or a window in all heads hold hash tables, which do not grow with the
    context; the others hold keys and values, as `transformers`' own cache does. At most the last `history` tokens can
    be cropped, which prompt-lookup and assisted generation need. For inference: nothing here is differentiable.

    A call that cannot be right is an error that names the layer, and changes no layer.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from annattn.attention import AnnaConfig
    >>> from annattn.integrations.huggingface import convert
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 8}
    >>> model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)).eval()
    >>> model = convert(model, AnnaConfig(tables=4, hashes=4), layers=[1])
    >>> cache = AnnaCache(model.config)
    >>> out = model(torch.tensor([[1, 2, 3]]), past_key_values=cache)
    >>> cache
    AnnaCache(layers=[KeysLayer, AnnaLayer])
    """

    layers: list[CacheLayer]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: Any, *, history: int = _HISTORY) -> None:
        if not hasattr(config, "get_text_config"):
            raise InputError("config", given=type(config).__name__, expected="that of a model, model.config")
        text = config.get_text_config(decoder=True)
        made_for = attentions_of(text, IMPLEMENTATIONS)
        if made_for is None:
            raise InputError(
                "config",
                given=f"a model with attn_implementation={text._attn_implementation!r}",
                expected='a converted one, or attn_implementation="anna"',
                hint="convert(model, AnnaConfig(...)), then AnnaCache(model.config)",
            )
        history = require_count("history", history, least=0)
        super().__init__(layers=[cache_layer(layer, made_for, history) for layer in range(len(made_for))])  # pyright: ignore[reportArgumentType]

    @torch.compiler.disable
    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **options: Any
    ) -> Any:
        """Hand new tokens to a layer. A compiled model does so between its graphs."""
        return super().update(key_states, value_states, layer_idx, *args, **options)

    def crop(self, tokens_to_remove: int) -> None:
        """Undo so many of the last tokens, given as a negative number; at most `history`."""
        hint = "a negative number of tokens, as in transformers' own caches"
        tokens = require_count("tokens_to_remove", tokens_to_remove, least=-LARGEST_COUNT, most=0, hint=hint)
        for layer in self.layers:
            layer.require_recent(-tokens)
        super().crop(tokens)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row b becomes a copy of what row beam_idx[b] was, as beam search wants it."""
        rows = self._rows("beam_idx", beam_idx)
        if rows is not None and len(rows) != self._batch:
            raise InputError("beam_idx", given=f"{len(rows)} rows", expected=f"one for each of {self._batch}")
        self._take(rows)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these batch rows, given as indices or as a mask."""
        self._take(self._rows("indices", indices))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every batch row `repeats` times."""
        repeats = require_count("repeats", repeats)
        self._take([row for row in range(self._batch or 0) for _ in range(repeats)])

    @property
    def _batch(self) -> int | None:
        return self.layers[0].batch if self.layers else None

    def _rows(self, name: str, given: Tensor) -> list[int] | None:
        """Batch rows as Python integers that exist; None before there are any."""
        require_instance(name, given, Tensor, "a tensor of batch rows")
        if self._batch is None:
            return None
        given = given.cpu()
        rows = given.nonzero().flatten() if given.dtype == torch.bool and len(given) == self._batch else given
        found = [require_count(name, row, least=0, most=self._batch - 1) for row in rows.tolist()]
        if not found:
            raise InputError(name, given="no rows", expected="at least one")
        return found

    def _take(self, rows: list[int] | None) -> None:
        for layer in self.layers:
            if rows and layer.batch is not None:
                layer.take(rows)
