"""The transformer of the paper's experiments: embeddings, pre-norm blocks, and one mechanism per layer."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from annattn.attention import AttentionConfig, SoftmaxConfig
from annattn.attention.position_coded import LARGEST_POWER, position_coded
from annattn.checks import keep_counts, require_choice, require_count, require_flag, require_number
from annattn.errors import InputError
from annattn.nn.decoding import LayerCache, generate, layer_cache
from annattn.seeds import check_seed

__all__ = ["Transformer", "TransformerConfig", "apply_rotary", "prime_positions"]

_M = TypeVar("_M", bound=nn.Module)
_LARGEST = 2**24  # of any size: products of two stay far inside 64 bits
_ALIKE = 4  # rows of a pooled model that are read together


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a transformer, and the mechanism of each of its layers.

    - positions: "learned" rows up to `length`; "prime" (see `prime_positions`), which have no end; "none".
    - rotary: for each layer, whether its queries and keys are rotated by their positions (see `apply_rotary`), so that
      it sees distances between positions and not the positions. Element-wise too: each row by its own position.
    - identity_init: start with heads that pass on unchanged what they read, and, in layers that are not rotary, with
      equal maps for queries and keys, so that equal content meets from the first step.
    - recency: for each layer, 0 or the rate a of `position_coded` values: among the keys a query meets, the latest
      outweighs all before it. A layer with a rate reads at most 1000/a positions.
    - mlp: the width of the hidden layer of an MLP; by default 4 · `dim`.
    - pooled: classify the sequence: every position has the logits of the mean of all final rows. Not for causal models.
    - padding: a token that stands for no token: it is never attended to and not pooled.

    >>> config = TransformerConfig(input_vocab=10, target_vocab=2, length=32, dim=64, attention=(SoftmaxConfig(),) * 2)
    >>> config.layers, config.head_dim
    (2, 64)
    """

    input_vocab: int
    target_vocab: int
    length: int
    dim: int = 64
    heads: int = 1
    attention: tuple[AttentionConfig, ...] = (SoftmaxConfig(),)
    is_causal: bool = True
    positions: Literal["learned", "prime", "none"] = "learned"
    rotary: tuple[bool, ...] = ()
    recency: tuple[float, ...] = ()
    identity_init: bool = False
    mlp: int | None = None
    pooled: bool = False
    padding: int | None = None

    def __post_init__(self) -> None:
        keep_counts(self, "input_vocab", "target_vocab", "length", "dim", "heads", most=_LARGEST)
        for name in ("is_causal", "identity_init", "pooled"):
            require_flag(name, getattr(self, name))
        if self.mlp is not None:
            keep_counts(self, "mlp", most=_LARGEST)
        if self.padding is not None:
            keep_counts(self, "padding", least=0, most=_LARGEST)
        if self.pooled and self.is_causal:
            raise InputError("pooled", given="True in a causal model", expected="is_causal=False with it")
        if self.dim % self.heads:
            raise InputError("dim", given=self.dim, expected=f"a multiple of the {self.heads} heads")
        require_choice("positions", self.positions, ("learned", "prime", "none"))
        for name in ("attention", "rotary", "recency"):
            if not isinstance(getattr(self, name), tuple | list):
                raise InputError(name, given=repr(getattr(self, name)), expected="a tuple, one entry per layer")
        object.__setattr__(self, "attention", _mechanisms(self.attention))
        object.__setattr__(self, "rotary", tuple(map(bool, self.rotary)) or (False,) * len(self.attention))
        recency = tuple(require_number("recency", one, "a finite number per layer") for one in self.recency)
        object.__setattr__(self, "recency", recency or (0.0,) * len(self.attention))
        if not self.attention:
            raise InputError("attention", given="no layer", expected="one mechanism per layer")
        for name in ("rotary", "recency"):
            if len(getattr(self, name)) != len(self.attention):
                wanted = f"{len(self.attention)} entries, one per layer"
                raise InputError(name, given=getattr(self, name), expected=wanted)
        if any(self.rotary) and self.head_dim % 2:
            raise InputError("dim", given=self.dim, expected="an even width per head, for rotary layers")
        for layer, (mechanism, rate) in enumerate(zip(self.attention, self.recency, strict=True)):
            if mechanism.causal == ("never" if self.is_causal else "always"):
                fitting = not self.is_causal
                raise InputError(
                    f"attention of layer {layer}", given=mechanism, expected=f"is_causal={fitting} with it"
                )
            if mechanism.largest_length is not None and self.length > mechanism.largest_length:
                raise InputError(
                    f"attention of layer {layer}",
                    given=f"{mechanism} for a length of {self.length}",
                    expected=f"a length of at most {mechanism.largest_length}",
                )
            if not 0 <= rate * self.length <= 2 * LARGEST_POWER:
                raise InputError(
                    f"recency of layer {layer}",
                    given=rate,
                    expected=f"0 to {2 * LARGEST_POWER / self.length:g} for a length of {self.length}",
                    hint="values are multiplied by 2^(rate·position), which must stay inside float64",
                )

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.attention)

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.heads


