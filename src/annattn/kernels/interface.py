"""What a backend is, and what it is told: a frozen description of the call, which it judges before anything runs.

Codes are int64 (batch, heads, n, tables): one side may have a multiple of the other's heads, and each of the fewer
then serves equally many of them. A negative code is `lsh.NO_BUCKET` or `lsh.IGNORED`, the same in all tables of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, partial
from typing import Literal

import torch
from torch import Tensor

from annattn.errors import BackendError, InputError
from annattn.kernels.tables import Layout, Tables
from annattn.lsh import Hasher, HashFamily, restore

__all__ = [
    "GRADIENTS", "NOT_FOUND", "NO_BAND", "Backend", "BandInputs", "Call", "GradientInputs",
    "Operation", "Order", "Slope", "SumInputs", "slope_of",
]  # fmt: skip

GRADIENTS = ("linear", "exact", "none")

NO_BAND = "there is no kernel for the softmax of a window"
"""Why most backends do not run the operation "band"."""

NOT_FOUND = -1
"""The position `newest` gives where a bucket holds nothing."""

Operation = Literal[
    "hash",
    "equal_rows",
    "bucket_sum",
    "bucket_mean",
    "newest",
    "newest_mean",
    "gradient",
    "newest_gradient",
    "tables",
    "band",
]


class Order(IntEnum):
    """Which sources a target sees."""

    MIRRORED = -1
    """The transpose of CAUSAL, as the backward pass wants it."""
    ALL = 0
    """Every source."""
    CAUSAL = 1
    """Those at least as far from the last source as the target is from the last target."""


@dataclass(frozen=True)
class Slope:
    """How much a pair that met weighs in the gradient: one number for all, or a function of the cosine."""

    constant: float | None
    function: Callable[[Tensor], Tensor] | None = None

    def __call__(self, cosine: Tensor) -> Tensor | float:
        """The weights at these cosines."""
        if self.constant is not None:
            return self.constant
        assert self.function is not None
        return self.function(cosine)


@lru_cache(maxsize=256)
def slope_of(gradient: str, spec: str) -> Slope:
    """The weight w(x) of a gradient for the hasher of this `spec`: z·p'(x)/p(x), or a constant in its place.

    >>> from annattn.lsh import Hyperplane
    >>> slope_of("linear", Hyperplane(4).sample(tables=2, hashes=6).spec).constant
    3.0
    """
    hasher = restore(spec, ())
    if gradient == "linear":
        return Slope(constant=hasher.hashes * hasher.family.linear_slope)

    def exact(cosine: Tensor) -> Tensor:
        slope = hasher.family.log_slope(cosine)
        if slope is None:
            raise InputError("gradient", given=f'"exact" with {hasher.family}', expected="a family that has a slope")
        return hasher.hashes * slope

    return Slope(constant=None, function=exact)


@dataclass(frozen=True)
class Call:
    """One call of one operation, as far as a backend must know it to say whether it can run it.

    - rows: (batch, heads, n) of the targets (queries, or the rows to hash) and of the sources (keys).
    - dtype: of what is hashed or summed; width: how many numbers that is per row.
    - family, hashes and shared: what hashes, for the operation "hash".
    - slope: the weight of a pair, for gradients.
    """

    operation: Operation
    device: torch.device
    dtype: torch.dtype
    targets: tuple[int, ...]
    sources: tuple[int, ...]
    tables: int
    width: int
    order: Order = Order.ALL
    family: HashFamily | None = None
    hashes: int = 0
    shared: bool = False
    buckets: int | None = None
    slope: Slope | None = None


@dataclass(frozen=True)
class SumInputs:
    """What sums over buckets are made from.

    Codes are below `buckets`, or anything if that is 0. One table at a time takes less memory.
    """

    target_codes: Tensor
    source_codes: Tensor
    value: Tensor
    order: Order
    buckets: int = 0
    one_table_at_a_time: bool = False


@dataclass(frozen=True)
class GradientInputs:
    """What the gradient for queries and keys is made from.

    `grad` is the gradient of the output `out`, and `count` is C_i = Σ_j c_ij. For latest-match attention `newest` is
    the position of the newest key per table, and codes do not matter.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    grad: Tensor
    out: Tensor
    count: Tensor
    slope: Slope
    order: Order = Order.ALL
    query_codes: Tensor | None = None
    key_codes: Tensor | None = None
    buckets: int = 0
    newest: Tensor | None = None

    def check(self) -> None:
        """Raise InputError unless all shapes fit together: kernels trust them."""
        query, key, width = self.query.shape, self.key.shape, self.value.shape[-1]
        where = self.newest if self.query_codes is None else self.query_codes
        tables = 0 if where is None else where.shape[-1]
        wanted = {
            "key": (query[0], key[1], key[2], query[3]),
            "value": (*key[:3], width),
            "grad": (*query[:3], width),
            "out": (*query[:3], width),
            "count": query[:3],
            "query_codes": (*query[:3], tables),
            "key_codes": (*key[:3], tables),
            "newest": (*query[:3], tables),
        }
        for name, shape in wanted.items():
            found = getattr(self, name)
            if found is not None and found.shape != shape:
                raise InputError(f"{name} of a gradient", given=tuple(found.shape), expected=str(tuple(shape)))
        if query[1] != key[1] and (not key[1] or query[1] % key[1]):
            raise InputError("query heads", given=query[1], expected=f"a multiple of the {key[1]} key heads")


