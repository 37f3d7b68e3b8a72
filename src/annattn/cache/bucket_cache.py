"""The decode cache: the hash tables themselves, so that a step costs the same at any length of the context."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from annattn.attention.inputs import check_hasher, check_inputs
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.attention.state import BucketState, batch_rows, whole_numbers
from annattn.checks import require_choice, require_instance
from annattn.errors import InputError
from annattn.lsh import Hasher

__all__ = ["BucketCache", "Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """What a cache held at some moment, for `BucketCache.restore`; it does not change any more."""

    state: BucketState
    dtype: torch.dtype | None

    @property
    def lengths(self) -> list[int]:
        """How many keys take part, per batch row."""
        return self.state.lengths


class BucketCache:
    """Keys and values seen so far, as Algorithm 1 stores them: per bucket a sum of values and a count of keys.

    Memory grows with use, up to what a row per bucket takes. `mechanism="latest_match"` keeps each bucket's newest
    value instead of its sum. Outputs have `dtype`, or that of the values. For inference: nothing here is
    differentiable.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=8, hashes=6, seed=0)
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4)
    >>> cache = aa.BucketCache(hasher, heads=2, value_dim=4)
    >>> steps = [cache.step(q[:, :, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1]) for i in range(5)]
    >>> torch.testing.assert_close(torch.cat(steps, 2), aa.anna_attention(q, k, v, hasher, is_causal=True))
    """

    def __init__(
        self, hasher: Hasher, *,
        value_dim: int, batch: int = 1, heads: int = 1, dtype: torch.dtype | None = None,
        mechanism: Literal["anna", "latest_match"] = "anna", history: int = 32,
    ) -> None:  # fmt: skip
        require_choice("mechanism", mechanism, ("anna", "latest_match"))
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise InputError("dtype", given=repr(dtype), expected="a floating-point dtype such as torch.float32")
        self.hasher, self.mechanism, self.dtype = hasher, mechanism, dtype
        keep = "sum" if mechanism == "anna" else "newest"
        self.state = BucketState(hasher, value_dim=value_dim, batch=batch, heads=heads, keep=keep, history=history)
        self.batch, self.heads, self.value_dim = self.state.batch, self.state.heads, self.state.value_dim
        self.history = self.state.history
        self._given: torch.dtype | None = None  # that of the values put in last

    @property
    def lengths(self) -> list[int]:
        """How many keys take part, per batch row."""
        return self.state.lengths

    @property
    def recent(self) -> list[int]:
        """How many of the last tokens `crop` can undo, per batch row."""
        return self.state.recent

    @property
    def nbytes(self) -> int:
        """Bytes held by the tables."""
        return self.state.nbytes

    def append(self, key: Keys, value: Values, *, key_mask: KeyMask | None = None) -> None:
        """Store new tokens; masked ones leave no trace, so that rows may get different numbers of tokens.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
        >>> cache.append(torch.randn(1, 1, 10, 4), torch.randn(1, 1, 10, 3))
        >>> cache.lengths
        [10]
        """
        self._check_new(key, key, value, key_mask)
        self.state.fill(key, value, key_mask)
        self._given = value.dtype

    def attend(self, query: Queries) -> Outputs:
        """What these queries get from all that is stored.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
        >>> cache.attend(torch.randn(1, 1, 2, 4)).tolist()
        [[[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]]
        """
        self._check_query(query)
        return self.state.read(query).mean().to(self.dtype or self._given or query.dtype)

    def step(self, query: Queries, key: Keys, value: Values, *, key_mask: KeyMask | None = None) -> Outputs:
        """Append new tokens and let each attend causally: to all that came before, and to itself.

        Masked tokens leave no trace, so that rows may get different numbers of tokens; outputs at their places mean
        nothing.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
        >>> x = torch.randn(1, 1, 1, 4)
        >>> cache.step(x, x, torch.tensor([[[[1.0, 2.0, 3.0]]]])).tolist()
        [[[[1.0, 2.0, 3.0]]]]
        """
        self._check_new(query, key, value, key_mask)
        self._check_query(query)
        if query.shape[2] != key.shape[2]:
            raise InputError("query length", given=query.shape[2], expected=f"the {key.shape[2]} new keys")
        self._given = value.dtype
        return self.state.step(query, key, value, key_mask, self.dtype or value.dtype)[0]

    def crop(self, tokens: int | Int[Tensor, " batch"] | Sequence[int]) -> None:
        """Undo the last tokens, this many of every batch row or of each its own number, as if they had never come.

        For speculative decoding: append a draft, look at it, undo what is rejected. It costs next to nothing. Of each
        row the last `history` tokens can be undone, `recent` says how many are left; `snapshot` has no such limit.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3, batch=2)
        >>> cache.append(torch.randn(2, 1, 10, 4), torch.randn(2, 1, 10, 3))
        >>> cache.crop([3, 1])
        >>> cache.lengths
        [7, 9]
        """
        alone = not isinstance(tokens, Sequence) and getattr(tokens, "ndim", 0) == 0
        expected = f"an integer, or one for each of {self.batch} batch rows"
        each = whole_numbers("tokens", [tokens] if alone else tokens, expected)
        self.state.crop(each * self.batch if alone else each)

    def snapshot(self) -> Snapshot:
        """What the cache holds now, to come back to with `restore` as often as wanted: a prompt that many begin with.

        Nothing is copied now: whoever goes on from here first copies what both share, once per batch row and head.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
        >>> cache.append(torch.randn(1, 1, 10, 4), torch.randn(1, 1, 10, 3))
        >>> prompt = cache.snapshot()
        >>> cache.append(torch.randn(1, 1, 50, 4), torch.randn(1, 1, 50, 3))
        >>> cache.restore(prompt)
        >>> cache.lengths
        [10]
        """
        return Snapshot(self.state.twin(), self._given)

    def restore(self, snapshot: Snapshot) -> None:
        """Hold again what a snapshot holds, of this cache or of one made like it.

        A snapshot of one batch row fills all rows of a larger batch with it.
        """
        require_instance("snapshot", snapshot, Snapshot, "what `snapshot()` gave")
        state = snapshot.state
        fits = self.state.alike(state) and state.history == self.history and state.batch in (1, self.batch)
        if not fits:
            raise InputError(
                "snapshot",
                given="one of a cache with another hasher, mechanism, batch, heads, value_dim or history",
                expected="one of a cache made like this one, or of a single batch row",
            )
        self.state = state.twin(range(self.batch) if state.batch == self.batch else [0] * self.batch)
        self._given = snapshot.dtype

    def reset(self, rows: Int[Tensor, " some"] | Sequence[int] | None = None) -> None:
        """Forget everything, or everything of some batch rows.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3, batch=2)
        >>> cache.append(torch.randn(2, 1, 10, 4), torch.randn(2, 1, 10, 3))
        >>> cache.reset([1])
        >>> cache.lengths
        [10, 0]
        """
        chosen = list(range(self.batch)) if rows is None else batch_rows(rows, self.batch)
        self.state.select([None if row in chosen else row for row in range(self.batch)])

    def reorder(self, rows: Int[Tensor, " batch"] | Sequence[int]) -> None:
        """Row b becomes a copy of what row rows[b] was, as beam search wants it.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3, batch=2)
        >>> cache.append(torch.randn(2, 1, 1, 4), torch.randn(2, 1, 1, 3), key_mask=torch.tensor([[True], [False]]))
        >>> cache.reorder([1, 0])
        >>> cache.lengths
        [0, 1]
        """
        chosen = batch_rows(rows, self.batch)
        if len(chosen) != self.batch:
            raise InputError("rows", given=f"{len(chosen)} indices", expected=f"one for each of {self.batch} rows")
        self.state.select(chosen)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything stored, as tensors; the hasher is not part of it.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
        >>> cache.append(torch.randn(1, 1, 10, 4), torch.randn(1, 1, 10, 3))
        >>> cache.state_dict()["lengths"]
        tensor([10])
        """
        return self.state.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` of a cache of the same shape gave; on a mismatch nothing changes.

        Every number in it is checked, so that a file from anywhere may be loaded.

        >>> import annattn as aa
        >>> hasher = aa.lsh.Hyperplane(4).sample(tables=2, hashes=2)
        >>> old, new = aa.BucketCache(hasher, value_dim=3), aa.BucketCache(hasher, value_dim=3)
        >>> old.append(torch.randn(1, 1, 10, 4), torch.randn(1, 1, 10, 3))
        >>> new.load_state_dict(old.state_dict())
        >>> new.lengths
        [10]
        """
        self.state.load_state_dict(state)
        self._given = None

    def _check_query(self, query: Tensor) -> None:
        require_instance("query", query, Tensor, "a torch.Tensor", hint="torch.as_tensor(...)")
        if query.is_nested or query.layout is not torch.strided or query.device.type == "meta":
            given = f"a tensor of layout {query.layout} on {query.device}"
            raise InputError("query", given=given, expected="a dense tensor with numbers in it")
        if query.ndim != 4 or query.shape[0] != self.batch or query.shape[1] % self.heads:
            raise InputError(
                "query",
                given=f"shape {tuple(query.shape)}",
                expected=f"({self.batch}, a multiple of {self.heads} heads, n, {self.hasher.dim})",
            )
        check_hasher(self.hasher, query)

    def _check_new(self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None) -> None:
        check_inputs(query, key, value, key_mask)
        check_hasher(self.hasher, key)
        if key.shape[:2] != (self.batch, self.heads) or value.shape[-1] != self.value_dim:
            raise InputError(
                "new tokens",
                given=f"keys {tuple(key.shape)}, values {tuple(value.shape)}",
                expected=f"({self.batch}, {self.heads}, n, {self.hasher.dim}) and (..., {self.value_dim})",
                hint="a cache is made for one batch size, number of key heads and value width",
            )
