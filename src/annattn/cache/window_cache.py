"""The decode cache of `window_attention`: the last tokens as they are, and hash tables of all before them."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from annattn.attention.band import band_softmax
from annattn.attention.inputs import check_inputs
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.attention.state import BucketState, batch_rows
from annattn.attention.window import Combine, check_gate, check_near, check_window, combined
from annattn.checks import require_count
from annattn.errors import InputError
from annattn.lsh import Hasher

__all__ = ["WindowCache"]


class WindowCache:
    """Keys and values of the last tokens, and buckets of the earlier ones; a step costs the same at any length.

    A token moves into its buckets as it leaves the window. Positions count, masked or not. The last `history` tokens
    can be undone. For inference: nothing here is differentiable.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=8, hashes=3, seed=0, heads=2)
    >>> q, k, v = torch.randn(3, 1, 2, 9, 4)
    >>> cache = aa.WindowCache(hasher, window=3, heads=2, value_dim=4)
    >>> steps = [cache.step(q[:, :, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1]) for i in range(9)]
    >>> whole = aa.window_attention(q, k, v, hasher, window=3, is_causal=True)
    >>> torch.testing.assert_close(torch.cat(steps, 2), whole)
    """

    def __init__(
        self, hasher: Hasher, *,
        window: int, value_dim: int, batch: int = 1, heads: int = 1, combine: Combine = "joined",
        scale: float | None = None, shift: int = 0, history: int = 32,
    ) -> None:  # fmt: skip
        self.window, self.shift = check_window(window, combine, scale, shift, is_causal=True)
        self.scale = scale
        self.combine: Combine = combine
        self.state = BucketState(hasher, value_dim=value_dim, batch=batch, heads=heads, history=history)
        self.tokens = 0
        """How many tokens came, masked ones included: the position of the next."""
        self._undoable = 0
        self._kept: dict[str, Tensor] = {}  # of the last tokens: key, near key, value, mask

    @property
    def batch(self) -> int:
        """How many sequences."""
        return self.state.batch

    @property
    def recent(self) -> int:
        """How many of the last tokens `crop` can undo."""
        return self._undoable

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.state.nbytes + sum(x.nbytes for x in self._kept.values())

    @torch.no_grad()
    def step(
        self,
        query: Queries,
        key: Keys,
        value: Values,
        *,
        key_mask: KeyMask | None = None,
        near: tuple[Tensor, Tensor] | None = None,
        gate: Tensor | float = 0.0,
    ) -> Outputs:
        """Append new tokens and let each attend causally: to those in its window, and to the buckets of all before.

        `near` and `gate` are those of `window_attention`.

        >>> import annattn as aa
        >>> cache = aa.WindowCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), window=2, value_dim=3)
        >>> x = torch.randn(1, 1, 1, 4)
        >>> cache.step(x, x, torch.tensor([[[[1.0, 2.0, 3.0]]]])).tolist()
        [[[[1.0, 2.0, 3.0]]]]
        """
        # All of it before anything changes.
        self._check(query, key, value, key_mask)
        near_query, near_key = (query, key) if near is None else check_near(near, query, key)
        gate = check_gate(gate, query.shape[1])
        mask = torch.ones(len(key), key.shape[2], dtype=torch.bool, device=key.device) if key_mask is None else key_mask
        new = {"key": key, "near": near_key, "value": value, "mask": mask}
        joined = {
            name: torch.cat([self._kept[name], x], dim=x.ndim // 2) if self._kept else x for name, x in new.items()
        }
        length, count = joined["key"].shape[2], key.shape[2]
        # As many keys leave the window as tokens come; there are none before the first, so masked ones stand for them.
        first = length - count - self.window

        def cut(x: Tensor, start: int) -> Tensor:
            missing = max(-start, 0)
            x = pad(x, (0, 0, missing, 0) if x.ndim == 4 else (missing, 0))
            return x.narrow(x.ndim // 2, start + missing, count)

        behind = first - self.shift
        leaving = cut(joined["mask"], behind) & cut(joined["mask"], first)
        near_part = band_softmax(
            near_query, joined["near"], joined["value"], window=self.window, scale=self.scale, key_mask=joined["mask"]
        )
        dtype = near_part.mean.dtype
        far, met = self.state.step(query, cut(joined["key"], behind), cut(joined["value"], first), leaving, dtype)
        kept = min(length, self.window + self.shift + self.state.history)
        # Copied, so that a long prompt does not stay.
        self._kept = {name: x.narrow(x.ndim // 2, length - kept, kept).clone() for name, x in joined.items()}
        self.tokens += count
        self._undoable = min(self.state.history, self._undoable + count)
        mass = met.to(dtype) / self.state.hasher.tables
        return combined(near_part, far, mass, gate, self.combine).to(value.dtype)

    def crop(self, tokens: int) -> None:
        """Undo this many of the last tokens, as if they had never come; at most `recent`.

        >>> import annattn as aa
        >>> cache = aa.WindowCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), window=2, value_dim=3)
        >>> x = torch.randn(1, 1, 9, 4)
        >>> _ = cache.step(x, x, torch.randn(1, 1, 9, 3))
        >>> cache.crop(5)
        >>> cache.tokens
        4
        """
        tokens = require_count("tokens to undo", tokens, least=0, most=self.recent)
        if tokens == 0:
            return
        length, mask = self._kept["key"].shape[2], self._kept["mask"]
        # The keys that left the window since then, as far as they took part.
        last = length - self.window - self.shift
        gone = slice(max(last - tokens, 0), max(last, 0))
        took_part = mask[:, gone] & mask[:, gone.start + self.shift : gone.stop + self.shift]
        self.state.crop(took_part.sum(1).tolist())
        self._kept = {name: x.narrow(x.ndim // 2, 0, length - tokens) for name, x in self._kept.items()}
        self.tokens -= tokens
        self._undoable -= tokens

    def select(self, rows: Int[Tensor, " some"] | Sequence[int]) -> None:
        """Batch row b becomes a copy of what row rows[b] was; there may be more or fewer rows than before.

        >>> import annattn as aa
        >>> cache = aa.WindowCache(aa.lsh.Hyperplane(4).sample(tables=2, hashes=2), window=2, value_dim=3)
        >>> cache.select([0, 0])
        >>> cache.batch
        2
        """
        chosen = batch_rows(rows, self.batch)
        self.state = self.state.twin(chosen)
        self._kept = {name: x[chosen] for name, x in self._kept.items()}

    def _check(self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None) -> None:
        check_inputs(query, key, value, key_mask, hasher=self.state.hasher)
        shape = (self.state.batch, self.state.heads, query.shape[2])
        if key.shape[:3] != shape or value.shape[-1] != self.state.value_dim:
            raise InputError(
                "new tokens",
                given=f"queries {tuple(query.shape)}, keys {tuple(key.shape)}, values {tuple(value.shape)}",
                expected=f"as many queries as keys, keys {shape} and values {self.state.value_dim} wide",
                hint="a cache is made for one batch size, number of key heads and value width",
            )
