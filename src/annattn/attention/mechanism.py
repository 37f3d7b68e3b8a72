"""What a mechanism is: a function, its literal weight matrix, and the description by which a layer asks for it.

A description is data (a checkpoint stores it as JSON), and `bind` makes it a function of queries, keys and values.
Every mechanism but low rank, exact match and Reformer looks only at the directions of queries and keys, so weights
trained with one can run with another.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from torch import Tensor

from annattn.checks import LARGEST_COUNT, keep_counts, keep_number, require_choice
from annattn.kernels import GRADIENTS
from annattn.lsh import CrossPolytope, Hasher, HashFamily, Hyperplane
from annattn.seeds import check_seed, derive_seed

__all__ = [
    "ANGULAR",
    "Attend",
    "AttentionConfig",
    "Causal",
    "ExpectedConfig",
    "Gradient",
    "HashedConfig",
    "Mechanism",
    "SeededConfig",
    "TrainableConfig",
    "angular",
]

Attend = Callable[[Tensor, Tensor, Tensor, bool, Tensor | None], Tensor]
"""A bound mechanism: (query, key, value, is_causal, key_mask) to the output."""

_LARGEST = 2**16  # of what is drawn for a layer: a description read from a file must not take all memory

Causal = Literal["optional", "always", "never"]
Gradient = Literal["linear", "exact", "none"]

ANGULAR: dict[str, Callable[[int], HashFamily]] = {
    "hyperplane": Hyperplane,
    "cross_polytope": lambda dim: CrossPolytope(dim, rotation="structured" if dim >= 16 else "dense"),
}
"""The families whose collision probability is a function of the angle, by the name a description calls them."""


def angular(name: str, dim: int) -> HashFamily:
    """The family of this name for heads of this width.

    >>> angular("hyperplane", 4)
    Hyperplane(dim=4)
    """
    return ANGULAR[require_choice("family", name, ANGULAR)](dim)


@dataclass(frozen=True)
class AttentionConfig(ABC):
    """What one layer attends with.

    - causal: whether a causal form is "optional", there is no other ("always"), or there is none ("never").
    - takes_mask: whether keys can be left out.
    - shared_query_key: queries serve as keys too, and the layer's keys are not looked at.

    A subclass is a dataclass. Its whole numbers are counts, at least 1, or 0 if `may_be_zero` has their name; those of
    something that `bind` draws are `drawn`, and at most 2^16. Its other numbers are finite.
    """

    causal: ClassVar[Causal] = "optional"
    takes_mask: ClassVar[bool] = True
    shared_query_key: ClassVar[bool] = False
    may_be_zero: ClassVar[tuple[str, ...]] = ()
    drawn: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int and field.name != "seed":
                most = _LARGEST if field.name in self.drawn else LARGEST_COUNT
                keep_counts(self, field.name, least=0 if field.name in self.may_be_zero else 1, most=most)
            elif field.type is float:
                keep_number(self, field.name, "a finite number")

    @property
    def largest_length(self) -> int | None:
        """The most tokens a layer can see; None if there is no such number."""
        return None

    @abstractmethod
    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """The mechanism as a function (query, key, value, is_causal, key_mask).

        `seed` overrides the description's. Layers with the same description draw different hash functions. A mechanism
        with parameters of its own returns a torch module: they are then trained and saved with the layer's.
        """


class SeededConfig(AttentionConfig):
    """A mechanism that draws at random, for each layer anew. A subclass has a `seed`."""

    seed: int  # no field: a subclass says where among its own it stands

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "seed", check_seed(self.seed))

    def layer_seed(self, layer: int, seed: int | None) -> int:
        """What one layer draws from; `seed` overrides the description's."""
        return derive_seed(self.seed if seed is None else seed, layer)


@dataclass(frozen=True)
class HashedConfig(SeededConfig):
    """A mechanism with hash functions: ℓ = `tables`, z = `hashes`."""

    drawn: ClassVar[tuple[str, ...]] = ("tables", "hashes")
    family: str = "hyperplane"
    tables: int = 8
    hashes: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        angular(self.family, 2)

    @staticmethod
    def options(dim: int) -> dict[str, Any]:
        """Sensible options of the function, for `Mechanism`."""
        return {"hasher": Hyperplane(dim).sample(tables=8, hashes=4)}

    def hasher(self, head_dim: int, layer: int, seed: int | None) -> Hasher:
        """The hash functions of one layer."""
        drawn = self.layer_seed(layer, seed)
        return angular(self.family, head_dim).sample(tables=self.tables, hashes=self.hashes, seed=drawn)


@dataclass(frozen=True)
class TrainableConfig(HashedConfig):
    """A hashed mechanism whose queries and keys get a gradient."""

    gradient: Gradient = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("gradient", self.gradient, GRADIENTS)


@dataclass(frozen=True)
class ExpectedConfig(AttentionConfig):
    """A mechanism by collision probabilities of z = `hashes` hash functions, of which none is drawn."""

    family: str = "hyperplane"
    hashes: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        angular(self.family, 2)

    @staticmethod
    def options(dim: int) -> dict[str, Any]:
        """Sensible options of the function, for `Mechanism`."""
        return {"family": Hyperplane(dim), "hashes": 4}


@dataclass(frozen=True)
class Mechanism:
    """All there is to know of a mechanism; the shared tests, `nn` and checkpoints read it from `MECHANISMS`.

    - attend: the public function, called (query, key, value, key_mask=…, is_causal=…, **options).
    - weights: the matrix w_ij of one head, literally; called (query, key, seen, **options).
    - config: the description of a layer.
    - options: sensible options for a head dimension.
    - weights_need: what else decides the weights and is passed to `weights` by name: "value", "is_causal".
    - by_angle: weights depend on angles, which for nearly equal rows the cosine tells to √eps only.
    """

    attend: Callable[..., Tensor]
    weights: Callable[..., Tensor]
    config: type[AttentionConfig]
    options: Callable[[int], dict[str, Any]]
    by_angle: bool = False
    weights_need: tuple[str, ...] = ()