@dataclass(frozen=True)
class BandInputs:
    """What softmax over a band of keys is made from; the last query is aligned with the last key.

    Query i sees the keys less than `window` places before it, and if not `is_causal` after it, that have the number of
    its document and that `key_mask` (batch, keys) lets take part.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    window: int
    scale: float
    is_causal: bool
    key_mask: Tensor | None = None
    query_documents: Tensor | None = None
    key_documents: Tensor | None = None


class Backend(ABC):
    """The bucket operations on one kind of device.

    A backend is asked for its `unsupported_reasons` first, and is given only calls for which there are none.
    """

    def missing(self) -> str | None:
        """What this machine lacks to run anything here, and how to get it, in one line; None if it lacks nothing."""
        return None

    @abstractmethod
    def unsupported_reasons(self, call: Call) -> list[str]:
        """Why this backend cannot run the call, in words; empty if it can."""

    @abstractmethod
    def hash_rows(self, hasher: Hasher, rows: Tensor) -> Tensor:
        """Codes of rows (batch, heads, n, dim) that mean the same in every call; those of `Hasher.__call__`."""

    @abstractmethod
    def hash_pair(self, hasher: Hasher, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Codes of queries and keys, comparable with each other; those of `Hasher.joint_codes`, or renamed."""

    @abstractmethod
    def equal_rows(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Codes in one table that are equal exactly when rows are; IGNORED for a row with NaN, which equals nothing."""

    @abstractmethod
    def bucket_sum(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        """Σ_j c_ij v_j and Σ_j c_ij over the sources j that target i sees, c_ij = number of tables they share."""

    @abstractmethod
    def bucket_mean(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        """Σ_j c_ij v_j / Σ_j c_ij and Σ_j c_ij; zero where nothing is met, NaN where `nan_targets` says so."""

    def divide_rows(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows (batch, heads, n, width), each divided by its count, or by 1 where that is 0."""
        return rows / counts[..., None].clamp(min=1)

    @abstractmethod
    def newest(self, target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
        """Per table the position of the newest source in a causal target's bucket, or NOT_FOUND."""

    @abstractmethod
    def newest_mean(self, value: Tensor, newest: Tensor) -> Tensor:
        """The mean over tables of the values at the positions found."""

    @abstractmethod
    def newest_value_gradient(self, value: Tensor, newest: Tensor, grad: Tensor) -> Tensor:
        """The gradient of `newest_mean` for the values."""

    @abstractmethod
    def query_key_gradient(self, inputs: GradientInputs) -> tuple[Tensor, Tensor]:
        """The gradients of `bucket_mean`, or of `newest_mean` if `inputs.newest` is given, for queries and keys.

        In the dtype of `inputs.grad`; see `kernels.torch.gradient` for what is summed.
        """

    def few_rows(self, hasher: Hasher) -> Callable[..., list[Tensor]]:
        """The same codes as `hash_rows`, of each of several inputs, for a hasher that hashes a few rows many times."""
        return partial(_hash_each, self, hasher)

    def band(self, inputs: BandInputs) -> tuple[Tensor, Tensor]:
        """softmax(scale · q_i·k_j) v_j over the keys seen, and log Σ_j exp(scale · q_i·k_j), in float32.

        Where nothing is seen these are zero and -inf. A backend without such a kernel gives `NO_BAND` as its reason,
        and `attention.band` then puts the window together from torch's own operations.
        """
        raise BackendError(NO_BAND)

    def band_gradient(
        self, inputs: BandInputs, out: Tensor, level: Tensor, grad: Tensor, grad_level: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of `band` for queries, keys and values, in their dtypes."""
        raise BackendError(NO_BAND)

    @abstractmethod
    def make_tables(self, layout: Layout) -> Tables:
        """Empty tables that live on."""


def _hash_each(backend: Backend, hasher: Hasher, *inputs: Tensor) -> list[Tensor]:
    return [backend.hash_rows(hasher, rows) for rows in inputs]
