"""The state of hashed attention: what Algorithm 1 stores of the keys it has seen.

Everything ANNA does is to hash, to fill a state and to read one. A decode cache is a state that lives on, a causal
scan is a state that grows, and a sequence larger than memory, or cut among processes, is several states merged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from annattn.attention.inputs import accumulator, hash_inputs
from annattn.attention.slots import make_slots
from annattn.checks import require_choice, require_count
from annattn.errors import InputError
from annattn.kernels import Order, bucket_sum, choose, nan_targets, newest, tables_call
from annattn.lsh import Hasher

__all__ = ["BucketState", "Keep", "Reading"]

Keep = Literal["sum", "newest"]


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
    """Sums and counts per bucket of ℓ tables, and whether a key without a bucket was lost; per batch row and head.

    `keep="newest"` keeps each bucket's newest value in place of the sum, for latest-match attention. Not
    differentiable. Sums are kept in float64, so that they do not drift over a long context.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=8, hashes=6, seed=0)
    >>> q, k, v = torch.randn(3, 1, 2, 6, 4)
    >>> early, late = (aa.attention.BucketState(hasher, heads=2, value_dim=4) for _ in range(2))
    >>> early.fill(k[:, :, :3], v[:, :, :3])
    >>> late.fill(k[:, :, 3:], v[:, :, 3:])
    >>> out = early.merge(late).read(q).mean().float()
    >>> torch.testing.assert_close(out, aa.anna_attention(q, k, v, hasher))
    """

    def __init__(self, hasher: Hasher, *, value_dim: int, batch: int = 1, heads: int = 1, keep: Keep = "sum") -> None:
        require_choice("keep", keep, ("sum", "newest"))
        self.hasher: Hasher = hasher
        self.keep: Keep = keep
        self.batch, self.heads = require_count("batch", batch), require_count("heads", heads)
        self.value_dim = require_count("value_dim", value_dim)
        self._slots = make_slots(hasher, self.batch, self.heads)
        device = hasher.device
        # Apple's GPUs have no float64.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        # Slot 0 is no bucket's: it stays zero, and is what a query reads that meets nothing.
        self._sums = torch.zeros(self._slots.size, self.value_dim, dtype=dtype, device=device)
        self._counts = torch.zeros(self._slots.size, dtype=torch.int64, device=device)
        self._lost = torch.zeros(self.batch, self.heads, dtype=torch.bool, device=device)
        self._lengths = torch.zeros(self.batch, dtype=torch.int64, device=device)

    @property
    def lengths(self) -> list[int]:
        """How many keys take part, per batch row."""
        return self._lengths.tolist()

    @property
    def nbytes(self) -> int:
        """Bytes held by the tables."""
        return self._sums.nbytes + self._counts.nbytes

    @torch.no_grad()
    def fill(self, key: Tensor, value: Tensor, key_mask: Tensor | None = None) -> None:
        """Put keys and values (batch, heads, n, dim) into their buckets; masked ones leave no trace."""
        hashable = self.hasher.hashable(key)
        taking_part = torch.ones_like(hashable) if key_mask is None else key_mask[:, None].expand_as(hashable)
        slots = self._slots.find(key, hashable & taking_part, create=True)
        self._grow(self._slots.size)
        backend = choose(tables_call(self._sums, slots))
        backend.fill_tables(self._sums, self._counts, slots, value, self.keep == "newest")
        self._lost |= (taking_part & ~hashable).any(-1)
        self._lengths += taking_part[:, 0].sum(-1)

    @torch.no_grad()
    def read(self, query: Tensor) -> Reading:
        """What queries (batch, a multiple of the heads, n, dim) find among all keys put in so far."""
        hashable = self.hasher.hashable(query)
        share = query.shape[1] // self.heads
        slots = self._slots.find(query, hashable, create=False, share=share)
        total, count = choose(tables_call(self._sums, slots)).read_tables(self._sums, self._counts, slots)
        return Reading(total, count, ~hashable | self._lost.repeat_interleave(share, 1)[..., None])

    @torch.no_grad()
    def scan(self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None = None) -> Reading:
        """Continue a causal scan from here: each query finds all keys put in before, and the new ones up to its own."""
        if key.shape[2] == 1:
            self.fill(key, value, key_mask)
            return self.read(query)
        query_codes, key_codes = hash_inputs(self.hasher, query, key, key_mask)
        if self.keep == "sum":
            before = self.read(query)
            wide = value.to(accumulator(value.dtype))
            more, met = bucket_sum(query_codes, key_codes, wide, Order.CAUSAL, self.hasher.dense_buckets, False)
            total, count = before.total + more, before.count + met
        else:
            before, total, count = self._scan_newest(query, value, query_codes, key_codes)
        unknown = before.unknown | nan_targets(query_codes, key_codes, Order.CAUSAL)
        self.fill(key, value, key_mask)
        return Reading(total, count, unknown)

    def _scan_newest(
        self, query: Tensor, value: Tensor, query_codes: Tensor, key_codes: Tensor
    ) -> tuple[Reading, Tensor, Tensor]:
        """Per table the newest of the new keys, or where there is none, what the bucket held before."""
        positions = newest(query_codes, key_codes, self.hasher.dense_buckets)
        hashable, share = self.hasher.hashable(query), query.shape[1] // self.heads
        slots = self._slots.find(query, hashable, create=False, share=share)
        slots = torch.where(positions >= 0, 0, slots)
        total, count = choose(tables_call(self._sums, slots)).read_tables(self._sums, self._counts, slots)
        before = Reading(total, count, ~hashable | self._lost.repeat_interleave(share, 1)[..., None])
        rows = value.to(total.dtype).repeat_interleave(share, 1)
        for position in positions.unbind(-1):
            index = position.clamp(min=0)[..., None].expand(*position.shape, self.value_dim)
            total = total + torch.where((position >= 0)[..., None], rows.gather(2, index), 0)
        return before, total, count + (positions >= 0).sum(-1)

    def merge(self, later: "BucketState") -> "BucketState":
        """The state of this one's keys followed by those of `later`; associative, and changes neither.

        >>> import annattn as aa
        >>> hasher = aa.lsh.Hyperplane(4).sample(tables=2, hashes=2)
        >>> a, b = aa.attention.BucketState(hasher, value_dim=3), aa.attention.BucketState(hasher, value_dim=3)
        >>> a.fill(torch.randn(1, 1, 10, 4), torch.randn(1, 1, 10, 3))
        >>> a.merge(b).lengths
        [10]
        """
        same = (self.hasher, self.keep, self.batch, self.heads, self.value_dim)
        if same != (later.hasher, later.keep, later.batch, later.heads, later.value_dim):
            raise InputError(
                "state",
                given="one of another hasher, rule, batch, heads or value_dim",
                expected="one made like this one",
            )
        merged = BucketState(self.hasher, value_dim=self.value_dim, batch=self.batch, heads=self.heads, keep=self.keep)
        for state in (self, later):
            into, of = merged._slots.adopt(state._slots)
            merged._grow(merged._slots.size)
            if self.keep == "sum":
                merged._sums[into] += state._sums[of]
                merged._counts[into] += state._counts[of]
            else:
                held = state._counts[of] > 0
                merged._sums[into[held]] = state._sums[of[held]]
                merged._counts[into[held]] = 1
        merged._lost = self._lost | later._lost
        merged._lengths = self._lengths + later._lengths
        return merged

    def select(self, rows: Sequence[int | None]) -> None:
        """Make batch row b what row rows[b] was, or empty."""
        slots = self._slots.rearrange(rows)
        self._sums, self._counts = self._sums[slots], self._counts[slots]
        picked = torch.tensor([-1 if row is None else row for row in rows], device=self._lost.device)
        kept = picked >= 0
        self._lost = self._lost[picked] & kept[:, None]
        self._lengths = self._lengths[picked] * kept

    def state_dict(self) -> dict[str, Tensor]:
        """Everything stored, as tensors; the hasher is not part of it."""
        own = {"table": self._sums, "tally": self._counts, "lost": self._lost, "lengths": self._lengths}
        return {name: tensor.clone() for name, tensor in {**own, **self._slots.state()}.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` of a state made like this one gave; on a mismatch nothing changes."""
        own = self.state_dict()
        if set(state) != set(own):
            raise InputError("state", given=sorted(state), expected=f"the entries {sorted(own)}")
        for name, tensor in state.items():
            grows = self._slots.grows and name not in ("lost", "lengths")
            same = tensor.shape[1:] == own[name].shape[1:] if grows else tensor.shape == own[name].shape
            if not same or tensor.dtype != own[name].dtype:
                raise InputError(
                    f"state[{name!r}]",
                    given=f"{tuple(tensor.shape)} {tensor.dtype}",
                    expected=f"{tuple(own[name].shape)} {own[name].dtype}",
                    hint="load into a cache with the same hasher, batch, heads and value_dim",
                )
        self._slots.check(state)
        self._slots.load(state)
        here = self._sums.device
        self._sums, self._counts = state["table"].to(here, copy=True), state["tally"].to(here, copy=True)
        self._lost, self._lengths = state["lost"].to(here, copy=True), state["lengths"].to(here, copy=True)

    def _grow(self, size: int) -> None:
        if size > len(self._sums):
            more = max(size, 2 * len(self._sums)) - len(self._sums)
            self._sums = torch.nn.functional.pad(self._sums, (0, 0, 0, more))
            self._counts = torch.nn.functional.pad(self._counts, (0, more))
