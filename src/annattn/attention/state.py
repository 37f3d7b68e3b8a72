"""The state of hashed attention: what Algorithm 1 stores of the keys it has seen.

Everything ANNA does is to hash, to fill a state and to read one. A decode cache is a state that lives on, a causal
scan is a state that grows, and a sequence larger than memory, or cut among processes, is several states merged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from annattn.attention.inputs import accumulator, check_hasher, check_mask, hash_inputs
from annattn.attention.names import Names
from annattn.checks import LARGEST_COUNT, require_choice, require_count, require_instance
from annattn.errors import InputError
from annattn.kernels import Layout, Order, bucket_sum, check_saved, choose, hash_call, nan_targets, newest, tables_call
from annattn.lsh import IGNORED, Hasher
from annattn.memory import require_memory, said

__all__ = ["BucketState", "Keep", "Reading", "batch_rows", "whole_numbers"]

Keep = Literal["sum", "newest"]

P = ParamSpec("P")
R = TypeVar("R")

_ANY_CODE = 2**62  # of tuples that are numbered, there are fewer
_MOST_HEADS = 2**20  # in the whole batch: even an empty one takes a kilobyte
_SMALLER = "take fewer tables, hashes, heads or batch rows, or a smaller value_dim or history"


def _in_memory(method: Callable[P, R]) -> Callable[P, R]:
    """The method, but what does not fit in memory is said in a sentence, whichever library found out."""

    @wraps(method)
    def in_words(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except (MemoryError, RuntimeError) as error:
            better = said(
                error,
                f"hash tables do not fit in memory; {_SMALLER}. Tables that were being changed may hold a part of it: "
                "reset or restore them",
            )
            if better is error:
                raise
            raise better from error

    return in_words


@dataclass(frozen=True)
class Reading:
    """What queries found: Σ_j c_ij v_j, Σ_j c_ij, and which of them cannot have an answer."""

    total: Tensor
    count: Tensor
    unknown: Tensor

    def mean(self) -> Tensor:
        """Σ_j c_ij v_j / Σ_j c_ij; zero where nothing was met, NaN where there is no answer."""
        mean = self.total / self.count[..., None].clamp(min=1)
        return mean.masked_fill(self.unknown[..., None], torch.nan)


class BucketState:
    """What each bucket of ℓ tables holds, and whether a key without a bucket was lost; per batch row and head.

    A bucket is the sum of its values and their number; how it is stored is the backend's affair, see
    `kernels.tables`. `keep="newest"` keeps each bucket's newest value in place of the sum, for latest-match attention.
    The last `history` tokens can be undone. Not differentiable. Sums are those of float64, so that they do not drift
    over a long context.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=8, hashes=6, seed=0)
    >>> q, k, v = torch.randn(3, 1, 2, 6, 4)
    >>> early, late = (aa.attention.BucketState(hasher, heads=2, value_dim=4) for _ in range(2))
    >>> early.fill(k[:, :, :3], v[:, :, :3])
    >>> late.fill(k[:, :, 3:], v[:, :, 3:])
    >>> out = early.merge(late).read(q).mean().float()
    >>> torch.testing.assert_close(out, aa.anna_attention(q, k, v, hasher))
    """

    @_in_memory
    def __init__(
        self, hasher: Hasher, *, value_dim: int, batch: int = 1, heads: int = 1, keep: Keep = "sum", history: int = 0
    ) -> None:
        if not isinstance(hasher, Hasher):
            check_hasher(hasher, torch.empty(0))
        require_choice("keep", keep, ("sum", "newest"))
        self.hasher: Hasher = hasher
        self.keep: Keep = keep
        self.batch = require_count("batch", batch, most=LARGEST_COUNT)
        self.heads = require_count("heads", heads, most=LARGEST_COUNT)
        require_count("batch times heads", self.batch * self.heads, most=_MOST_HEADS)
        self.value_dim = require_count("value_dim", value_dim, most=LARGEST_COUNT)
        self.history = require_count("history", history, least=0, most=LARGEST_COUNT)
        heads_and_rows = self.batch * self.heads
        # The last tokens stand beside the tables from the start on; tables grow with use.
        least = 8 * heads_and_rows * (self.history * (hasher.tables + self.value_dim) + hasher.tables + self.value_dim)
        require_memory(
            f"{heads_and_rows} times {hasher.tables} hash tables of values {self.value_dim} wide, with a history of "
            f"{self.history}", least, _SMALLER,
        )  # fmt: skip
        width = hasher.hashes * hasher.family.digits_per_hash
        self._names = Names(self.batch, width) if hasher.buckets is None else None
        layout = Layout(
            self.batch, self.heads, hasher.tables, self.value_dim, hasher.buckets or _ANY_CODE, keep == "newest",
            self.history, hasher.device,
        )  # fmt: skip
        self._tables = choose(tables_call(layout)).make_tables(layout)
        self._few_rows = None
        if self._names is None:
            row = torch.empty(1, self.heads, 1, hasher.dim, device=hasher.device)
            self._few_rows = choose(hash_call(hasher, row, row)).few_rows(hasher)

    @property
    def lengths(self) -> list[int]:
        """How many keys take part, per batch row."""
        return self._tables.lengths

    @property
    def recent(self) -> list[int]:
        """How many of the last tokens can be undone, per batch row."""
        return self._tables.recent

    @property
    def nbytes(self) -> int:
        """Bytes held by the tables."""
        return self._tables.nbytes + (0 if self._names is None else self._names.nbytes)

    @_in_memory
    @torch.no_grad()
    def fill(self, key: Tensor, value: Tensor, key_mask: Tensor | None = None) -> None:
        """Put keys and values (batch, heads, n, dim) into their buckets; masked ones leave no trace."""
        self._require_shapes(None, key, value, key_mask)
        self._tables.add(self._codes(key, create=True, kept=key_mask), value.detach(), key_mask)

    @torch.no_grad()
    def read(self, query: Tensor) -> Reading:
        """What queries (batch, a multiple of the heads, n, dim) find among all keys put in so far."""
        self._require_shapes(query, None, None, None)
        return Reading(*self._tables.read(self._codes(query)))

    @_in_memory
    @torch.no_grad()
    def step(
        self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """`scan`, with the mean in `dtype` and the count of what each query found; one kernel where there is one."""
        self._require_shapes(query, key, value, key_mask)
        if key.shape[2] == 1 and self._names is None:
            found = self._tables.decode(self.hasher, query, key, value, key_mask, dtype)
            if found is not None:
                return found
        reading = self.scan(query, key, value, key_mask)
        return reading.mean().to(dtype), reading.count

    @_in_memory
    @torch.no_grad()
    def scan(self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None = None) -> Reading:
        """Continue a causal scan from here: each query finds all keys put in before, and the new ones up to its own."""
        self._require_shapes(query, key, value, key_mask)
        if key.shape[2] == 1:
            if self._few_rows is None or key.device != self.hasher.device:
                key_codes, query_codes = self._codes(key, create=True, kept=key_mask), self._codes(query)
            else:
                key_codes, query_codes = self._few_rows(key, query)
            return Reading(*self._tables.step(key_codes, query_codes, value.detach(), key_mask))
        query_codes, key_codes = hash_inputs(self.hasher, query, key, key_mask)
        before, found = self._codes(query), None
        if self.keep == "sum":
            order = (Order.CAUSAL, self.hasher.dense_buckets, False)
            total, count = bucket_sum(query_codes, key_codes, value.to(accumulator(value.dtype)), *order)
            if not total.isfinite().all():  # sums of the state are float64, which has room for more
                total, count = bucket_sum(query_codes, key_codes, value.double(), *order)
        else:
            # Per table the newest of the new keys, or where there is none, what the bucket held before.
            found = newest(query_codes, key_codes, self.hasher.dense_buckets)
            before = torch.where((found >= 0) & (before >= 0), IGNORED, before)
            rows = value.double().repeat_interleave(query.shape[1] // self.heads, 1)
            total, count = torch.zeros(*query.shape[:3], self.value_dim, dtype=rows.dtype, device=rows.device), 0
            for position in found.unbind(-1):
                index = position.clamp(min=0)[..., None].expand(*position.shape, self.value_dim)
                total = total + torch.where((position >= 0)[..., None], rows.gather(2, index), 0)
            count = (found >= 0).sum(-1)
        more, met, unknown = self._tables.read(before)
        unknown = unknown | nan_targets(query_codes, key_codes, Order.CAUSAL)
        self.fill(key, value, key_mask)
        return Reading(more + total, met + count, unknown)

    def _require_shapes(
        self, query: Tensor | None, key: Tensor | None, value: Tensor | None, key_mask: Tensor | None
    ) -> None:
        """Raise InputError unless these are rows of this state: a kernel would write beside its tables."""
        batch, heads, dim = self.batch, self.heads, self.hasher.dim
        fits = query is None or (query.shape[::3] == (batch, dim) and not query.shape[1] % heads)
        if key is not None and value is not None:
            n = key.shape[2]
            fits = fits and key.shape == (batch, heads, n, dim) and value.shape == (batch, heads, n, self.value_dim)
            fits = fits and (query is None or query.shape[2] == n)
        if not fits:
            named = {"query": query, "key": key, "value": value}
            raise InputError(
                "rows of a state",
                given=", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items() if x is not None),
                expected=f"batch {batch}, {heads} key heads, keys {dim} and values {self.value_dim} wide",
            )
        if key is not None:
            check_mask(key, key_mask)

    def _codes(self, rows: Tensor, *, create: bool = False, kept: Tensor | None = None) -> Tensor:
        """Codes that mean the same in every call."""
        if self._names is None:
            return choose(hash_call(self.hasher, rows, rows)).hash_rows(self.hasher, rows.detach())
        hashable = self.hasher.hashable(rows)
        if kept is not None:
            hashable = hashable & kept[:, None]
        return self._names.codes(self.hasher.digits(rows), hashable, create=create)

    def crop(self, tokens: Sequence[int]) -> None:
        """Undo this many of the last tokens of each batch row, at most `recent`, as if they had never come."""
        each = whole_numbers("tokens", tokens, f"an integer for each of {self.batch} batch rows")
        if len(each) != self.batch:
            raise InputError("tokens", given=f"{len(each)} numbers", expected=f"one for each of {self.batch} rows")
        for row, (asked, there) in enumerate(zip(each, self.recent, strict=True)):
            if not 0 <= asked <= there:
                raise InputError(
                    f"tokens to undo of batch row {row}",
                    given=asked,
                    expected=f"0 to {there}",
                    hint=f"of each row the last {self.history} can be undone (history={self.history}); or keep a "
                    "snapshot()",
                )
        self._tables.crop(each)

    @_in_memory
    def twin(self, rows: Sequence[int] | None = None) -> "BucketState":
        """A state of its own that holds the same, or these batch rows of it; copied only where the two come to differ.

        >>> import annattn as aa
        >>> hasher = aa.lsh.Hyperplane(4).sample(tables=2, hashes=2)
        >>> state = aa.attention.BucketState(hasher, value_dim=3)
        >>> twin = state.twin()
        >>> state.fill(torch.randn(1, 1, 10, 4), torch.randn(1, 1, 10, 3))
        >>> state.lengths, twin.lengths
        ([10], [0])
        """
        chosen = list(range(self.batch)) if rows is None else batch_rows(rows, self.batch)
        require_count("number of rows", len(chosen))
        twin = BucketState.__new__(BucketState)
        vars(twin).update(vars(self))
        twin.batch = len(chosen)
        twin._tables = self._tables.twin(chosen)
        twin._names = None if self._names is None else self._names.twin(chosen)
        return twin

    def alike(self, other: "BucketState") -> bool:
        """Whether two states are made alike, but for the batch and the history."""
        same = (self.hasher, self.keep, self.heads, self.value_dim)
        return same == (other.hasher, other.keep, other.heads, other.value_dim)

    @_in_memory
    def merge(self, later: "BucketState") -> "BucketState":
        """The state of this one's keys followed by those of `later`; associative, and changes neither.

        Sums are float64: associative to the bit where those are exact, otherwise to their rounding.

        >>> import annattn as aa
        >>> hasher = aa.lsh.Hyperplane(4).sample(tables=2, hashes=2)
        >>> a, b = aa.attention.BucketState(hasher, value_dim=3), aa.attention.BucketState(hasher, value_dim=3)
        >>> a.fill(torch.randn(1, 1, 10, 4), torch.randn(1, 1, 10, 3))
        >>> a.merge(b).lengths
        [10]
        """
        require_instance("state", later, BucketState, "a BucketState")
        if not self.alike(later) or (self.batch, self.history) != (later.batch, later.history):
            raise InputError(
                "state",
                given="one of another hasher, rule, batch, heads, value_dim or history",
                expected="one made like this one",
            )
        merged = self.twin()
        names: list[Tensor | None] = [None] * self.batch
        if merged._names is not None and later._names is not None:
            names = list(merged._names.adopt(later._names))
        merged._tables.merge(later._tables, names)
        return merged

    @_in_memory
    def select(self, rows: Sequence[int | None]) -> None:
        """Make batch row b what row rows[b] was, or empty where that is None."""
        numbers = [0 if row is None else row for row in rows] if isinstance(rows, Sequence) else rows
        chosen: list[int | None] = [*batch_rows(numbers, self.batch)]
        if isinstance(rows, Sequence):
            chosen = [None if row is None else number for row, number in zip(rows, chosen, strict=True)]
        if len(chosen) != self.batch:
            raise InputError("rows", given=f"{len(chosen)} rows", expected=f"one for each of {self.batch}")
        self._tables.select(chosen)
        if self._names is not None:
            self._names.select(chosen)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything stored, as tensors; the hasher is not part of it."""
        return {**self._tables.saved(), **({} if self._names is None else self._names.saved())}

    @_in_memory
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` of a state made like this one gave; on a mismatch nothing changes."""
        require_instance("state", state, dict, "a dict of tensors, as state_dict gives")
        own = dict(state)
        names = {} if self._names is None else {name: own.pop(name) for name in ("names", "named") if name in own}
        check_saved(self._tables.layout, own)
        if self._names is not None:
            self._names.check(names)
            self._check_named(own, names["named"].cpu())
            self._names.load(names)
        self._tables.load(own)

    def _check_named(self, saved: dict[str, Tensor], named: Tensor) -> None:
        """Raise InputError unless every code is a number that a tuple of its batch row has."""
        buckets = saved["held"].cpu()[..., 0].sum(1)
        late = saved["recent_codes"].cpu().flatten(1).amax(1) if saved["recent_codes"].numel() else named[:0]
        for name, codes, row in (
            ("bucket_codes", saved["bucket_codes"].cpu(), buckets),
            ("recent_codes", late, saved["recent"].cpu()),
        ):
            if codes.numel() and not bool((codes < named.repeat_interleave(row)).all()):
                raise InputError(
                    f"state[{name!r}]", given="codes without a name", expected="numbers of state['names'] of their row"
                )


def whole_numbers(name: str, given: Any, expected: str) -> list[int]:
    """A list of integers as Python's: of NumPy's, or of bools, torch would make a mask.

    >>> whole_numbers("rows", torch.tensor([1, 0]), "a list of integers")
    [1, 0]
    """
    found = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise InputError(name, given=given, expected=expected)
    try:
        return [require_count(name, each, least=-(2**63)) for each in found]
    except InputError:
        raise InputError(name, given=given, expected=expected) from None


def batch_rows(rows: Any, batch: int) -> list[int]:
    """Batch rows as Python integers; InputError unless each of them is there.

    >>> batch_rows([2], batch=2)
    Traceback (most recent call last):
    annattn.errors.InputError: rows: got [2], expected a list of batch rows from 0 to 1
    """
    expected = f"a list of batch rows from 0 to {batch - 1}"
    found = whole_numbers("rows", rows, expected)
    if not all(0 <= row < batch for row in found):
        raise InputError("rows", given=rows, expected=expected)
    return found
