"""Token after token: what each layer remembers, and the choice of the next token."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from annattn.attention import AnnaConfig, AttentionConfig, LatestMatchConfig, WindowConfig
from annattn.attention.position_coded import position_coded
from annattn.cache import BucketCache, WindowCache
from annattn.checks import require_count, require_number
from annattn.errors import InputError
from annattn.seeds import check_seed

if TYPE_CHECKING:
    from annattn.nn.transformer import Transformer

__all__ = ["CONSTANT_COST", "GrowingCache", "LayerCache", "choose_token", "generate", "layer_cache"]

CONSTANT_COST: tuple[type[AttentionConfig], ...] = (AnnaConfig, LatestMatchConfig, WindowConfig)
"""The mechanisms that decode at a constant cost per token."""


class LayerCache(Protocol):
    """What a layer remembers."""

    def step(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Take in new tokens and let each attend causally."""
        ...


class GrowingCache:
    """All keys and values, attended to by the mechanism itself: right for any causal one, but a step costs O(n)."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], config: AttentionConfig) -> None:
        self.attend, self.config = attend, config
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def step(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `LayerCache`."""
        if self.config.shared_query_key:
            key = query
        if self.key is not None and self.value is not None:
            key, value = torch.cat([self.key, key], dim=2), torch.cat([self.value, value], dim=2)
        self.key, self.value = key, value
        return self.attend(query, key, value)


def layer_cache(
    config: AttentionConfig,
    attend: Callable[..., Tensor],
    *,
    head_dim: int,
    heads: int,
    batch: int,
    layer: int,
    seed: int | None,
    rate: float,
) -> LayerCache:
    """The cache of one layer: of constant cost where the mechanism has one and values are not position-coded."""

    def read(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if config.shared_query_key:  # its queries are its keys, so all attend again, and the new ones are returned
            return attend(key, key, value, True, None)[:, :, key.shape[2] - query.shape[2] :]
        return attend(query, key, value, True, None)

    if rate:
        return GrowingCache(lambda q, k, v: position_coded(lambda u: read(q, k, u), v, rate), config)
    if isinstance(config, WindowConfig):
        window = WindowCache(
            config.hasher(head_dim, layer, seed), window=config.window, combine=config.combine, shift=config.shift,
            value_dim=head_dim, batch=batch, heads=heads, history=0,
        )  # fmt: skip
        return _Gated(window, config.gate)
    if isinstance(config, AnnaConfig | LatestMatchConfig):
        return BucketCache(
            config.hasher(head_dim, layer, seed), value_dim=head_dim, batch=batch, heads=heads, history=0,
            mechanism="anna" if isinstance(config, AnnaConfig) else "latest_match",
        )  # fmt: skip
    return GrowingCache(read, config)


class _Gated:
    def __init__(self, cache: WindowCache, gate: float) -> None:
        self.cache, self.gate = cache, gate

    def step(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.cache.step(query, key, value, gate=self.gate)


def generate(
    model: "Transformer", tokens: Tensor, n: int, temperature: float, top_k: int | None, seed: int
) -> Iterator[Tensor]:
    """See `Transformer.generate`; arguments are checked before the first token is asked for."""
    config = model.config
    n, seed = require_count("n", n, least=0), check_seed(seed)
    require_number("temperature", temperature, "a number of at least 0", low=0)
    if top_k is not None:
        top_k = require_count("top_k", top_k)
    if not config.is_causal:
        raise InputError("model", given="is_causal=False", expected="a causal model: a token must not see later ones")
    if config.target_vocab != config.input_vocab:
        raise InputError(
            "model",
            given=f"{config.target_vocab} targets",
            expected=f"the {config.input_vocab} input tokens",
        )
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.shape[1] == 0:
        given = f"shape {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise InputError("tokens", given=given, expected="(batch, n) with at least one token to begin with")
    if config.positions == "learned" and tokens.shape[1] + n - 1 > config.length:
        raise InputError(
            "n",
            given=f"{n} tokens after {tokens.shape[1]}",
            expected=f"at most {max(config.length + 1 - tokens.shape[1], 0)}: the model has {config.length} positions",
            hint='train with positions="prime" or "none" to go further',
        )
    generator = torch.Generator(device=tokens.device).manual_seed(seed)
    caches = model.caches(len(tokens))

    def stream() -> Iterator[Tensor]:
        fed, position = tokens, 0
        for _ in range(n):
            with torch.no_grad():
                logits = model(fed, first_position=position, caches=caches)[:, -1]
                position += fed.shape[1]
                chosen = choose_token(logits.float(), temperature, top_k, generator)
            fed = chosen[:, None]
            yield chosen

    return stream()


def choose_token(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> Tensor:
    """A token per row, drawn from the softmax of its logits over the temperature, or of the `top_k` largest."""
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    # A temperature that is zero in this dtype would make NaN of the largest logit, 0/0.
    temperature = max(temperature, torch.finfo(logits.dtype).tiny)
    chances = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    return torch.multinomial(chances, 1, generator=generator)[:, 0]
