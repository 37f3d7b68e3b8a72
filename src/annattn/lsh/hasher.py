"""The ℓ drawn hash functions g_1 … g_ℓ, and how z hash values become one integer code."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from annattn.checks import require_count
from annattn.errors import InputError, WideCodeError
from annattn.lsh.codes import CODE_BITS, NO_BUCKET

if TYPE_CHECKING:
    from annattn.lsh.family import HashFamily

__all__ = ["Hasher", "compact_rows", "half_keys_for", "pairs_of_half_keys"]

_BLOCK = 16_384  # rows hashed at a time, so that the float64 projections stay in a cache


@dataclass(frozen=True)
class Hasher:
    """g_1 … g_ℓ: maps rows to one bucket code per table; equal codes in table u mean the same bucket.

    Frozen, picklable, and a function of (family, tables, hashes, heads, seed) alone. A row that holds NaN or infinity
    has no bucket and gets the code `NO_BUCKET` (-1) in every table.

    With `heads` greater than 1 there is one draw per head: rows (..., heads, n, dim) are hashed by the functions of
    their head. Where rows have a multiple of these heads, as grouped queries do, equally many in a row share a draw.

    With `shared` the tables are not independent: u half-keys of z/2 functions are drawn, and each table is a pair of
    them, so that u(u − 1)/2 tables take u·z/2 functions; see `sample`.

    The hash values are those of float64 arithmetic on the given numbers, whatever their dtype: half precision
    hashes as float32 does on the rounded values, and neither the batch a row comes in nor the number of threads
    moves a row across a boundary.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=8, hashes=8, seed=0)
    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])
    >>> bool((hasher(x)[0] == hasher(x)[1]).all())
    True
    >>> hasher.buckets
    256
    >>> per_head = aa.lsh.Hyperplane(4).sample(tables=8, hashes=8, seed=0, heads=2)
    >>> y = torch.randn(1, 2, 5, 4)
    >>> torch.equal(per_head(y)[:, 1], per_head.head(1)(y[:, 1]))
    True
    """

    family: HashFamily
    tables: int
    hashes: int
    seed: int
    parameters: tuple[Tensor, ...] = field(repr=False, compare=False)
    heads: int = 1
    shared: bool = False
    spec: str = field(init=False, repr=False, compare=False)
    buckets: int | None = field(init=False, repr=False, compare=False)
    """Codes are below this number; None when the hash values do not fit a code of 63 bits."""
    dense_buckets: int = field(init=False, repr=False, compare=False)
    """The same, or 0 if there are far too many for a table that has a place for each."""

    def __post_init__(self) -> None:
        if self.shared and self.hashes % 2:
            raise InputError(
                "hashes", given=self.hashes, expected="an even number with shared=True: a table is a pair of half-keys"
            )
        functions = self.heads * self.functions
        if any(len(drawn) != functions for drawn in self.parameters):
            raise InputError(
                "hasher",
                given=f"parameters of {[len(drawn) for drawn in self.parameters]} hash functions",
                expected=f"{functions}, for {self.heads} heads of {self.tables} tables of {self.hashes}",
                hint="draw it with family.sample(tables=..., hashes=..., seed=...)",
            )
        # All but the parameters as one string, ready before any tracing starts; `restore` reads it.
        described = self.family, self.tables, self.hashes, self.seed, self.heads, self.shared
        try:
            spec = _spec(*described)
        except TypeError:  # a user's family that cannot be hashed
            spec = _spec.__wrapped__(*described)
        object.__setattr__(self, "spec", spec)
        values = self.family.values
        buckets = None if values is None or values**self.hashes > 2**CODE_BITS else values**self.hashes
        object.__setattr__(self, "buckets", buckets)
        object.__setattr__(self, "dense_buckets", buckets if buckets is not None and buckets < 2**40 else 0)

    @property
    def dim(self) -> int:
        """Length of the rows it hashes."""
        return self.family.dim

    @property
    def half_keys(self) -> int:
        """How many half-keys the tables share: the least u with u(u − 1)/2 ≥ `tables`; 0 if nothing is shared.

        >>> import annattn as aa
        >>> aa.lsh.Hyperplane(4).sample(tables=28, hashes=12, shared=True).half_keys
        8
        """
        return half_keys_for(self.tables) if self.shared else 0

    @property
    def functions(self) -> int:
        """How many hash functions one draw has."""
        return self.half_keys * self.hashes // 2 if self.shared else self.tables * self.hashes

    def halves(self) -> Hasher:
        """The half-keys of a `shared` hasher as tables of their own; `pairs_of_half_keys` says which two a table has.

        >>> import annattn as aa
        >>> aa.lsh.Hyperplane(4).sample(tables=28, hashes=12, shared=True).halves().hashes
        6
        """
        if not self.shared:
            raise InputError("hasher", given="independent tables", expected="one drawn with shared=True")
        return replace(self, tables=self.half_keys, hashes=self.hashes // 2, shared=False)

    @property
    def device(self) -> torch.device:
        """Where its parameters live, and so where it hashes."""
        return self.parameters[0].device if self.parameters else torch.device("cpu")

    def to(self, device: torch.device | str) -> Hasher:
        """The same hash functions on another device.

        >>> import annattn as aa
        >>> hasher = aa.lsh.Hyperplane(4).sample(tables=2, hashes=2)
        >>> hasher.to("cpu") == hasher
        True
        """
        return replace(self, parameters=tuple(parameter.to(device) for parameter in self.parameters))

    def head(self, number: int) -> Hasher:
        """The functions of one head, as a hasher of one draw.

        >>> import annattn as aa
        >>> aa.lsh.Hyperplane(4).sample(tables=2, hashes=3, heads=5).head(4).heads
        1
        """
        if self.heads == 1 and number == 0:
            return self
        number = require_count("head", number, least=0, most=self.heads - 1)
        mine = slice(number * self.functions, (number + 1) * self.functions)
        return replace(self, parameters=tuple(parameter[mine] for parameter in self.parameters), heads=1)

    def check_rows(self, x: Tensor) -> None:
        """Raise InputError unless these are rows it can hash."""
        self.family.check_rows(x)
        if self.heads > 1 and (x.ndim < 3 or x.shape[-3] % self.heads):
            raise InputError(
                "rows to hash",
                given=f"shape {tuple(x.shape)}",
                expected=f"(..., {self.heads} heads or a multiple, n, {self.dim})",
                hint="this hasher has one draw per head; hasher.head(h) is the draw of head h",
            )

    def __call__(self, x: Shaped[Tensor, "... n dim"]) -> Int[Tensor, "... n tables"]:
        """Codes that mean the same in every call and every process.

        Raises WideCodeError when the z values of some row do not fit 63 bits; `joint_codes` has no such limit.
        """
        self.check_rows(x)
        if self.heads > 1:
            return torch.cat([self.head(h)(part) for h, part in enumerate(self._by_head(x))], dim=-3)
        codes, wide = self._packed(x)
        if wide:
            raise WideCodeError(
                "hash codes",
                given=f"tuples of {self.hashes} values of {self.family} that do not fit {CODE_BITS} bits",
                expected="tuples that can be packed into one code",
                hint="use fewer hashes, or hasher.joint_codes(query, key), which numbers the tuples that occur",
            )
        return codes

    def joint_codes(self, *inputs: Shaped[Tensor, "... n dim"]) -> tuple[Int[Tensor, "... n tables"], ...]:
        """Codes that can be compared among these inputs: the packed ones, or exact numbers of the tuples that occur.

        >>> import annattn as aa
        >>> wide = aa.lsh.Hyperplane(4).sample(tables=2, hashes=100)
        >>> q, k = wide.joint_codes(torch.ones(3, 4), torch.ones(5, 4))
        >>> bool((q[0] == k).all())
        True
        """
        for x in inputs:
            self.check_rows(x)
        if self.heads > 1:
            # Rows of different heads are not comparable, so each head may number its tuples on its own.
            of_head = zip(*(self._by_head(x) for x in inputs), strict=True)
            codes = [self.head(h).joint_codes(*parts) for h, parts in enumerate(of_head)]
            return tuple(torch.cat(parts, dim=-3) for parts in zip(*codes, strict=True))
        packed = []
        for x in inputs:
            codes, wide = self._packed(x)
            if wide:
                return self._compacted(inputs)
            packed.append(codes)
        return tuple(packed)

    def digits(self, x: Shaped[Tensor, "... n dim"]) -> Int[Tensor, "... n tables digits"]:
        """The tuples g_u(x) themselves, unpacked; of rows without a bucket they mean nothing (see `hashable`).

        >>> import annattn as aa
        >>> aa.lsh.Hyperplane(4).sample(tables=2, hashes=3).digits(torch.zeros(1, 4)).tolist()
        [[[1, 1, 1], [1, 1, 1]]]
        """
        self.check_rows(x)
        if self.heads > 1:
            return torch.cat([self.head(h).digits(part) for h, part in enumerate(self._by_head(x))], dim=-4)
        flat = self._evaluate(x.reshape(-1, self.dim))
        return flat.reshape(*x.shape[:-1], self.tables, self.hashes * self.family.digits_per_hash)

    def hashable(self, x: Shaped[Tensor, "... n dim"]) -> Tensor:
        """Which rows have a bucket.

        >>> import annattn as aa
        >>> aa.lsh.Hyperplane(1).sample(tables=2, hashes=3).hashable(torch.tensor([[1.0], [torch.nan]])).tolist()
        [True, False]
        """
        return self.family.hashable(x)

    def _evaluate(self, rows: Tensor) -> Tensor:
        """The family's hash values of these rows, checked: codes made of them index tables."""
        digits, hashable = self.family.evaluate(self.parameters, rows), self.family.hashable(rows)
        for name, found in (("evaluate", digits), ("hashable", hashable)):
            if not isinstance(found, Tensor) or found.device != rows.device:
                given = getattr(found, "device", type(found).__name__)
                raise InputError(f"{name} of {self.family}", given=given, expected=f"a tensor on {rows.device}")
        expected = (len(rows), self.functions * self.family.digits_per_hash)
        if digits.shape != expected or digits.dtype != torch.int64 or hashable.shape != expected[:1]:
            raise InputError(
                f"hash values of {self.family}",
                given=f"{digits.dtype} {tuple(digits.shape)}, hashable {tuple(hashable.shape)}",
                expected=f"int64 {expected} from evaluate, and {expected[:1]} from hashable",
            )
        values = self.family.values
        # Nobody can look at numbers while a call is traced; what indexes by codes checks them again.
        if values is not None and not torch.compiler.is_compiling():
            wrong = ((digits < 0) | (digits >= values)) & hashable[:, None]
            if bool(wrong.any()):
                expected = f"0 to {values - 1}, as its `values` promises"
                raise InputError(f"hash value of {self.family}", given=digits[wrong][0].item(), expected=expected)
        if self.shared:
            pairs = torch.tensor(pairs_of_half_keys(self.tables), device=digits.device)
            digits = digits.unflatten(1, (self.half_keys, -1))[:, pairs].flatten(1)
        return digits

    def _by_head(self, x: Tensor) -> tuple[Tensor, ...]:
        """Rows (..., heads · share, n, dim) in parts that share a draw."""
        return x.chunk(self.heads, dim=-3) if x.shape[-3] else (x,) * self.heads

    def _packed(self, x: Tensor) -> tuple[Tensor, bool]:
        """Packed codes, and whether some tuple did not fit (the codes then mean nothing)."""
        base = self._base()
        if base is None:
            return x.new_empty(*x.shape[:-1], self.tables, dtype=torch.int64), True
        rows = x.reshape(-1, self.dim)
        weights = torch.tensor([base**place for place in range(self.hashes)], device=x.device)
        codes, wide = [], False
        for block in rows.split(_BLOCK) if len(rows) else [rows]:
            digits = self._evaluate(block).reshape(-1, self.tables, self.hashes)
            hashable = self.family.hashable(block)
            if self.family.values is None:
                digits = digits + base // 2
                outside = ((digits < 0) | (digits >= base)).flatten(1).any(-1)
                wide = wide or bool((outside & hashable).any())
            codes.append(torch.where(hashable[:, None], (digits * weights).sum(-1), NO_BUCKET))
        return torch.cat(codes).reshape(*x.shape[:-1], self.tables), wide

    def _base(self) -> int | None:
        """The number system of packed codes; for unbounded values, as many per hash as 63 bits leave room for."""
        if self.family.digits_per_hash > 1:
            return None
        if self.family.values is None:
            bits = CODE_BITS // self.hashes
            return 2**bits if bits else None
        return self.family.values if self.buckets is not None else None

    def _compacted(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        digits = torch.cat([self.digits(x).flatten(0, -3) for x in inputs])
        codes = torch.stack([compact_rows(digits[:, table]) for table in range(self.tables)], dim=-1)
        hashable = torch.cat([self.family.hashable(x).flatten() for x in inputs])
        codes = torch.where(hashable[:, None], codes, NO_BUCKET)
        parts = codes.split([x.shape[:-1].numel() for x in inputs])
        return tuple(part.clone().reshape(*x.shape[:-1], self.tables) for part, x in zip(parts, inputs, strict=True))


@lru_cache(maxsize=1024)
def _spec(family: HashFamily, tables: int, hashes: int, seed: int, heads: int, shared: bool) -> str:
    described = {"name": type(family).__name__, "options": vars(family)}
    drawn = {"tables": tables, "hashes": hashes, "seed": seed, "heads": heads, "shared": shared}
    return json.dumps({"family": described, **drawn})


def half_keys_for(tables: int) -> int:
    """The least u with u(u − 1)/2 ≥ `tables`.

    >>> [half_keys_for(tables) for tables in (1, 2, 3, 4, 28, 29)]
    [2, 3, 3, 4, 8, 9]
    """
    u = 2
    while u * (u - 1) // 2 < tables:
        u += 1
    return u


@lru_cache(maxsize=256)
def pairs_of_half_keys(tables: int) -> tuple[tuple[int, int], ...]:
    """Which two half-keys each table has: all pairs once, in an order in which each half-key comes about equally often.

    >>> pairs_of_half_keys(4)
    ((0, 1), (1, 2), (2, 3), (0, 3))
    """
    u = half_keys_for(tables)
    around = [(at, (at + apart) % u) for apart in range(1, u // 2 + 1) for at in range(u)]
    return tuple(dict.fromkeys((min(pair), max(pair)) for pair in around))[:tables]


def compact_rows(rows: Int[Tensor, "n width"]) -> Int[Tensor, " n"]:
    """Number the distinct rows from 0 in lexicographic order: equal rows, and only those, get equal numbers.

    >>> compact_rows(torch.tensor([[5, 1], [2, 9], [5, 1]])).tolist()
    [1, 0, 1]
    """
    if rows.numel() == 0:
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    return torch.unique(rows, dim=0, return_inverse=True)[1]
