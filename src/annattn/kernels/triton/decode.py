"""The decode step: one launch for all heads of a layer, with the tables on the GPU.

A program does one key head of one batch row: it hashes the new key in float64, puts the value into its buckets, then
hashes the queries that share the head and reads theirs. The host reads nothing and waits for nothing, so a step can be
captured in a CUDA graph; the host's count of tokens counts calls, not replays.
"""

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from annattn.kernels.tables import Layout
from annattn.kernels.torch.tables import TorchTables
from annattn.kernels.triton.launch import COLUMNS, kernel, launch
from annattn.lsh import Hasher, Hyperplane

__all__ = ["TritonTables", "every_kind"]

_BITS = (16, 64)  # hashes per table, filled up to one of these
_FUNCTIONS = 64  # hash functions at a time: as many whole tables as fit
_DEPTH = 32
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class TritonTables(TorchTables):
    """The tables of the torch backend, with a step that is one kernel."""

    def decode(self, hasher: Hasher, query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor | None:
        """See `Tables`."""
        layout = self.layout
        plain = type(hasher.family) is Hyperplane and self._dense and not layout.history
        if not plain or {query.dtype, key.dtype, value.dtype} != {dtype} or dtype not in _DTYPES:
            return None
        batch, all_heads, _, dim = query.shape
        (normals,) = hasher.parameters
        out = torch.empty(batch, all_heads, 1, layout.width, dtype=dtype, device=query.device)
        bits = next(bits for bits in _BITS if hasher.hashes <= bits)
        launch(
            _step, (batch * layout.heads,),
            query, key, value, normals, self._sums, self._counts, self._lost, out,
            hasher.heads, layout.heads, all_heads // layout.heads, layout.tables, hasher.hashes, layout.buckets, dim,
            layout.width,
            int(layout.keep_newest), *query.stride()[:2], query.stride(3), *key.stride()[:2], key.stride(3),
            *value.stride()[:2], value.stride(3),
            FUNCTIONS=_FUNCTIONS, BITS=bits, DEPTH=_DEPTH, COLUMNS=COLUMNS,
        )  # fmt: skip
        self._lengths = [length + 1 for length in self._lengths]
        return out


def every_kind() -> Iterator[Callable[[], object]]:
    """Steps of every kind that makes a difference to a binary, for `assembly`."""
    for dtype in _DTYPES:
        for hashes in (1, 17):
            layout = Layout(1, 1, 1, 4, 2, False, 0, torch.device("cpu"))
            hasher, rows = Hyperplane(4).sample(tables=1, hashes=hashes), torch.zeros(1, 1, 1, 4, dtype=dtype)
            yield lambda hasher=hasher, rows=rows, layout=layout: TritonTables(layout).decode(
                hasher, rows, rows, rows, rows.dtype
            )


@triton.jit
def _codes(
    x, of_column, normals, first, tables, hashes, dim, FUNCTIONS: tl.constexpr, BITS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Codes of one row in some tables from `first` on, by float64 products; and whether the row is finite."""
    function = tl.arange(0, FUNCTIONS)
    table = first + function // BITS
    bit = function % BITS
    known = (bit < hashes) & (table < tables)
    product = tl.zeros([FUNCTIONS], tl.float64)
    wrong = tl.zeros([DEPTH], tl.int32)
    for start in range(0, dim, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        row = tl.load(x + depth * of_column, mask=depth < dim, other=0).to(tl.float32).to(tl.float64)
        finite = tl.abs(row) < float("inf")
        wrong = wrong | tl.where(finite, 0, 1)
        row = tl.where(finite, row, 0.0)
        part = known[:, None] & (depth < dim)[None, :]
        against = tl.load(normals + (table * hashes + bit)[:, None] * dim + depth[None, :], mask=part, other=0.0)
        product += tl.sum(against.to(tl.float64) * row[None, :], 1)
    word = tl.where((product >= 0) & known, 1, 0).to(tl.int64) << bit.to(tl.int64)
    return tl.sum(tl.reshape(word, [FUNCTIONS // BITS, BITS]), 1), tl.max(wrong, 0)


@kernel
def _step(
    query, key, value, normals, sums, counts, lost, out,
    draws, heads, share, tables, hashes, buckets, dim, width, newest,
    query_batch: tl.int64, query_head: tl.int64, query_column: tl.int64,
    key_batch: tl.int64, key_head: tl.int64, key_column: tl.int64,
    value_batch: tl.int64, value_head: tl.int64, value_column: tl.int64,
    FUNCTIONS: tl.constexpr, BITS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Put one key and value into the tables of one head, then let the queries of that head read."""
    group = tl.program_id(0).to(tl.int64)
    batch = group // heads
    head = group % heads
    some: tl.constexpr = FUNCTIONS // BITS
    key += batch * key_batch + head * key_head
    value += batch * value_batch + head * value_head
    normals += (head * draws // heads) * tables * hashes * dim
    gone = tl.load(lost + group).to(tl.int32)
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        new = tl.load(value + column * value_column, mask=column < width, other=0).to(tl.float32).to(tl.float64)
        for first in range(0, tables, some):
            code, wrong = _codes(key, key_column, normals, first, tables, hashes, dim, FUNCTIONS, BITS, DEPTH)
            gone = gone | wrong
            table = first + tl.arange(0, some)
            taken = (table < tables) & (tl.zeros_like(table) == wrong)
            # Row 0 of the tables is nobody's.
            slot = 1 + (group * tables + table) * buckets + code
            part = taken[:, None] & (column < width)[None, :]
            into = sums + slot[:, None] * width + column[None, :]
            old = tl.load(into, mask=part, other=0.0)
            tl.store(into, tl.where(newest != 0, 0.0, old) + new[None, :], mask=part)
            if start == 0:
                met = tl.load(counts + slot, mask=taken, other=0)
                tl.store(counts + slot, tl.where(newest != 0, 0, met) + 1, mask=taken)
    tl.store(lost + group, gone != 0)
    # What was stored above is read below, by other threads of this program.
    tl.debug_barrier()
    for shared in range(share):
        mine = head * share + shared
        x = query + batch * query_batch + mine * query_head
        for start in range(0, width, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            total = tl.zeros([COLUMNS], tl.float64)
            count = tl.full([], 0, tl.int64)
            unknown = gone
            for first in range(0, tables, some):
                code, wrong = _codes(x, query_column, normals, first, tables, hashes, dim, FUNCTIONS, BITS, DEPTH)
                unknown = unknown | wrong
                table = first + tl.arange(0, some)
                slot = 1 + (group * tables + table) * buckets + code
                part = (table < tables)[:, None] & (column < width)[None, :]
                total += tl.sum(tl.load(sums + slot[:, None] * width + column[None, :], mask=part, other=0.0), 0)
                count += tl.sum(tl.load(counts + slot, mask=table < tables, other=0), 0)
            mean = total / tl.maximum(count, 1).to(tl.float64)
            mean = tl.where(unknown != 0, float("nan"), mean)
            place = (batch * heads * share + mine) * width + column
            tl.store(out + place, mean.to(tl.float32).to(out.dtype.element_ty), mask=column < width)