class Transformer(nn.Module):
    """Token and position embeddings, pre-norm blocks with a GeLU MLP, by default 4m wide, and a linear read-out.

    >>> from annattn.nn import AnnaConfig
    >>> config = TransformerConfig(input_vocab=10, target_vocab=2, length=32, dim=16)
    >>> model = Transformer(config, seed=0)
    >>> tokens = torch.arange(8)[None]
    >>> model(tokens).shape
    torch.Size([1, 8, 2])
    >>> hashed = model.with_attention(AnnaConfig(tables=4, hashes=2))
    >>> hashed(tokens).shape, hashed.head.weight is model.head.weight
    (torch.Size([1, 8, 2]), True)
    """

    def __init__(self, config: TransformerConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        # The caller's random state is left as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(check_seed(seed))
            self.tokens = nn.Embedding(config.input_vocab, config.dim)
            self.positions = nn.Embedding(config.length, config.dim) if config.positions == "learned" else None
            for table in (self.tokens, self.positions):
                if table is not None:
                    nn.init.normal_(table.weight, std=0.5)
            self.blocks = nn.ModuleList(_Block(config, layer) for layer in range(config.layers))
            self.norm = nn.LayerNorm(config.dim)
            self.head = nn.Linear(config.dim, config.target_vocab)

    def forward(
        self,
        tokens: Int[Tensor, "batch n"],
        *,
        first_position: int = 0,
        key_mask: Bool[Tensor, "batch n"] | None = None,
        caches: Sequence[LayerCache] | None = None,
    ) -> Float[Tensor, "batch n targets"]:
        """Logits of every position.

        Args:
            tokens: ids below `input_vocab`.
            first_position: the position of the first token.
            key_mask: True where a token may be attended to.
            caches: what `caches` gave, to go on after the tokens they hold; `first_position` is then their number.
        """
        if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
            given = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
            raise InputError("tokens", given=given, expected="a tensor of int64")
        if tokens.ndim != 2:
            raise InputError("tokens", given=f"shape {tuple(tokens.shape)}", expected="(batch, n)")
        first_position = require_count("first_position", first_position, least=0)
        length = tokens.shape[1]
        if self.config.padding is not None and caches is None:
            real = tokens != self.config.padding
            key_mask = real if key_mask is None else key_mask & real
            if self.config.pooled:  # columns at the end that are padding in every row change nothing
                ends = (real * torch.arange(1, length + 1, device=real.device)).amax(1)
                if len(tokens) > _ALIKE and int(ends.min()) < int(ends.max()):
                    return self._by_length(tokens, key_mask, ends, first_position)
                longest = max(1, int(ends.max())) if len(tokens) else 1
                tokens, key_mask = tokens[:, :longest], key_mask[:, :longest]
        n = tokens.shape[1]
        positions = torch.arange(first_position, first_position + n, device=tokens.device)
        try:
            x = self.tokens(tokens)
        except IndexError:
            wrong = tokens[(tokens < 0) | (tokens >= self.config.input_vocab)][0].item()
            raise InputError("token", given=wrong, expected=f"0 to {self.config.input_vocab - 1}") from None
        if self.positions is not None:
            if first_position + n > self.config.length:
                raise InputError(
                    "tokens",
                    given=f"positions up to {first_position + n}",
                    expected=f"at most the {self.config.length} learned ones",
                    hint='train with positions="prime" or "none" to go further',
                )
            x = x + self.positions(positions)
        elif self.config.positions == "prime":
            x = x + prime_positions(positions, self.config.dim).to(x.dtype)
        if caches is not None and (key_mask is not None or len(caches) != self.config.layers):
            given = "a key_mask" if key_mask is not None else f"{len(caches)} of them"
            raise InputError(
                "caches", given=given, expected=f"one for each of {self.config.layers} layers, and no mask"
            )
        for layer, block in enumerate(self.blocks):
            x = block(x, positions, key_mask, None if caches is None else caches[layer])
        x = self.norm(x)
        if self.config.pooled:
            counted = x.new_ones(x.shape[:2]) if key_mask is None else key_mask.to(x.dtype)
            mean = (counted[:, None] @ x) / counted.sum(1).clamp(min=1)[:, None, None]
            return self.head(mean).expand(-1, length, -1)
        return self.head(x)

    def _by_length(self, tokens: Tensor, key_mask: Tensor, ends: Tensor, first_position: int) -> Tensor:
        """A few rows of about the same length at a time, so that short ones do not cost what the longest does."""
        order = ends.argsort(stable=True)
        parts = [
            self.forward(tokens[rows], first_position=first_position, key_mask=key_mask[rows])
            for rows in order.split(_ALIKE)
        ]
        return torch.cat(parts)[order.argsort()]

    def caches(self, batch: int = 1) -> list[LayerCache]:
        """An empty cache per layer, to decode with `forward(tokens, first_position=..., caches=...)`."""
        config = self.config
        return [
            layer_cache(
                block.mechanism, block.attend, head_dim=config.head_dim, heads=config.heads, batch=batch,
                layer=block.layer, seed=block.seed, rate=config.recency[block.layer],
            )
            for block in self._blocks
        ]  # fmt: skip

    def generate(
        self,
        tokens: Int[Tensor, "batch n"],
        n: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
    ) -> Iterator[Int[Tensor, " batch"]]:
        """The next n tokens, one after the other as they are chosen; each costs the same, however many came before.

        That holds for `nn.AnnaConfig`, `nn.LatestMatchConfig` and `nn.WindowConfig`. Other mechanisms, and layers with
        a `recency`, keep all keys and values and look at them again for each token, so a token costs O(n) or more.
        The model is used as it is: call `eval()` first if that matters. Temperature 0 takes the likeliest token.

        >>> from annattn.nn import AnnaConfig
        >>> config = TransformerConfig(input_vocab=10, target_vocab=10, length=32, dim=16, attention=(AnnaConfig(),))
        >>> model = Transformer(config)
        >>> [token.item() for token in model.generate(torch.tensor([[1, 2]]), 3, temperature=0)]
        [...]
        """
        return generate(self, tokens, n, temperature, top_k, seed)

    def with_attention(self, *attention: AttentionConfig) -> "Transformer":
        """The same weights, shared, under another mechanism: one for all layers, or one per layer."""
        layers = self.config.layers
        if len(attention) not in (1, layers):
            raise InputError(
                "attention", given=f"{len(attention)} mechanisms", expected=f"1, or {layers}: one per layer"
            )
        chosen = _mechanisms(attention * layers if len(attention) == 1 else attention)
        other = _shared(self)
        other.config = replace(self.config, attention=chosen)
        other.blocks = nn.ModuleList(
            block.with_attention(mechanism) for block, mechanism in zip(self._blocks, chosen, strict=True)
        )
        return other

    def first_layers(self, count: int) -> "Transformer":
        """The same weights, shared, without the layers after the first `count`: the read-out follows on those.

        >>> model = Transformer(TransformerConfig(10, 2, length=32, attention=(SoftmaxConfig(),) * 3))
        >>> model.first_layers(2).config.layers
        2
        """
        count = require_count("count", count, most=self.config.layers)
        config = self.config
        other = _shared(self)
        other.config = replace(
            config, attention=config.attention[:count], rotary=config.rotary[:count], recency=config.recency[:count]
        )
        other.blocks = nn.ModuleList(list(other.blocks)[:count])
        return other

    def draw(self, seed: int) -> "Transformer":
        """Draw new hash functions in every layer, in place; mechanisms without any stay as they are."""
        for block in self._blocks:
            block.draw(check_seed(seed))
        return self

    @property
    def drawn(self) -> list[int | None]:
        """The seed of each layer's hash functions; None for a layer that has those of its description."""
        return [block.seed for block in self._blocks]

    @drawn.setter
    def drawn(self, seeds: Sequence[int | None]) -> None:
        for block, seed in zip(self._blocks, seeds, strict=True):
            block.draw(seed)

    @property
    def _blocks(self) -> Sequence["_Block"]:
        return self.blocks  # type: ignore[return-value]


class _Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        width = config.mlp or 4 * config.dim
        self.config, self.layer = config, layer
        self.attention_norm = nn.LayerNorm(config.dim)
        self.query_key_value = nn.Linear(config.dim, 3 * config.dim)
        self.out = nn.Linear(config.dim, config.dim)
        self.mlp_norm = nn.LayerNorm(config.dim)
        self.mlp = nn.Sequential(nn.Linear(config.dim, width), nn.GELU(), nn.Linear(width, config.dim))
        if config.rotary[layer]:
            # At first a rotary layer sees distances more than content: a learned pair of directions, and little else.
            with torch.no_grad():
                self.query_key_value.weight[: 2 * config.dim] *= 0.3
                nn.init.normal_(self.query_key_value.bias[: 2 * config.dim])
        if config.identity_init:
            with torch.no_grad():
                query, key, value = self.query_key_value.weight.split(config.dim)
                nn.init.eye_(value)
                nn.init.eye_(self.out.weight)
                if not config.rotary[layer]:
                    nn.init.eye_(query)
                    nn.init.eye_(key)
        self.mechanism = config.attention[layer]
        self.draw(None)

    def forward(self, x: Tensor, positions: Tensor, key_mask: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        config = self.config
        batch, n, dim = x.shape
        split = self.query_key_value(self.attention_norm(x)).view(batch, n, 3, config.heads, config.head_dim)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        if config.rotary[self.layer]:
            query, key = apply_rotary(query, positions), apply_rotary(key, positions)
        rate, is_causal = config.recency[self.layer], config.is_causal
        if key_mask is not None and not self.mechanism.takes_mask:
            raise InputError(f"key_mask in layer {self.layer}", given="a mask", expected=f"none with {self.mechanism}")
        longest = self.mechanism.largest_length
        if longest is not None and n > longest:
            raise InputError(f"tokens in layer {self.layer}", given=n, expected=f"at most {longest}")
        if cache is not None:
            read = cache.step(query, key, value)
        elif rate:
            read = position_coded(lambda u: self.attend(query, key, u, is_causal, key_mask), value, rate)
        else:
            read = self.attend(query, key, value, is_causal, key_mask)
        x = x + self.out(read.transpose(1, 2).reshape(batch, n, dim))
        return x + self.mlp(self.mlp_norm(x))

    def with_attention(self, mechanism: AttentionConfig) -> "_Block":
        other = _shared(self)
        if mechanism != self.mechanism:
            other._modules.pop("attend", None)  # else its parameters are shared, like all others
        other.mechanism = mechanism
        other.draw(None)
        return other

    def draw(self, seed: int | None) -> None:
        """Bind the mechanism, with hash functions of this seed or of its own; parameters it has already stay."""
        self.seed = seed
        if "attend" not in self._modules:
            bound = self.mechanism.bind(self.config.head_dim, self.layer, seed)
            self.attend = bound.to(self.out.weight).train(self.training) if isinstance(bound, nn.Module) else bound

    def __getstate__(self) -> dict[str, Any]:
        # Hash functions are not written: the seed gives them again.
        return {name: value for name, value in self.__dict__.items() if name != "attend"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.draw(self.seed)


def _shared(module: _M) -> _M:
    """A copy with the same parameters and buffers; what is registered on it from now on, at any depth, is its own."""
    other = copy.copy(module)
    for name, value in vars(other).items():
        if isinstance(value, dict):  # parameters, buffers, and the hooks of every kind
            object.__setattr__(other, name, value.copy())
    object.__setattr__(other, "_modules", {name: child and _shared(child) for name, child in module._modules.items()})
    return other


def _mechanisms(attention: Sequence[object]) -> tuple[AttentionConfig, ...]:
    for one in attention:
        if not isinstance(one, AttentionConfig):
            raise InputError("attention", given=repr(one), expected="descriptions such as AnnaConfig()")
    return tuple(attention)  # type: ignore[arg-type]


def prime_positions(positions: Int[Tensor, " n"], dim: int) -> Float[Tensor, "n dim"]:
    """Cosines and sines at frequencies spread over (0, π), the roots of primes mod 1: there is no last position.

    One step further is one rotation, the same everywhere, so a linear map of a code is the code of the position before.
    Two positions are nearly orthogonal, even neighbours, so hashing tells them apart. The frequencies have no common
    measure, so no distance brings all of them back into phase.

    >>> prime_positions(torch.arange(2), 4).shape
    torch.Size([2, 4])
    """
    turns = torch.tensor(_primes((dim + 1) // 2), device=positions.device, dtype=torch.float64).sqrt() % 1
    angles = positions[:, None].double() * (math.pi * turns)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)[:, :dim].float() * math.sqrt(0.5)


@lru_cache(maxsize=64)
def _primes(count: int) -> list[int]:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found):
            found.append(number)
        number += 1
    return found


def apply_rotary(
    x: Float[Tensor, "batch heads n dim"], positions: Int[Tensor, " n"]
) -> Float[Tensor, "batch heads n dim"]:
    """Each row rotated by its position, at the frequencies of `prime_positions`.

    The inner product of a rotated query and a rotated key depends on the distance of their positions alone.

    >>> apply_rotary(torch.ones(1, 1, 3, 4), torch.arange(3)).square().sum(-1)
    tensor([[[4.0000, 4.0000, 4.0000]]])
    """
    cosine, sine = (prime_positions(positions, x.shape[-1]).to(x.dtype) * math.sqrt(2)).chunk(2, dim=-1)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], dim=-1)
