"""Which attention a layer uses: one frozen description a mechanism, and the dict `ATTENTIONS` of them all.

A description is data (it goes into a checkpoint's JSON), and `bind` makes it a function of queries, keys and values.
Every mechanism looks at queries and keys by their directions alone, low rank and exact match excepted, so weights
trained with one can run with another.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from annattn.attention import (
    anna_attention,
    exact_match_attention,
    expected_collision_attention,
    expected_latest_attention,
    latest_match_attention,
    low_rank_attention,
    sampled_collision_attention,
    sampled_latest_attention,
    softmax_attention,
)
from annattn.attention.position_coded import position_coded
from annattn.checks import require_count
from annattn.errors import InputError
from annattn.kernels.slopes import GRADIENTS
from annattn.lsh import CrossPolytope, Hasher, HashFamily, Hyperplane
from annattn.seeds import check_seed, derive_seed

__all__ = [
    "ANGULAR",
    "ATTENTIONS",
    "AnnaConfig",
    "Attend",
    "AttentionConfig",
    "ExactMatchConfig",
    "ExpectedCollisionConfig",
    "ExpectedLatestConfig",
    "LatestMatchConfig",
    "LowRankConfig",
    "SampledCollisionConfig",
    "SampledLatestConfig",
    "SoftmaxConfig",
    "angular",
    "read_attention",
    "write_attention",
]

Attend = Callable[[Tensor, Tensor, Tensor, bool, Tensor | None], Tensor]
Gradient = Literal["linear", "exact", "none"]

# The families whose collision probability is a function of the angle, by the name a description calls them.
ANGULAR: dict[str, Callable[[int], HashFamily]] = {
    "hyperplane": Hyperplane,
    "cross_polytope": lambda dim: CrossPolytope(dim, rotation="structured" if dim >= 16 else "dense"),
}


@dataclass(frozen=True)
class AttentionConfig(ABC):
    """What one layer attends with; `needs_causal` says that the mechanism has no form that sees the future."""

    needs_causal: ClassVar[bool] = False

    def bind(self, head_dim: int, layer: int, seed: int | None = None, recency: float = 0.0) -> Attend:
        """The mechanism as a function (query, key, value, is_causal, key_mask).

        `seed` overrides the description's; layers with the same description draw different hash functions. `recency`
        is the rate of `position_coded` values.
        """
        attend = self._attend(head_dim, layer, seed)
        if not recency:
            return attend
        return lambda q, k, v, is_causal, mask: position_coded(lambda u: attend(q, k, u, is_causal, mask), v, recency)

    @abstractmethod
    def _attend(self, head_dim: int, layer: int, seed: int | None) -> Attend:
        """The same with values as they are."""


@dataclass(frozen=True)
class SoftmaxConfig(AttentionConfig):
    """The paper's trainable surrogate: softmax(β ⟨q, k⟩) of unit vectors.

    `dropout` of the weights, for training, is drawn by the seed, as hash functions are.

    >>> SoftmaxConfig(beta=0.1)
    SoftmaxConfig(beta=0.1, dropout=0.0)
    """

    beta: float = 1.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("beta", "dropout"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int | float):
                raise InputError(name, given=repr(getattr(self, name)), expected="a number")
        empty = torch.zeros(1, 1, 0, 1)
        softmax_attention(empty, empty, empty, beta=self.beta, dropout=self.dropout)

    def _attend(self, head_dim: int, layer: int, seed: int | None) -> Attend:
        drawn = derive_seed(0 if seed is None else seed, layer)

        def attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
            options: dict[str, Any] = {"beta": self.beta, "is_causal": is_causal, "key_mask": mask}
            q, k = q.to(v.dtype), k.to(v.dtype)
            if not self.dropout:
                return softmax_attention(q, k, v, **options)
            with torch.random.fork_rng(devices=[v.device] if v.is_cuda else []):
                torch.manual_seed(drawn)
                return softmax_attention(q, k, v, **options, dropout=self.dropout)

        return attend


@dataclass(frozen=True)
class _Hashed(AttentionConfig):
    family: str = "hyperplane"
    tables: int = 8
    hashes: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        angular(self.family, 2)
        require_count("tables", self.tables)
        require_count("hashes", self.hashes)
        check_seed(self.seed)

    def _hasher(self, head_dim: int, layer: int, seed: int | None) -> Hasher:
        drawn = derive_seed(self.seed if seed is None else seed, layer)
        return angular(self.family, head_dim).sample(tables=self.tables, hashes=self.hashes, seed=drawn)


@dataclass(frozen=True)
class _Trainable(_Hashed):
    gradient: Gradient = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gradient not in GRADIENTS:
            raise InputError("gradient", given=repr(self.gradient), expected=f"one of {GRADIENTS}")


@dataclass(frozen=True)
class AnnaConfig(_Trainable):
    """`anna_attention` with ℓ = `tables` and z = `hashes`.

    >>> AnnaConfig(tables=32, hashes=4).family
    'hyperplane'
    """

    def _attend(self, head_dim: int, layer: int, seed: int | None) -> Attend:
        hasher, gradient = self._hasher(head_dim, layer, seed), self.gradient
        return lambda q, k, v, is_causal, mask: anna_attention(
            q, k, v, hasher, is_causal=is_causal, key_mask=mask, gradient=gradient
        )


@dataclass(frozen=True)
class LatestMatchConfig(_Trainable):
    """`latest_match_attention`: beyond the paper, causal, each bucket keeps its newest value.

    >>> LatestMatchConfig().needs_causal
    True
    """

    needs_causal: ClassVar[bool] = True

    def _attend(self, head_dim: int, layer: int, seed: int | None) -> Attend:
        hasher, gradient = self._hasher(head_dim, layer, seed), self.gradient
        return lambda q, k, v, is_causal, mask: latest_match_attention(
            q, k, v, hasher, key_mask=mask, gradient=gradient
        )


@dataclass(frozen=True)
class SampledCollisionConfig(_Hashed):
    """`sampled_collision_attention`, to train what `AnnaConfig` will run: at noise 1 they are the same numbers.

    >>> SampledCollisionConfig(tables=4, noise=0.5).noise
    0.5
    """

    noise: float = 1.0

    def _attend(self, head_dim: int, layer: int, seed: int | None) -> Attend:
        hasher, noise = self._hasher(head_dim, layer, seed), self.noise
        return lambda q, k, v, is_causal, mask: sampled_collision_attention(
            q, k, v, hasher, noise=noise, is_causal=is_causal, key_mask=mask
        )


@dataclass(frozen=True)
class SampledLatestConfig(_Hashed):
    """`sampled_latest_attention`, to train what `LatestMatchConfig` will run.

    >>> SampledLatestConfig().needs_causal
    True
    """

    noise: float = 1.0
    needs_causal: ClassVar[bool] = True

    def _attend(self, head_dim: int, layer: int, seed: int | None) -> Attend:
        hasher, noise = self._hasher(head_dim, layer, seed), self.noise
        return lambda q, k, v, is_causal, mask: sampled_latest_attention(q, k, v, hasher, noise=noise, key_mask=mask)


@dataclass(frozen=True)
class ExactMatchConfig(AttentionConfig):
    """`exact_match_attention`: queries and keys that are equal, bit for bit.

    >>> ExactMatchConfig()
    ExactMatchConfig()
    """

    def _attend(self, head_dim: int, layer: int, seed: int | None) -> Attend:
        return lambda q, k, v, is_causal, mask: exact_match_attention(q, k, v, is_causal=is_causal, key_mask=mask)


@dataclass(frozen=True)
class ExpectedCollisionConfig(AttentionConfig):
    """`expected_collision_attention`: ANNA with infinitely many tables.

    >>> ExpectedCollisionConfig(hashes=4).hashes
    4
    """

    family: str = "hyperplane"
    hashes: int = 8

    def __post_init__(self) -> None:
        angular(self.family, 2)
        require_count("hashes", self.hashes)

    def _attend(self, head_dim: int, layer: int, seed: int | None) -> Attend:
        family = angular(self.family, head_dim)
        return lambda q, k, v, is_causal, mask: expected_collision_attention(
            q, k, v, family=family, hashes=self.hashes, is_causal=is_causal, key_mask=mask
        )


@dataclass(frozen=True)
class ExpectedLatestConfig(AttentionConfig):
    """`expected_latest_attention`: what `LatestMatchConfig` gives on average.

    >>> ExpectedLatestConfig(hashes=4).needs_causal
    True
    """

    family: str = "hyperplane"
    hashes: int = 8
    needs_causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        angular(self.family, 2)
        require_count("hashes", self.hashes)

    def _attend(self, head_dim: int, layer: int, seed: int | None) -> Attend:
        family = angular(self.family, head_dim)
        return lambda q, k, v, is_causal, mask: expected_latest_attention(
            q, k, v, family=family, hashes=self.hashes, key_mask=mask
        )


@dataclass(frozen=True)
class LowRankConfig(AttentionConfig):
    """`low_rank_attention` with the features elu(x) + 1 of queries and keys, divided by the sum of the weights.

    >>> LowRankConfig()
    LowRankConfig()
    """

    def _attend(self, head_dim: int, layer: int, seed: int | None) -> Attend:
        return _linear_attention


ATTENTIONS: dict[str, type[AttentionConfig]] = {
    "softmax": SoftmaxConfig,
    "anna": AnnaConfig,
    "latest_match": LatestMatchConfig,
    "exact_match": ExactMatchConfig,
    "expected_collision": ExpectedCollisionConfig,
    "expected_latest": ExpectedLatestConfig,
    "sampled_collision": SampledCollisionConfig,
    "sampled_latest": SampledLatestConfig,
    "low_rank": LowRankConfig,
}
"""Every description by the name it has in a checkpoint."""


def write_attention(config: AttentionConfig) -> dict[str, Any]:
    """A description as JSON-ready data.

    >>> write_attention(SoftmaxConfig(beta=2.0))
    {'mechanism': 'softmax', 'beta': 2.0, 'dropout': 0.0}
    """
    (name,) = (name for name, kind in ATTENTIONS.items() if kind is type(config))
    return {"mechanism": name, **asdict(config)}


def read_attention(data: dict[str, Any]) -> AttentionConfig:
    """The inverse of `write_attention`; what it does not know is an error.

    >>> read_attention({"mechanism": "softmax", "beta": 2.0})
    SoftmaxConfig(beta=2.0, dropout=0.0)
    """
    options = dict(data)
    name = options.pop("mechanism", None)
    if name not in ATTENTIONS:
        raise InputError("mechanism", given=repr(name), expected=f"one of {', '.join(ATTENTIONS)}")
    kind = ATTENTIONS[name]
    unknown = sorted(set(options) - {field.name for field in fields(kind)})
    if unknown:
        raise InputError(f"options of {name}", given=unknown, expected=f"those of {kind.__name__}")
    return kind(**options)


def angular(name: str, dim: int) -> HashFamily:
    """The family of this name for heads of this width.

    >>> angular("hyperplane", 4)
    Hyperplane(dim=4)
    """
    if name not in ANGULAR:
        raise InputError("family", given=repr(name), expected=f"one of {', '.join(ANGULAR)}")
    return ANGULAR[name](dim)


def _linear_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
    query, key = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    summed = low_rank_attention(query, key, values, is_causal=is_causal, key_mask=mask)
    return summed[..., :-1] / summed[..., -1:].clamp(min=1e-6)
