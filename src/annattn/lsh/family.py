"""What a hash family is: Definition "Locality Sensitive Hashing" as an interface."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from annattn.checks import keep_counts, require_count, require_flag
from annattn.errors import InputError
from annattn.lsh.hasher import Hasher, half_keys_for

__all__ = ["HashFamily", "Sensitivity", "unit_angle"]

_FORWARD = _functorch.TransformType.Jvp
_NEAR = 0.9999  # a cosine beyond it has the slope of this one
_MOST = 2**28  # coordinates of all functions in one drawing: 2 GiB, and some seconds


@dataclass(frozen=True)
class Sensitivity:
    """The family is (r, cr, p1, p2)-sensitive, with quality ρ = log(1/p1) / log(1/p2).

    >>> Sensitivity(radius=0.5, far=1.0, p1=0.5, p2=0.25).quality
    0.5
    """

    radius: float
    far: float
    p1: float
    p2: float

    @property
    def quality(self) -> float:
        """The paper's ρ: 0 when near pairs always or far pairs never collide, 1 when both collide alike."""
        if self.p1 >= 1 or self.p2 <= 0:
            return 0.0
        if self.p1 <= 0 or self.p2 >= 1:
            return math.inf
        return math.log(self.p1) / math.log(self.p2)


@dataclass(frozen=True)
class HashFamily(ABC):
    """A distribution ℋ over hash functions h: ℝ^dim → U; `sample` draws the ℓ·z functions of a `Hasher`."""

    dim: int

    def __post_init__(self) -> None:
        keep_counts(self, "dim")

    @property
    @abstractmethod
    def values(self) -> int | None:
        """How many values one hash function takes, |U|; None when there is no bound."""

    @property
    def digits_per_hash(self) -> int:
        """How many integers write down one hash value."""
        return 1

    @abstractmethod
    def collision_probability(self, distance: float) -> float:
        """Pr[h(x) = h(y)] over one hash function for x, y at this Euclidean distance."""

    @abstractmethod
    def draw(self, random: np.random.RandomState, functions: int) -> tuple[np.ndarray, ...]:
        """Parameters of this many independent hash functions, the functions along the first axis."""

    @abstractmethod
    def evaluate(self, parameters: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        """Hash values of `rows` (n, dim) as int64 digits (n, functions · digits_per_hash)."""

    def log_slope(self, cosine: Tensor) -> Tensor | None:
        """The derivative of log p by the cosine, for one hash, where p is a function of the cosine; else None."""
        return None

    def log_probability(self, cosine: Tensor) -> Tensor | None:
        """The log of one hash's collision probability, where that is a function of the cosine; else None.

        Its derivative is `log_slope`, and near ±1, where that has a pole, the slope at ±0.9999.

        >>> import annattn as aa
        >>> aa.lsh.Hyperplane(8).log_probability(torch.tensor([1.0, 0.0])).exp()
        tensor([1.0000, 0.5000])
        """
        nothing = torch.zeros(0, device="cpu")
        if self._log_values(nothing) is None or self.log_slope(nothing) is None:
            return None
        if torch.compiler.is_compiling():  # which cannot follow the other, and refuses second derivatives itself
            known = cosine.detach()
            value, slope = self._log_values(known), self.log_slope(known.clamp(-_NEAR, _NEAR))
            assert value is not None
            assert slope is not None
            return value + slope * (cosine - known)
        forward = [one for one in _functorch.get_interpreter_stack() or () if one.key() == _FORWARD]
        if len(forward) > 1:
            raise InputError(
                "collision probabilities",
                given="a call inside forward-mode differentiation of forward-mode differentiation",
                expected="one of them",
                hint="torch.func.hessian takes one of each kind",
            )
        return _LogProbability.apply(cosine, self)  # pyright: ignore[reportReturnType]

    def _log_values(self, cosine: Tensor) -> Tensor | None:
        """The numbers of `log_probability`, without a derivative."""
        return None

    @property
    def linear_slope(self) -> float:
        """One number to stand for `log_slope` everywhere: its value at the right angle, or a better one."""
        slope = self.log_slope(torch.zeros(1, dtype=torch.float64, device="cpu"))
        return 0.0 if slope is None else slope.item()

    def hashable(self, rows: Tensor) -> Tensor:
        """Which of `rows` (n, dim) have a bucket: those without NaN or infinity."""
        return torch.isfinite(rows).all(-1)

    @property
    def accepted(self) -> str:
        """What `accepts` accepts, in words."""
        return "a floating-point dtype"

    def accepts(self, dtype: torch.dtype) -> bool:
        """Whether rows of this dtype can be hashed."""
        return dtype.is_floating_point

    def check_rows(self, x: Tensor) -> None:
        """Raise InputError unless these are rows (…, n, dim) of a dtype the family accepts."""
        if _functorch.is_batchedtensor(x):
            raise InputError(
                "rows to hash",
                given="rows inside torch.vmap, which hides the numbers that decide on a bucket",
                expected="rows outside of it",
                hint="make the mapped axis part of the batch",
            )
        if x.ndim < 2 or x.shape[-1] != self.dim:
            raise InputError(
                "rows to hash",
                given=f"shape {tuple(x.shape)}",
                expected=f"(..., n, {self.dim})",
                hint=f"they are hashed by {self}",
            )
        if not self.accepts(x.dtype):
            raise InputError("rows to hash", given=x.dtype, expected=self.accepted, hint="call .float()")

    def sensitivity(self, radius: float, approximation: float) -> Sensitivity:
        """The (r, cr, p1, p2) of the paper's definition at this radius r and approximation factor c.

        >>> import annattn as aa
        >>> aa.lsh.Hyperplane(8).sensitivity(radius=0.1, approximation=10).p2
        0.666...
        """
        if not radius >= 0:
            raise InputError("radius", given=radius, expected="a number of at least 0")
        if not approximation > 1:
            raise InputError("approximation", given=approximation, expected="a factor c greater than 1")
        far = radius * approximation if radius else 0.0  # also for c → ∞, as in EM Attention
        return Sensitivity(radius, far, self.collision_probability(radius), self.collision_probability(far))

    def quality(self, radius: float, approximation: float) -> float:
        """The paper's ρ = log(1/p1) / log(1/p2) at this radius and approximation factor.

        >>> import annattn as aa
        >>> round(aa.lsh.Euclidean(8, width=4.0).quality(radius=1.0, approximation=2.0), 3)
        0.449
        """
        return self.sensitivity(radius, approximation).quality

    def sample(self, *, tables: int, hashes: int, seed: int = 0, heads: int = 1, shared: bool = False) -> Hasher:
        """Draw g_1 … g_ℓ, each the concatenation of z functions of the family; the seed decides everything.

        `heads` greater than 1 draws that many times: key head h of an attention call is hashed by draw h.

        >>> import annattn as aa
        >>> hasher = aa.lsh.Hyperplane(4).sample(tables=2, hashes=3, seed=0)
        >>> hasher(torch.ones(5, 4)).shape
        torch.Size([5, 2])

        `shared=True` draws fewer functions: u half-keys of z/2 functions each, and every table is another pair of them,
        so that u(u − 1)/2 tables take u·z/2 functions and as much less hashing. Tables then depend on each other: the
        mean number of meetings is the same, but it varies more, and near keys are missed more often than the paper's
        guarantee says. `hashes` must be even.

        >>> aa.lsh.Hyperplane(4).sample(tables=28, hashes=12, shared=True).functions
        48
        """
        tables, hashes = require_count("tables", tables), require_count("hashes", hashes)
        heads = require_count("heads", heads)
        require_flag("shared", shared)
        if shared and hashes % 2:
            raise InputError(
                "hashes", given=hashes, expected="an even number with shared=True: a table is a pair of half-keys"
            )
        functions = half_keys_for(tables) * hashes // 2 if shared else tables * hashes
        size = heads * functions * self.dim
        require_count("heads times tables times hashes times dim", size, most=_MOST)
        seed = require_count("seed", seed, least=0)
        # RandomState, unlike Generator, promises the same stream in every NumPy release.
        bits = np.random.MT19937(np.random.SeedSequence(seed))
        random = np.random.RandomState(bits)
        drawn = self.draw(random, heads * functions)
        parameters = tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in drawn)
        return Hasher(self, tables, hashes, seed, parameters, heads, shared)


class _LogProbability(torch.autograd.Function):
    """Numbers of `_log_values` with the derivative `log_slope`, which has its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(cosine: Tensor, family: HashFamily) -> Tensor:
        return family._log_values(cosine)  # pyright: ignore[reportReturnType]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, HashFamily], output: Tensor) -> None:
        cosine, ctx.family = inputs
        ctx.save_for_backward(cosine)
        ctx.save_for_forward(cosine)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, None]:
        return grad * _slope(ctx), None

    @staticmethod
    def jvp(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, tangent: Tensor, _: None
    ) -> Tensor:
        return tangent * _slope(ctx)


def _slope(ctx: Any) -> Tensor:
    (cosine,) = ctx.saved_tensors
    return ctx.family.log_slope(cosine.clamp(-_NEAR, _NEAR))


def unit_angle(distance: float) -> float:
    """The angle between two unit vectors at this Euclidean distance; beyond 2 there are none, so 2 stands for all.

    >>> unit_angle(2.0) == math.pi == unit_angle(3.0)
    True
    """
    if not distance >= 0:
        raise InputError("distance", given=distance, expected="a number of at least 0")
    return 2 * math.asin(min(distance, 2.0) / 2)
