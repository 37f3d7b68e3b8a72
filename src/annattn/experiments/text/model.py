"""A byte-level language model: windows in every layer, and one far head that meets what looked like the last bytes."""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from annattn.attention import AttentionConfig, BasedConfig, BucketState, HyperConfig
from annattn.attention.anna import anna_mean
from annattn.attention.band import band_softmax
from annattn.attention.collision import sampled_counts
from annattn.attention.latest import latest_chances
from annattn.attention.pairs import sampled_pairs, with_noise
from annattn.checks import keep_counts, keep_number, require_choice, require_count, require_number
from annattn.errors import InputError
from annattn.kernels import hash_pair, newest, newest_attention
from annattn.lsh import Hasher, Hyperplane
from annattn.lsh.rows import unit_rows
from annattn.nn.anna_attention import rotate
from annattn.seeds import check_seed

__all__ = ["BYTES", "FAR", "Far", "FarState", "NearState", "TextConfig", "TextModel", "TextState"]

BYTES = 256
Far = Literal["anna", "latest_match", "softmax", "window", "hyper", "based"]
FAR = get_args(Far)
_BETA = 16.0  # of softmax, at first: about as sharp as 16 hyperplane hashes
_OTHERS: dict[str, AttentionConfig] = {
    "hyper": HyperConfig(block=64, columns=64, exact_below=64),
    "based": BasedConfig(feature_dim=16),
}


@dataclass(frozen=True)
class TextConfig:
    """Sizes of a text model.

    - window: how many of the last bytes every layer attends to by softmax, positions by rotation.
    - far: what the far head is: "anna", "latest_match", "softmax" over all earlier bytes, "hyper" and "based" for
      HyperAttention and Based of the same queries and keys, or "window", which has the same parameters and sees no
      further than the others.
    - far_layer: the layer it is in.
    - grams: how many of the last bytes its queries and keys are made of; decay: how much less each earlier one counts
      at first.
    - key_dim, value_dim: widths of the far head.
    - tables, hashes, seed: ℓ, z and the draw that it reads with.

    >>> TextConfig(dim=64, heads=2).head_dim
    32
    """

    dim: int = 128
    layers: int = 3
    heads: int = 4
    window: int = 32
    far: Far = "anna"
    far_layer: int = 1
    grams: int = 8
    decay: float = 0.75
    key_dim: int = 32
    value_dim: int = 64
    tables: int = 16
    hashes: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = "dim", "layers", "heads", "window", "grams", "key_dim", "value_dim", "tables", "hashes"
        keep_counts(self, *sizes, most=2**16)
        # Whatever a file says: so many functions are drawn within seconds.
        require_count("tables times hashes", self.tables * self.hashes, most=2**16)
        keep_counts(self, "far_layer", least=0, most=self.layers - 1)
        require_choice("far", self.far, FAR)
        keep_number(self, "decay", "a number from 0 to 1", low=0, high=1)
        object.__setattr__(self, "seed", check_seed(self.seed))
        if self.dim % (2 * self.heads):
            raise InputError("dim", given=self.dim, expected=f"an even width for each of {self.heads} heads")

    @property
    def head_dim(self) -> int:
        """Width of a near head."""
        return self.dim // self.heads

    @property
    def is_hashed(self) -> bool:
        """Whether the far head has hash functions."""
        return self.far in ("anna", "latest_match")


@dataclass
class NearState:
    """Keys and values of the last bytes of a layer."""

    key: Tensor | None = None
    value: Tensor | None = None

    def extend(self, key: Tensor, value: Tensor, window: int) -> tuple[Tensor, Tensor]:
        """All that new queries may see; what later ones may is kept."""
        if self.key is not None and self.value is not None:
            key, value = torch.cat([self.key, key], 2), torch.cat([self.value, value], 2)
        kept = max(key.shape[2] - window + 1, 0)
        self.key, self.value = key[:, :, kept:].clone(), value[:, :, kept:].clone()
        return key, value


@dataclass
class FarState:
    """What the far head has seen: buckets, or for softmax all keys and values; and the key of the last byte."""

    buckets: BucketState | None
    last: Tensor | None = None
    everything: NearState | None = None


@dataclass
class TextState:
    """What a model remembers of the bytes it has read: windows, buckets, and the last few bytes themselves."""

    near: list[NearState]
    far: FarState
    recent: Tensor
    position: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        stores = [*self.near, *([self.far.everything] if self.far.everything else [])]
        kept = sum(x.nbytes for one in stores for x in (one.key, one.value) if x is not None)
        return kept + (self.far.buckets.nbytes if self.far.buckets is not None else 0)


