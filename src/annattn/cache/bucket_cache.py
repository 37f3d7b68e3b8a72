"""The decode cache: the hash tables themselves, so that a step costs the same at any length of the context."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from annattn.attention.inputs import check_hasher, check_inputs
from annattn.attention.state import BucketState
from annattn.checks import require_choice
from annattn.errors import InputError
from annattn.lsh import Hasher

__all__ = ["BucketCache"]


class BucketCache:
    """Keys and values seen so far, as Algorithm 1 stores them: per bucket a sum of values and a count of keys.

    With at most 2^14 buckets per table the tables are dense, and memory does not grow with the context; wider codes
    are stored by the buckets that occur. `mechanism="latest_match"` keeps each bucket's newest value instead of its
    sum. For inference: nothing here is differentiable.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=8, hashes=6, seed=0)
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4)
    >>> cache = aa.BucketCache(hasher, heads=2, value_dim=4)
    >>> steps = [cache.step(q[:, :, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1]) for i in range(5)]
    >>> torch.testing.assert_close(torch.cat(steps, 2), aa.anna_attention(q, k, v, hasher, is_causal=True))
    """

    def __init__(
        self,
        hasher: Hasher,
        *,
        value_dim: int,
        batch: int = 1,
        heads: int = 1,
        dtype: torch.dtype = torch.float32,
        mechanism: Literal["anna", "latest_match"] = "anna",
    ) -> None:
        require_choice("mechanism", mechanism, ("anna", "latest_match"))
        if not isinstance(hasher, Hasher) or not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise InputError(
                "hasher, dtype", given=(type(hasher).__name__, dtype), expected="a Hasher and a floating-point dtype"
            )
        self.hasher, self.mechanism, self.dtype = hasher, mechanism, dtype
        keep = "sum" if mechanism == "anna" else "newest"
        self.state = BucketState(hasher, value_dim=value_dim, batch=batch, heads=heads, keep=keep)
        self.batch, self.heads, self.value_dim = self.state.batch, self.state.heads, self.state.value_dim

    @property
    def lengths(self) -> list[int]:
        """How many keys take part, per batch row."""
        return self.state.lengths

    @property
    def nbytes(self) -> int:
        """Bytes held by the tables."""
        return self.state.nbytes

    def append(
        self,
        key: Float[Tensor, "batch heads new dim"],
        value: Float[Tensor, "batch heads new value_dim"],
        *,
        key_mask: Bool[Tensor, "batch new"] | None = None,
    ) -> None:
        """Store new tokens; masked ones (left padding, say) leave no trace.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
        >>> cache.append(torch.randn(1, 1, 10, 4), torch.randn(1, 1, 10, 3))
        >>> cache.lengths
        [10]
        """
        self._check_new(key, key, value, key_mask)
        self.state.fill(key, value, key_mask)

    def attend(
        self, query: Float[Tensor, "batch query_heads queries dim"]
    ) -> Float[Tensor, "batch query_heads queries value_dim"]:
        """What these queries get from all that is stored.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
        >>> cache.attend(torch.randn(1, 1, 2, 4)).tolist()
        [[[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]]
        """
        self._check_query(query)
        return self.state.read(query).mean().to(self.dtype)

    def step(
        self,
        query: Float[Tensor, "batch query_heads new dim"],
        key: Float[Tensor, "batch heads new dim"],
        value: Float[Tensor, "batch heads new value_dim"],
        *,
        key_mask: Bool[Tensor, "batch new"] | None = None,
    ) -> Float[Tensor, "batch query_heads new value_dim"]:
        """Append new tokens and let each attend causally: to all that came before, and to itself.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
        >>> x = torch.randn(1, 1, 1, 4)
        >>> cache.step(x, x, torch.tensor([[[[1.0, 2.0, 3.0]]]])).tolist()
        [[[[1.0, 2.0, 3.0]]]]
        """
        self._check_query(query)
        self._check_new(query, key, value, key_mask)
        if query.shape[2] != key.shape[2]:
            raise InputError("query length", given=query.shape[2], expected=f"the {key.shape[2]} new keys")
        return self.state.scan(query, key, value, key_mask).mean().to(self.dtype)

    def reset(self, rows: Int[Tensor, " some"] | list[int] | None = None) -> None:
        """Forget everything, or everything of some batch rows.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3, batch=2)
        >>> cache.append(torch.randn(2, 1, 10, 4), torch.randn(2, 1, 10, 3))
        >>> cache.reset([1])
        >>> cache.lengths
        [10, 0]
        """
        chosen = range(self.batch) if rows is None else self._picked(rows)
        self.state.select([None if row in chosen else row for row in range(self.batch)])

    def reorder(self, rows: Int[Tensor, " batch"] | list[int]) -> None:
        """Row b becomes a copy of what row rows[b] was, as beam search wants it.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3, batch=2)
        >>> cache.append(torch.randn(2, 1, 1, 4), torch.randn(2, 1, 1, 3), key_mask=torch.tensor([[True], [False]]))
        >>> cache.reorder([1, 0])
        >>> cache.lengths
        [0, 1]
        """
        chosen = self._picked(rows)
        if len(chosen) != self.batch:
            raise InputError("rows", given=f"{len(chosen)} indices", expected=f"one for each of {self.batch} rows")
        self.state.select(chosen)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything stored, as tensors; the hasher is not part of it.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
        >>> sorted(cache.state_dict())
        ['lengths', 'lost', 'table', 'tally']
        """
        return self.state.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` of a cache of the same shape gave; on a mismatch nothing changes.

        >>> import annattn as aa
        >>> hasher = aa.lsh.Hyperplane(4).sample(tables=2, hashes=2)
        >>> old, new = aa.BucketCache(hasher, value_dim=3), aa.BucketCache(hasher, value_dim=3)
        >>> old.append(torch.randn(1, 1, 10, 4), torch.randn(1, 1, 10, 3))
        >>> new.load_state_dict(old.state_dict())
        >>> new.lengths
        [10]
        """
        self.state.load_state_dict(state)

    def _picked(self, rows: Tensor | list[int]) -> list[int]:
        picked = torch.as_tensor(rows)
        is_index = picked.ndim == 1 and not picked.is_floating_point() and picked.dtype != torch.bool
        if picked.numel() and not (is_index and bool(((picked >= 0) & (picked < self.batch)).all())):
            raise InputError("rows", given=rows, expected=f"a list of batch rows from 0 to {self.batch - 1}")
        return picked.tolist()

    def _check_query(self, query: Tensor) -> None:
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
