"""The decode cache: the hash tables themselves, so that a step costs the same at any length of the context."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from annattn.attention.anna import bucket_hint, hash_inputs
from annattn.attention.inputs import accumulator, check_hasher, check_inputs
from annattn.cache.slots import DenseSlots, SparseSlots, make_slots
from annattn.checks import require_count
from annattn.errors import InputError
from annattn.kernels import collect, spoiled
from annattn.kernels.dispatch import choose
from annattn.kernels.numba_cache import dense_append, dense_attend
from annattn.lsh import Hasher

__all__ = ["BucketCache"]


class BucketCache:
    """Keys and values seen so far, as Algorithm 1 stores them: per bucket a sum of values and a count of keys.

    With at most 2^14 buckets a table the tables are dense, and memory does not grow with the context; wider codes are
    stored by the buckets that occur. `mechanism="latest_match"` keeps each bucket's newest value instead of its sum.
    For inference: nothing here is differentiable.

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
        for name, count in (("value_dim", value_dim), ("batch", batch), ("heads", heads)):
            require_count(name, count)
        if mechanism not in ("anna", "latest_match"):
            raise InputError("mechanism", given=repr(mechanism), expected='"anna" or "latest_match"')
        if not isinstance(hasher, Hasher) or not dtype.is_floating_point:
            raise InputError(
                "hasher, dtype", given=(type(hasher).__name__, dtype), expected="a Hasher and a floating-point dtype"
            )
        self.hasher, self.mechanism, self.dtype = hasher, mechanism, dtype
        self.batch, self.heads, self.value_dim = batch, heads, value_dim
        self._slots = make_slots(hasher, batch, heads)
        # Slot 0 is no bucket's: it stays zero, and is what a query reads that meets nothing.
        self._table = torch.zeros(self._slots.size, value_dim, dtype=_sum_dtype(hasher), device=hasher.device)
        self._tally = torch.zeros(self._slots.size, dtype=torch.int64, device=hasher.device)
        self._lost = torch.zeros(batch, heads, dtype=torch.bool, device=hasher.device)
        self._lengths = torch.zeros(batch, dtype=torch.int64, device=hasher.device)

    @property
    def lengths(self) -> list[int]:
        """How many keys take part, per batch row."""
        return self._lengths.tolist()

    @property
    def nbytes(self) -> int:
        """Bytes held by the tables."""
        return self._table.nbytes + self._tally.nbytes

    @torch.no_grad()
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
        self._append(key, value, key_mask)

    @torch.no_grad()
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
        return self._attend(query)

    @torch.no_grad()
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
        if key.shape[2] == 1:
            self._append(key, value, key_mask)
            return self._attend(query)
        if self.mechanism != "anna":
            outs = [query.new_zeros(*query.shape[:2], 0, self.value_dim, dtype=self.dtype)]
            for at in range(key.shape[2]):
                here = slice(at, at + 1)
                self._append(key[:, :, here], value[:, :, here], None if key_mask is None else key_mask[:, here])
                outs.append(self._attend(query[:, :, here]))
            return torch.cat(outs, dim=2)
        total, count, poisoned = self._read(query)
        query_codes, key_codes = hash_inputs(self.hasher, query, key, key_mask)
        more, met = collect(
            query_codes, key_codes, value.to(accumulator(value.dtype)), 1, bucket_hint(self.hasher), False
        )
        self.append(key, value, key_mask=key_mask)
        poisoned = poisoned | spoiled(query_codes, key_codes, 1)[..., None]
        return self._finish(total + more, count + met[..., None], poisoned)

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
        self._rearrange([None if row in chosen else row for row in range(self.batch)])

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
        self._rearrange(chosen)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything stored, as tensors; the hasher is not part of it.

        >>> import annattn as aa
        >>> cache = aa.BucketCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
        >>> sorted(cache.state_dict())
        ['lengths', 'lost', 'table', 'tally']
        """
        own = {"table": self._table, "tally": self._tally, "lost": self._lost, "lengths": self._lengths}
        return {name: tensor.clone() for name, tensor in {**own, **self._slots.state()}.items()}

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
        own = self.state_dict()
        if set(state) != set(own):
            raise InputError("state", given=sorted(state), expected=f"the entries {sorted(own)}")
        for name, tensor in state.items():
            grows = isinstance(self._slots, SparseSlots) and name not in ("lost", "lengths")
            same = tensor.shape[1:] == own[name].shape[1:] if grows else tensor.shape == own[name].shape
            if not same or tensor.dtype != own[name].dtype:
                raise InputError(
                    f"state[{name!r}]",
                    given=f"{tuple(tensor.shape)} {tensor.dtype}",
                    expected=f"{tuple(own[name].shape)} {own[name].dtype}",
                    hint="load into a cache with the same hasher, batch, heads and value_dim",
                )
        if isinstance(self._slots, SparseSlots):
            slots = len(state["slot_owners"])
            if not (len(state["slot_digits"]) == slots < len(state["table"]) == len(state["tally"])):
                sizes = {name: len(tensor) for name, tensor in state.items()}
                raise InputError("state", given=f"lengths {sizes}", expected="an owner for every slot of the table")
        self._slots.load(state)
        here = self._table.device
        self._table, self._tally = state["table"].to(here, copy=True), state["tally"].to(here, copy=True)
        self._lost, self._lengths = state["lost"].to(here, copy=True), state["lengths"].to(here, copy=True)

    def _append(self, key: Tensor, value: Tensor, key_mask: Tensor | None) -> None:
        if self._compiled(key):
            dense_append(
                self.hasher, key, value, key_mask, self._table, self._tally, self._lost, self._lengths,
                newest=self.mechanism != "anna",
            )  # fmt: skip
            return
        hashable = self.hasher.hashable(key)
        kept = hashable if key_mask is None else hashable & key_mask[:, None]
        slots = self._slots.find(key, kept, create=True)
        self._grow(self._slots.size)
        # (batch, heads, new, tables): every kept token writes to its slot of every table.
        if bool(kept.all()):
            rows, slots = value.flatten(0, 2), slots.flatten(0, 2)
        else:
            rows, slots = value[kept], slots[kept]
        if self.mechanism == "anna":
            for slot in slots.unbind(-1):
                self._table.index_add_(0, slot, rows.to(self._table.dtype))
                self._tally.index_add_(0, slot, torch.ones_like(slot))
        else:
            self._keep_newest(slots, rows.to(self._table.dtype))
        taking_part = torch.ones_like(kept) if key_mask is None else key_mask[:, None].expand_as(kept)
        self._lost |= (taking_part & ~hashable).any(-1)
        self._lengths += taking_part[:, 0].sum(-1)

    def _attend(self, query: Tensor) -> Tensor:
        if self._compiled(query):
            return dense_attend(self.hasher, query, self.heads, self._table, self._tally, self._lost, self.dtype)
        total, count, poisoned = self._read(query)
        return self._finish(total, count, poisoned)

    def _compiled(self, x: Tensor) -> bool:
        """Whether the compiled kernels can do a whole step: dense tables on a CPU."""
        return isinstance(self._slots, DenseSlots) and choose(x).__name__.endswith("numba_backend")

    def _read(self, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hashable = self.hasher.hashable(query)
        share = query.shape[1] // self.heads
        slots = self._slots.find(query, hashable, create=False, share=share)
        total = self._table.new_zeros(*query.shape[:3], self.value_dim)
        count = self._tally.new_zeros(query.shape[:3])
        for slot in slots.unbind(-1):
            total += self._table[slot]
            count += self._tally[slot]
        poisoned = ~hashable | self._lost.repeat_interleave(share, 1)[..., None]
        return total, count[..., None], poisoned[..., None]

    def _finish(self, total: Tensor, count: Tensor, poisoned: Tensor) -> Tensor:
        return (total / count.clamp(min=1)).masked_fill(poisoned, torch.nan).to(self.dtype)

    def _keep_newest(self, slots: Tensor, rows: Tensor) -> None:
        order = torch.arange(len(rows), device=rows.device)
        for slot in slots.unbind(-1):
            # Rows of one (batch, head) come in order of time, and no slot is shared across them: the last one stays.
            written, place = torch.unique(slot, return_inverse=True)
            last = torch.full(written.shape, -1, device=rows.device).scatter_reduce(0, place, order, "amax")
            self._table[written] = rows[last]
            self._tally[written] = 1

    def _grow(self, size: int) -> None:
        if size > len(self._table):
            more = max(size, 2 * len(self._table)) - len(self._table)
            self._table = torch.nn.functional.pad(self._table, (0, 0, 0, more))
            self._tally = torch.nn.functional.pad(self._tally, (0, more))

    def _rearrange(self, sources: Sequence[int | None]) -> None:
        slots = self._slots.rearrange(sources)
        self._table, self._tally = self._table[slots], self._tally[slots]
        picked = torch.tensor([-1 if row is None else row for row in sources], device=self._lost.device)
        kept = picked >= 0
        self._lost = self._lost[picked] & kept[:, None]
        self._lengths = self._lengths[picked] * kept

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


def _sum_dtype(hasher: Hasher) -> torch.dtype:
    """Sums are kept in float64, so that they do not drift over a long context; Apple's GPUs have none."""
    return torch.float32 if hasher.device.type == "mps" else torch.float64
