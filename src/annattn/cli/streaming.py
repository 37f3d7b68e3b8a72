"""Attention over arrays in files, in pieces that fit a given amount of memory."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.attention.inputs import accumulator, check_inputs
from annattn.attention.slots import DENSE_BUCKETS
from annattn.cache import BucketCache
from annattn.cli.arrays import Sink, Source
from annattn.errors import InputError
from annattn.lsh import Hasher

__all__ = ["Arrays", "attend_by_heads", "attend_by_rows", "streams"]

_LONGEST_BLOCK = 65_536  # rows of a head at a time: often enough to show how far it is, and to stop at once


@dataclass(frozen=True)
class Arrays:
    """Queries, keys and values of shape (n, dim), (heads, n, dim) or (batch, heads, n, dim), and who takes part.

    A group is one key head of one batch row with the query heads that share it; groups do not know of each other.
    """

    query: Source
    key: Source
    value: Source
    key_mask: Tensor | None = None

    def __post_init__(self) -> None:
        axes = len(self.query.shape)
        for source in (self.query, self.key, self.value):
            if not 2 <= len(source.shape) <= 4:
                expected = "(n, dim), (heads, n, dim) or (batch, heads, n, dim)"
                raise InputError(f"shape of {source.what}", given=source.shape, expected=expected)
            if len(source.shape) != axes:
                raise InputError(
                    f"shape of {source.what}",
                    given=source.shape,
                    expected=f"{axes} axes, as the query's {self.query.shape}",
                )
        # The library's own checks, on tensors that have a shape and nothing else.
        query, key, value = (
            torch.empty(_four(x.shape), dtype=x.dtype, device="meta") for x in (self.query, self.key, self.value)
        )
        check_inputs(query, key, value, None)
        batch, _, keys, _ = _four(self.key.shape)
        if self.key_mask is not None and tuple(self.key_mask.shape) != (batch, keys):
            expected = f"(n_keys,) = ({keys},)" if axes < 4 else f"(batch, n_keys) = {(batch, keys)}"
            raise InputError("shape of key_mask", given=tuple(self.key_mask.shape), expected=expected)

    @property
    def key_heads(self) -> int:
        """Key heads of a batch row."""
        return _four(self.key.shape)[1]

    @property
    def share(self) -> int:
        """Query heads that share a key head."""
        return _four(self.query.shape)[1] // max(1, self.key_heads)

    @property
    def groups(self) -> int:
        """Key heads of all batch rows."""
        return _four(self.key.shape)[0] * self.key_heads

    @property
    def queries(self) -> int:
        """Queries of a head."""
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        """Keys of a head."""
        return self.key.shape[-2]

    @property
    def rows(self) -> int:
        """All rows there are of queries and keys: what there is to do."""
        return self.groups * (self.share * self.queries + self.keys)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (*self.query.shape[:-1], self.value.shape[-1])

    def read_query(self, groups: range, rows: slice = slice(None)) -> Tensor:
        """Queries (groups, share, rows, dim)."""
        return self._read(self.query, groups, self.share, rows, None)

    def read_key_value(self, groups: range, rows: slice = slice(None)) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values (groups, 1, rows, dim), and which of them take part (groups, rows)."""
        mask = None
        if self.key_mask is not None:
            mask = self.key_mask[torch.tensor([group // self.key_heads for group in groups])][:, rows]
        key, value = (self._read(source, groups, 1, rows, mask) for source in (self.key, self.value))
        return key, value, mask

    def _read(self, source: Source, groups: range, share: int, rows: slice, mask: Tensor | None) -> Tensor:
        axes, places = len(source.shape), []
        for group in groups:
            batch, head = divmod(group, self.key_heads)
            place = (batch, slice(head * share, (head + 1) * share), rows)
            places.append(place[4 - axes :])
        # Of an array of one head there is no axis of heads.
        read = source.read(*places)
        read = read if axes > 2 else read[:, None]
        self._check_finite(source, read, groups, share, rows, mask)
        return read

    def _check_finite(
        self, source: Source, read: Tensor, groups: range, share: int, rows: slice, mask: Tensor | None
    ) -> None:
        # One sum tells, at a fraction of the cost, unless it overflows.
        if not read.is_floating_point() or math.isfinite(read.sum(dtype=accumulator(read.dtype)).item()):
            return
        wrong = ~read.isfinite()
        if mask is not None:
            wrong &= mask[:, None, :, None]
        if not wrong.any():
            return
        at, in_group, row, column = wrong.nonzero()[0].tolist()
        batch, head = divmod(groups[at], self.key_heads)
        place = [batch, head * share + in_group, (rows.start or 0) + row, column][4 - len(source.shape) :]
        raise InputError(
            source.what, given=f"{read[at, in_group, row, column].item()} at {place} of {source.path}",
            expected="finite numbers", hint="" if source.what == "query" else "or a --key-mask that leaves the key out",
        )  # fmt: skip


def streams(arrays: Arrays, hasher: Hasher, memory: int) -> bool:
    """Whether a head is too large to be held, and its hash tables are not."""
    dense = hasher.buckets is not None and hasher.buckets <= DENSE_BUCKETS
    return dense and _group_bytes(arrays, hasher.tables) > memory


def attend_by_heads(
    arrays: Arrays,
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    tables: int,
    memory: int,
    sink: Sink,
    report: Callable[[int], None],
) -> None:
    """Whole heads at a time, as many as the memory holds: bit for bit what `attend` gives for all of them at once."""
    together = max(1, memory // max(1, _group_bytes(arrays, tables)))
    rows_a_group = arrays.share * arrays.queries + arrays.keys
    numbers_a_group = arrays.share * arrays.queries * arrays.value.shape[-1]
    for first in range(0, arrays.groups, together):
        groups = range(first, min(first + together, arrays.groups))
        key, value, mask = arrays.read_key_value(groups)
        sink.write(first * numbers_a_group, attend(arrays.read_query(groups), key, value, mask))
        report(len(groups) * rows_a_group)


def attend_by_rows(
    arrays: Arrays, hasher: Hasher, is_causal: bool, memory: int, sink: Sink, report: Callable[[int], None]
) -> None:
    """`anna_attention` of heads too large to hold: blocks of keys fill the tables, blocks of queries read them.

    Only the tables of one head stay in memory. Sums are kept in float64, so a result is the true one rounded once.
    """
    width, step = arrays.value.shape[-1], _block(arrays, hasher.tables, memory)
    ahead = arrays.keys - arrays.queries  # a causal query sees this many keys before the one at its own place
    seen_by_all = max(0, ahead) if is_causal else arrays.keys
    see_none = max(0, -ahead) if is_causal else 0
    for group in range(arrays.groups):
        one = range(group, group + 1)
        cache = BucketCache(hasher, value_dim=width, dtype=arrays.value.dtype)

        def write(rows: slice, out: Tensor, group: int = group) -> None:
            for head, part in enumerate(out[0]):
                sink.write(((group * arrays.share + head) * arrays.queries + rows.start) * width, part)

        for rows in _blocks(0, seen_by_all, step):
            key, value, mask = arrays.read_key_value(one, rows)
            cache.append(key, value.double(), key_mask=mask)
            report(rows.stop - rows.start)
        # Without an order all queries come after all keys; with one, only those before any key are read like that.
        for rows in _blocks(0, see_none if is_causal else arrays.queries, step):
            write(rows, cache.attend(arrays.read_query(one, rows)))
            report(arrays.share * (rows.stop - rows.start))
        for rows in _blocks(see_none, arrays.queries, step) if is_causal else ():
            key, value, mask = arrays.read_key_value(one, slice(rows.start + ahead, rows.stop + ahead))
            write(rows, cache.step(arrays.read_query(one, rows), key, value.double(), key_mask=mask))
            report((arrays.share + 1) * (rows.stop - rows.start))


def _blocks(first: int, last: int, step: int) -> Iterator[slice]:
    for start in range(first, last, step):
        yield slice(start, min(start + step, last))


def _group_bytes(arrays: Arrays, tables: int) -> int:
    """What a group takes while it is worked on: its rows, as read and as summed, their codes, and the result."""
    queries, keys = arrays.share * arrays.queries, arrays.keys
    numbers = (queries + keys) * (2 * arrays.query.shape[-1] + 2 * arrays.value.shape[-1])
    return max(4, arrays.value.dtype.itemsize) * numbers + 16 * tables * (queries + keys)


def _block(arrays: Arrays, tables: int, memory: int) -> int:
    """Rows at a time when a head is cut: each is hashed and summed in float64, some copies of it at a time."""
    numbers = (1 + arrays.share) * (4 * arrays.query.shape[-1] + 6 * arrays.value.shape[-1] + 6 * tables)
    return max(1, min(_LONGEST_BLOCK, memory // (8 * numbers)))


def _four(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    batch, heads, n, dim = (1,) * (4 - len(shape)) + shape
    return batch, heads, n, dim
