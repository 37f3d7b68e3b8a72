"""Attention in pieces that fit a given amount of memory: some heads at a time, or a block of rows of one head."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.attention.inputs import accumulator, check_inputs
from annattn.attention.state import BucketState, Reading
from annattn.errors import InputError
from annattn.lsh import Hasher
from annattn.outofcore.arrays import ArrayFile, ArrayWriter

__all__ = ["Inputs", "attend_by_heads", "attend_by_rows", "needs_rows"]

_LONGEST_BLOCK = 65_536  # rows of a head at a time, so that progress shows and a run can be stopped quickly
_SMALL_TABLE = 2**14  # buckets: tables of so many stay small however many rows there are

RowsDone = Callable[[int], None]
"""Called with the number of rows finished since the last call; in total `Inputs.rows`."""


@dataclass(frozen=True)
class Inputs:
    """Queries, keys and values of shape (n, dim), (heads, n, dim) or (batch, heads, n, dim), and a mask of the keys.

    A group is one key head of one batch row with the query heads that share it. Groups are independent of each other.
    """

    query: ArrayFile
    key: ArrayFile
    value: ArrayFile
    key_mask: Tensor | None = None

    def __post_init__(self) -> None:
        axes = len(self.query.shape)
        for array in (self.query, self.key, self.value):
            if not 2 <= len(array.shape) <= 4:
                expected = "(n, dim), (heads, n, dim) or (batch, heads, n, dim)"
                raise InputError(f"shape of {array.role}", given=array.shape, expected=expected)
            if len(array.shape) != axes:
                raise InputError(
                    f"shape of {array.role}",
                    given=array.shape,
                    expected=f"{axes} axes, as in the query's {self.query.shape}",
                )
        # The library's own checks, on tensors that have a shape and nothing else.
        query, key, value = (
            torch.empty(_four_axes(x.shape), dtype=x.dtype, device="meta") for x in (self.query, self.key, self.value)
        )
        check_inputs(query, key, value, None)
        batch, _, keys, _ = _four_axes(self.key.shape)
        if self.key_mask is not None and tuple(self.key_mask.shape) != (batch, keys):
            expected = f"(n_keys,) = ({keys},)" if axes < 4 else f"(batch, n_keys) = {(batch, keys)}"
            raise InputError("shape of key_mask", given=tuple(self.key_mask.shape), expected=expected)

    @property
    def key_heads(self) -> int:
        """Key heads per batch row."""
        return _four_axes(self.key.shape)[1]

    @property
    def share(self) -> int:
        """Query heads per key head."""
        return _four_axes(self.query.shape)[1] // max(1, self.key_heads)

    @property
    def groups(self) -> int:
        """Key heads of all batch rows."""
        return _four_axes(self.key.shape)[0] * self.key_heads

    @property
    def queries(self) -> int:
        """Queries per head."""
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        """Keys per head."""
        return self.key.shape[-2]

    @property
    def rows(self) -> int:
        """Rows of queries and keys in all heads: the work to be done."""
        return self.groups * self.rows_per_group

    @property
    def rows_per_group(self) -> int:
        """Rows of queries and keys in one group."""
        return self.share * self.queries + self.keys

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (*self.query.shape[:-1], self.value.shape[-1])

    def read_query(self, groups: range, rows: slice = slice(None)) -> Tensor:
        """Queries (groups, share, rows, dim)."""
        return self._read(self.query, groups, self.share, rows, None)

    def read_key_value(self, groups: range, rows: slice = slice(None)) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values (groups, 1, rows, dim), and the mask (groups, rows)."""
        mask = None
        if self.key_mask is not None:
            mask = self.key_mask[torch.tensor([group // self.key_heads for group in groups])][:, rows]
        key, value = (self._read(array, groups, 1, rows, mask) for array in (self.key, self.value))
        return key, value, mask

    def _read(self, array: ArrayFile, groups: range, share: int, rows: slice, mask: Tensor | None) -> Tensor:
        axes, places = len(array.shape), []
        for group in groups:
            batch, head = divmod(group, self.key_heads)
            place = (batch, slice(head * share, (head + 1) * share), rows)
            places.append(place[4 - axes :])
        read = array.read(*places)
        # An array with two axes has no axis of heads.
        read = read if axes > 2 else read[:, None]
        self._check_finite(array, read, groups, share, rows, mask)
        return read

    def _check_finite(
        self, array: ArrayFile, read: Tensor, groups: range, share: int, rows: slice, mask: Tensor | None
    ) -> None:
        # A finite sum means finite numbers, and costs a fraction of looking at each; the sum may also overflow.
        if not read.is_floating_point() or math.isfinite(read.sum(dtype=accumulator(read.dtype)).item()):
            return
        wrong = ~read.isfinite()
        if mask is not None:
            wrong &= mask[:, None, :, None]
        if not wrong.any():
            return
        at, in_group, row, column = wrong.nonzero()[0].tolist()
        batch, head = divmod(groups[at], self.key_heads)
        place = [batch, head * share + in_group, (rows.start or 0) + row, column][4 - len(array.shape) :]
        raise InputError(
            array.role,
            given=f"{read[at, in_group, row, column].item()} at {place} of {array.path}",
            expected="finite numbers",
            hint="" if array.role == "query" else "or leave the key out with key_mask",
        )


def needs_rows(inputs: Inputs, hasher: Hasher, memory: int) -> bool:
    """Whether one group is too large for the memory although its hash tables are small: then its rows are cut."""
    dense = hasher.buckets is not None and hasher.buckets <= _SMALL_TABLE
    return dense and _group_bytes(inputs, hasher.tables) > memory


def attend_by_heads(
    inputs: Inputs,
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    tables: int,
    memory: int,
    out: ArrayWriter,
    progress: RowsDone,
) -> None:
    """Whole heads, as many at a time as fit the memory: bit for bit what `attend` gives for all of them at once."""
    together = max(1, memory // max(1, _group_bytes(inputs, tables)))
    numbers_per_group = inputs.share * inputs.queries * inputs.value.shape[-1]
    for first in range(0, inputs.groups, together):
        groups = range(first, min(first + together, inputs.groups))
        key, value, mask = inputs.read_key_value(groups)
        out.write(first * numbers_per_group, attend(inputs.read_query(groups), key, value, mask))
        progress(len(groups) * inputs.rows_per_group)


def attend_by_rows(
    inputs: Inputs, hasher: Hasher, is_causal: bool, memory: int, out: ArrayWriter, progress: RowsDone
) -> None:
    """`anna_attention` of heads that do not fit: blocks of keys fill the tables, blocks of queries read them.

    Only the tables of one head stay in memory. Sums are in float64, so a result is the true one rounded once.
    """
    width, step = inputs.value.shape[-1], _block_rows(inputs, hasher.tables, memory)
    ahead = inputs.keys - inputs.queries  # a causal query sees this many keys before the one at its own position
    seen_by_all = max(0, ahead) if is_causal else inputs.keys
    see_none = max(0, -ahead) if is_causal else 0
    for group in range(inputs.groups):
        one = range(group, group + 1)
        state = BucketState(hasher, value_dim=width)

        def write(rows: slice, found: Reading, group: int = group) -> None:
            for head, part in enumerate(found.mean().to(inputs.value.dtype)[0]):
                out.write(((group * inputs.share + head) * inputs.queries + rows.start) * width, part)

        for rows in _blocks(0, seen_by_all, step):
            key, value, mask = inputs.read_key_value(one, rows)
            state.fill(key, value.double(), mask)
            progress(rows.stop - rows.start)
        # Without causality all queries are read now, after all keys; with it, only those that come before any key.
        for rows in _blocks(0, see_none if is_causal else inputs.queries, step):
            write(rows, state.read(inputs.read_query(one, rows)))
            progress(inputs.share * (rows.stop - rows.start))
        for rows in _blocks(see_none, inputs.queries, step) if is_causal else ():
            key, value, mask = inputs.read_key_value(one, slice(rows.start + ahead, rows.stop + ahead))
            write(rows, state.scan(inputs.read_query(one, rows), key, value.double(), mask))
            progress((inputs.share + 1) * (rows.stop - rows.start))


def _blocks(first: int, last: int, step: int) -> Iterator[slice]:
    for start in range(first, last, step):
        yield slice(start, min(start + step, last))


def _group_bytes(inputs: Inputs, tables: int) -> int:
    """Memory that one group takes: its rows as read and as summed, their codes, and the result."""
    queries, keys = inputs.share * inputs.queries, inputs.keys
    numbers = (queries + keys) * (2 * inputs.query.shape[-1] + 2 * inputs.value.shape[-1])
    return max(4, inputs.value.dtype.itemsize) * numbers + 16 * tables * (queries + keys)


def _block_rows(inputs: Inputs, tables: int, memory: int) -> int:
    """Rows per block of a head that is cut: each is hashed and summed in float64, with several copies in memory."""
    numbers = (1 + inputs.share) * (4 * inputs.query.shape[-1] + 6 * inputs.value.shape[-1] + 6 * tables)
    return max(1, min(_LONGEST_BLOCK, memory // (8 * numbers)))


def _four_axes(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    batch, heads, n, dim = (1,) * (4 - len(shape)) + shape
    return batch, heads, n, dim