class TextModel(nn.Module):
    """Bytes in, logits of the next byte out.

    The far head's query and key of a byte are the same vector: the sum of a learned vector per place and byte over the
    last `grams` bytes. So a query meets the equals of its own context in every table, and the more of the last bytes
    agree, the more tables. It reads the value of the byte that *followed* what it met. What it reads is
    Σ_j c_ij v_j / max(ℓ, Σ_j c_ij): little met is little read.

    In `train()` the far head takes the form `far_form` sets, over all pairs or in linear time. In `eval()` it hashes.

    >>> model = TextModel(TextConfig(dim=32, layers=2, heads=2, far_layer=1)).eval()
    >>> text = torch.randint(0, 256, (1, 100))
    >>> state = model.new_state()
    >>> parts = [model(text[:, :60], state), model(text[:, 60:], state)]
    >>> torch.testing.assert_close(torch.cat(parts, 1), model(text), rtol=1e-3, atol=1e-4)
    """

    def __init__(self, config: TextConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # the caller's random state is left as it was
            torch.manual_seed(check_seed(seed))
            self.bytes = nn.Embedding(BYTES, config.dim)
            nn.init.normal_(self.bytes.weight, std=0.5)
            self.blocks = nn.ModuleList(_Block(config, layer == config.far_layer) for layer in range(config.layers))
            self.norm = nn.LayerNorm(config.dim)
            self.head = nn.Linear(config.dim, BYTES)
        self.reads_with(config.tables, config.hashes, config.seed)
        self.far_form(0.0, self.hasher)

    def reads_with(self, tables: int, hashes: int, seed: int = 0) -> "TextModel":
        """Read with so many tables and hashes from now on; longer texts need more hashes."""
        self.config = replace(self.config, tables=tables, hashes=hashes, seed=seed)
        self.hasher = Hyperplane(self.config.key_dim).sample(tables=tables, hashes=hashes, seed=seed)
        return self

    def far_form(self, noise: float, hasher: Hasher, *, linear: bool = False) -> None:
        """Train with these hash functions and this noise, see `sampled_collision_attention`.

        If `linear`, a hashed head looks at what meets in these tables alone, which is noise 1 in linear time.
        """
        self.noise = require_number("noise", noise, "a number from 0 to 1", low=0, high=1)
        self.drawn, self.linear = hasher, linear

    def new_state(self, batch: int = 1) -> TextState:
        """Nothing read yet."""
        config, buckets = self.config, None
        if config.is_hashed:
            keep = "sum" if config.far == "anna" else "newest"
            buckets = BucketState(self.hasher, value_dim=config.value_dim, batch=batch, keep=keep)
        everything = NearState() if config.far == "softmax" or config.far in _OTHERS else None
        return TextState(
            [NearState() for _ in range(config.layers)],
            FarState(buckets, everything=everything),
            torch.zeros(batch, 0, dtype=torch.int64),
        )

    def forward(self, tokens: Int[Tensor, "batch n"], state: TextState | None = None) -> Float[Tensor, "batch n bytes"]:
        """Logits of the byte after each; with a state, of text that goes on where it ended."""
        if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.dtype != torch.int64:
            given = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
            raise InputError("tokens", given=given, expected="int64 of shape (batch, n), below 256")
        if state is None and not self.training:
            state = self.new_state(len(tokens))
        first = 0 if state is None else state.position
        places = torch.arange(first, first + tokens.shape[1])
        context = tokens if state is None else torch.cat([state.recent, tokens], 1)
        x = self.bytes(tokens)
        for layer, block in enumerate(self.blocks):
            x = block(x, places, context, self, state, layer)
        if state is not None:
            state.position += tokens.shape[1]
            state.recent = context[:, max(context.shape[1] - self.config.grams + 1, 0) :].clone()
        return self.head(self.norm(x))


class _Block(nn.Module):
    """x + near(norm(x)) + far(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, config: TextConfig, has_far: bool) -> None:
        super().__init__()
        self.config = config
        self.attention_norm = nn.LayerNorm(config.dim)
        self.query_key_value = nn.Linear(config.dim, 3 * config.dim)
        self.out = nn.Linear(config.dim, config.dim)
        self.far = _FarHead(config) if has_far else None
        self.mlp_norm = nn.LayerNorm(config.dim)
        self.mlp = nn.Sequential(
            nn.Linear(config.dim, 4 * config.dim), nn.GELU(), nn.Linear(4 * config.dim, config.dim)
        )

    def forward(
        self, x: Tensor, places: Tensor, context: Tensor, model: TextModel, state: TextState | None, layer: int
    ) -> Tensor:
        config, (batch, n, dim) = self.config, x.shape
        inner = self.attention_norm(x)
        split = self.query_key_value(inner).view(batch, n, 3, config.heads, config.head_dim).permute(2, 0, 3, 1, 4)
        query, key, value = rotate(split[0], places), rotate(split[1], places), split[2]
        if state is not None:
            key, value = state.near[layer].extend(key, value, config.window)
        read = band_softmax(query, key, value, window=config.window).mean
        added = self.out(read.transpose(1, 2).reshape(batch, n, dim))
        if self.far is not None:
            added = added + self.far(inner, context, model, state)
        x = x + added
        return x + self.mlp(self.mlp_norm(x))


class _FarHead(nn.Module):
    """One head whose keys are shifted by one place: it meets what looked like now, and reads what came next."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        scale = torch.tensor([config.decay**place for place in range(config.grams)])[:, None, None]
        self.sketch = nn.Parameter(scale * torch.randn(config.grams, BYTES, config.key_dim))
        self.value = nn.Linear(config.dim, config.value_dim)
        self.out = nn.Linear(config.value_dim, config.dim)
        is_sharp = config.far == "softmax" or config.far in _OTHERS
        self.sharpness = nn.Parameter(torch.tensor([math.log(_BETA), 0.0])) if is_sharp else None
        self.other = _OTHERS[config.far].bind(config.key_dim) if config.far in _OTHERS else None

    def forward(self, x: Tensor, context: Tensor, model: TextModel, state: TextState | None) -> Tensor:
        n, far = x.shape[1], self.config.far
        row = self._sketch(context)[:, context.shape[1] - n :][:, None]
        value = self.value(x)[:, None]
        if far == "window":
            read = self._window(row, value, state)
        elif state is None:
            # The first byte has no key before it.
            trained = self._meetings if model.linear and self.config.is_hashed else self._all_pairs
            read = pad(trained(row[:, :, 1:], row[:, :, :-1], value[:, :, 1:], model), (0, 0, 1, 0))
        else:
            read = self._go_on(row, value, state.far)
        return self.out(read[:, 0])

    def _sketch(self, context: Tensor) -> Tensor:
        """Σ_s vector(s, byte s places back), with nothing before the first byte."""
        total = torch.nn.functional.embedding(context, self.sketch[0])
        for place in range(1, min(self.config.grams, context.shape[1])):
            earlier = torch.nn.functional.embedding(context[:, :-place], self.sketch[place])
            total = total + pad(earlier, (0, 0, place, 0))
        return total

    def _window(self, row: Tensor, value: Tensor, state: TextState | None) -> Tensor:
        key = row
        if state is not None:
            if state.far.everything is None:
                state.far.everything = NearState()
            key, value = state.far.everything.extend(row, value, self.config.window)
        return band_softmax(unit_rows(row), unit_rows(key), value, window=self.config.window, scale=_BETA).mean

    def _meetings(self, query: Tensor, key: Tensor, value: Tensor, model: TextModel) -> Tensor:
        """What is trained in linear time: pairs that do not meet have no part in it, nor in the gradient."""
        hasher = model.drawn
        if self.config.far == "anna":
            mean, count = anna_mean(query, key, value, hasher, True, None, None, "linear", counted=True)
            return mean * (count / count.clamp(min=hasher.tables))[..., None]
        positions = newest(*hash_pair(hasher, query, key), hasher.dense_buckets)
        share = (positions >= 0).sum(-1, keepdim=True) / hasher.tables
        return share * newest_attention(query, key, value, positions, hasher, "linear")

    def _all_pairs(self, query: Tensor, key: Tensor, value: Tensor, model: TextModel) -> Tensor:
        """What is trained: quadratic in n."""
        if self.sharpness is not None:
            return self._softmax(query, key, value)
        pairs = sampled_pairs(query, key, value, model.drawn, model.noise, True, None)
        tables = model.drawn.tables
        if self.config.far == "anna":
            counts = sampled_counts(pairs, tables, model.noise)
            return pairs.read(counts, divisor=counts.sum(-1, keepdim=True).clamp(min=tables))
        hits = pairs.newest_hits() / tables if model.noise else pairs.expected.chances
        return pairs.read(with_noise(latest_chances(pairs.expected.chances), hits, model.noise))

    def _softmax(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """e^(β(cos − 1)) over their sum and a constant, both learned: as above, little met is little read.

        The other mechanisms take the same learned β, and have no such constant.
        """
        assert self.sharpness is not None
        beta, more = self.sharpness.exp()
        if self.other is not None:
            scale = (beta * self.config.key_dim**0.5).sqrt()  # they divide by √d
            return self.other(scale * unit_rows(query), scale * unit_rows(key), value, True, None)
        weights = (beta * (unit_rows(query) @ unit_rows(key).mT - 1)).exp().tril(key.shape[2] - query.shape[2])
        return (weights @ value) / (weights.sum(-1, keepdim=True) + more)

    def _go_on(self, row: Tensor, value: Tensor, state: FarState) -> Tensor:
        """Read on: linear in n for hashed heads."""
        is_first, n = state.last is None, row.shape[2]
        last = torch.zeros_like(row[:, :, :1]) if state.last is None else state.last
        key = torch.cat([last, row[:, :, :-1]], 2)
        state.last = row[:, :, -1:].clone()
        if state.buckets is None:
            assert state.everything is not None
            if self.config.far == "hyper" and not is_first:
                raise InputError(
                    "state", given="text that goes on", expected="all of it at once: HyperAttention sorts whole texts"
                )
            key, value = state.everything.extend(key[:, :, is_first:], value[:, :, is_first:], 2**62)
            return self._softmax(row, key, value)
        there = torch.ones(len(row), n, dtype=torch.bool)
        there[:, 0] = not is_first
        found, tables = state.buckets.scan(row, key, value, there), state.buckets.hasher.tables
        return (found.total / found.count.clamp(min=tables)[..., None]).to(value.dtype)
