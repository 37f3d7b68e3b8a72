"""The decode step: one launch for all heads of a layer, with everything the tables hold on the GPU.

A program does one key head of one batch row: it hashes the new key in float64 and puts it into the ring of the last
tokens, lets the oldest of them leave for its buckets, then hashes the queries that share the head and reads both. The
host reads nothing, waits for nothing and keeps no position, so a step can be captured in a CUDA graph: replays count.

Work per key head: 2·dim·tables·hashes operations for its key and for each of its queries. Bytes: tables · width rows
of float64 read and written once, as many read per query, history · tables codes read per query, and a value of the
ring for every token met there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from annattn.kernels.tables import Layout, Tables
from annattn.kernels.torch.tables import TorchTables
from annattn.kernels.triton.launch import COLUMNS, kernel, launch
from annattn.lsh import IGNORED, Hasher, Hyperplane

__all__ = ["TritonTables", "every_kind"]

_BITS = (8, 16)  # hashes per table, filled up to one of these; dense tables have at most 14
_FUNCTIONS = 64  # hash functions at a time: as many whole tables as fit
_DEPTH = 32
_PLACES = 32  # tokens of the ring at a time
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class _Held:
    """What a step reads and writes.

    - sums, counts: a row and a number per bucket of every batch row, head and table; the first are nobody's.
    - lost: (batch, heads), whether a token without a bucket has left the ring.
    - codes, values: (batch, heads, history, tables or width), the ring of the last tokens; IGNORED is nobody's place.
    - steps: (batch, heads), how many tokens came since the ring was last laid out; the next goes to place
      steps mod history. One for each program, which alone reads and writes it.
    """

    sums: Tensor
    counts: Tensor
    lost: Tensor
    codes: Tensor
    values: Tensor
    steps: Tensor


class TritonTables(Tables):
    """A row for every bucket there could be, and beside them a ring of the last tokens.

    What is no step is done by the torch backend's tables, on the same rows and with the ring laid out in order of time;
    the result is written to where the rows and the ring are, so that a captured step stays valid.
    """

    def __init__(self, layout: Layout, holding: TorchTables | None = None) -> None:
        super().__init__(layout)
        self._held: _Held | None = None
        self._take(TorchTables(layout) if holding is None else holding)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _take(self, plain: TorchTables) -> None:
        """Hold what these tables hold, at the addresses of before."""
        layout, recent = self.layout, plain._codes.shape[2]
        places = (layout.batch, layout.heads, layout.history)
        codes = plain._codes.new_full((*places, layout.tables), IGNORED)
        values = plain._late.new_zeros(*places, layout.width)
        codes[:, :, layout.history - recent :] = plain._codes
        values[:, :, layout.history - recent :] = plain._late
        steps = torch.zeros(layout.batch, layout.heads, dtype=torch.int64, device=layout.device)
        new = _Held(plain._sums, plain._counts, plain._lost, codes, values, steps)
        self._before = plain.lengths  # how many tokens each row held then
        if self._held is None:
            self._held = new
            return
        for name, tensor in vars(new).items():
            kept = getattr(self._held, name)
            if kept is not tensor:
                kept.copy_(tensor)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _plain(self) -> TorchTables:
        """Tables of the torch backend on the same rows."""
        held, history = self._held, self.layout.history
        assert held is not None
        # From the place of the next token on lie the oldest.
        order = torch.arange(history, device=held.steps.device) + held.steps[..., None]
        pick = (order % max(history, 1))[..., None]
        codes, values = (x.gather(2, pick.expand(x.shape)) for x in (held.codes, held.values))
        return TorchTables.holding(
            self.layout, held.sums, held.counts, held.lost, codes, values, self.lengths, self.recent
        )

    @property
    def lengths(self) -> list[int]:
        """See `Tables`; waits for the GPU."""
        assert self._held is not None
        return [before + more for before, more in zip(self._before, self._held.steps[:, 0].tolist(), strict=True)]

    @property
    def recent(self) -> list[int]:
        """See `Tables`; waits for the GPU."""
        assert self._held is not None
        return (self._held.codes[:, 0, :, 0] != IGNORED).sum(-1).tolist()

    @property
    def nbytes(self) -> int:
        """See `Tables`."""
        return sum(tensor.nbytes for tensor in vars(self._held).values())

    def add(self, codes: Tensor, value: Tensor, kept: Tensor | None) -> None:
        """See `Tables`."""
        plain = self._plain()
        plain.add(codes, value, kept)
        self._take(plain)

    def read(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Tables`."""
        return self._plain().read(codes)

    def crop(self, tokens: Sequence[int]) -> None:
        """See `Tables`."""
        plain = self._plain()
        plain.crop(tokens)
        self._take(plain)

    def select(self, rows: Sequence[int | None]) -> None:
        """See `Tables`."""
        plain = self._plain()
        plain.select(rows)
        self._take(plain)

    def twin(self, rows: Sequence[int]) -> "TritonTables":
        """See `Tables`; here all is copied at once."""
        return TritonTables(replace(self.layout, batch=len(rows)), self._plain().twin(rows))

    def merge(self, later: Tables, names: Sequence[Tensor | None]) -> None:
        """See `Tables`."""
        assert isinstance(later, TritonTables)
        plain = self._plain()
        plain.merge(later._plain(), names)
        self._take(plain)

    def saved(self) -> dict[str, Tensor]:
        """See `Tables`."""
        return self._plain().saved()

    def load(self, saved: dict[str, Tensor]) -> None:
        """See `Tables`."""
        plain = self._plain()
        plain.load(saved)
        self._take(plain)

    def decode(
        self, hasher: Hasher, query: Tensor, key: Tensor, value: Tensor, kept: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """See `Tables`."""
        layout, held = self.layout, self._held
        assert held is not None
        given = {query.dtype, key.dtype, value.dtype}
        known = type(hasher.family) is Hyperplane and len(given) == 1 and value.dtype in _DTYPES
        if not known or hasher.shared or dtype not in (value.dtype, torch.float32):
            return None
        batch, all_heads, _, dim = query.shape
        (normals,) = hasher.parameters
        out = torch.empty(batch, all_heads, 1, layout.width, dtype=dtype, device=query.device)
        met = torch.empty(batch, all_heads, 1, dtype=torch.int64, device=query.device)
        bits = next(bits for bits in _BITS if hasher.hashes <= bits)
        coming = held.lost if kept is None else kept
        launch(
            _step, (batch * layout.heads,),
            query, key, value, coming, normals, *vars(held).values(), out, met,
            hasher.heads, layout.heads, all_heads // layout.heads, layout.tables, hasher.hashes, layout.buckets, dim,
            layout.width, layout.history, int(layout.keep_newest), int(kept is not None),
            *query.stride()[:2], query.stride(3), *key.stride()[:2], key.stride(3),
            *value.stride()[:2], value.stride(3), coming.stride(0),
            FUNCTIONS=_FUNCTIONS, BITS=bits, DEPTH=_DEPTH, COLUMNS=COLUMNS, PLACES=_PLACES, warps=8,
        )  # fmt: skip
        return out, met


def every_kind() -> Iterator[Callable[[], object]]:
    """Steps of every kind that makes a difference to a binary, for `assembly`."""
    layout = Layout(1, 1, 1, 4, 2, False, 1, torch.device("cpu"))
    for given in _DTYPES:
        for dtype in {given, torch.float32}:
            for hashes in _BITS:
                hasher, rows = (
                    Hyperplane(4).sample(tables=1, hashes=min(hashes, 14)),
                    torch.zeros(1, 1, 1, 4, dtype=given),
                )
                yield lambda hasher=hasher, rows=rows, dtype=dtype: TritonTables(layout).decode(
                    hasher, rows, rows, rows, None, dtype
                )


@triton.jit
def _codes(
    x, of_column, normals, first, tables, hashes, dim, FUNCTIONS: tl.constexpr, BITS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Codes of one row in some tables from `first` on, by float64 products; and whether the row is not finite."""
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
    query, key, value, kept, normals, sums, counts, lost, codes, values, steps, out, out_count,
    draws, heads, share, tables, hashes, buckets, dim, width, history, newest, masked,
    query_batch: tl.int64, query_head: tl.int64, query_column: tl.int64,
    key_batch: tl.int64, key_head: tl.int64, key_column: tl.int64,
    value_batch: tl.int64, value_head: tl.int64, value_column: tl.int64, kept_batch: tl.int64,
    FUNCTIONS: tl.constexpr, BITS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """One token enters the ring of one head and the oldest leaves it for the tables; then that head's queries read."""
    group = tl.program_id(0).to(tl.int64)
    batch = group // heads
    head = group % heads
    some: tl.constexpr = FUNCTIONS // BITS
    key += batch * key_batch + head * key_head
    value += batch * value_batch + head * value_head
    normals += (head * draws // heads) * tables * hashes * dim
    sums += (1 + group * tables * buckets) * width  # the first row is nobody's
    counts += 1 + group * tables * buckets
    codes += group * history * tables
    values += group * history * width
    comes = tl.load(kept + batch * kept_batch, mask=masked != 0, other=1).to(tl.int32)
    step = tl.load(steps + group)
    places = tl.maximum(history, 1)
    place = (step % places).to(tl.int32)
    # A masked token enters nothing; without a ring, a token leaves as it comes.
    entered = tl.where(comes != 0, tables, 0)
    ringed = tl.where(history > 0, entered, 0)
    from_ring = tl.where(history > 0, width, 0)
    gone = tl.load(lost + group).to(tl.int32)
    for first in range(0, tables, some):
        code, wrong = _codes(key, key_column, normals, first, tables, hashes, dim, FUNCTIONS, BITS, DEPTH)
        code = tl.where(tl.zeros_like(code) + wrong == 0, code, -1)  # -1 is NO_BUCKET
        table = first + tl.arange(0, some)
        known = table < entered
        at = codes + place * tables + table
        leaving = tl.where(history > 0, tl.load(at, mask=table < ringed, other=0), code)
        # All threads have read the oldest before any puts the newest in its place.
        tl.debug_barrier()
        tl.store(at, code, mask=table < ringed)
        gone = gone | tl.max(tl.where(known & (leaving == -1), 1, 0), 0)
        taken = known & (leaving >= 0)
        bucket = table.to(tl.int64) * buckets + leaving
        for start in range(0, width, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            new = tl.load(value + column * value_column, mask=column < width - from_ring, other=0)
            old = tl.load(values + place * width + column, mask=column < from_ring, other=0.0)
            more = tl.where(history > 0, old, new.to(tl.float32).to(tl.float64))
            part = taken[:, None] & (column < width)[None, :]
            into = sums + bucket[:, None] * width + column[None, :]
            before = tl.where(newest != 0, 0.0, tl.load(into, mask=part, other=0.0))
            tl.store(into, before + more[None, :], mask=part)
        met = tl.load(counts + bucket, mask=taken, other=0)
        tl.store(counts + bucket, tl.where(newest != 0, 0, met) + 1, mask=taken)
    # The oldest value is in its buckets before the newest takes its place.
    tl.debug_barrier()
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        new = tl.load(value + column * value_column, mask=column < width, other=0).to(tl.float32).to(tl.float64)
        tl.store(values + place * width + column, new, mask=column < tl.where(comes != 0, from_ring, 0))
    tl.store(lost + group, gone != 0)
    step += comes
    tl.store(steps + group, step)
    last = ((step + places - 1) % places).to(tl.int32)
    # What was stored above is read below, by other threads of this program.
    tl.debug_barrier()
    for shared in range(share):
        mine = head * share + shared
        x = query + batch * query_batch + mine * query_head
        result = batch * heads * share + mine
        # At least once, since the count is wanted however narrow the values are.
        for start in range(0, tl.maximum(width, 1), COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = (column < width)[None, :]
            total = tl.zeros([COLUMNS], tl.float64)
            count = tl.full([], 0, tl.int64)
            unknown = gone
            for first in range(0, tables, some):
                code, wrong = _codes(x, query_column, normals, first, tables, hashes, dim, FUNCTIONS, BITS, DEPTH)
                unknown = unknown | wrong
                table = first + tl.arange(0, some)
                known = table < tables
                # By how many tokens the newest of the ring in each bucket is younger than the next to come.
                youngest = tl.zeros([some], tl.int32) + history
                if newest != 0:
                    for near in range(0, history, PLACES):
                        there = near + tl.arange(0, PLACES)
                        part = (there < history)[:, None] & known[None, :]
                        late = tl.load(codes + there[:, None] * tables + table[None, :], mask=part, other=-2)
                        age = (last - there + history) % places
                        found = tl.where(late == code[None, :], age[:, None], history)
                        youngest = tl.minimum(youngest, tl.min(found, 0))
                for near in range(0, history, PLACES):
                    there = near + tl.arange(0, PLACES)
                    part = (there < history)[:, None] & known[None, :]
                    late = tl.load(codes + there[:, None] * tables + table[None, :], mask=part, other=-2)
                    unknown = unknown | tl.max(tl.max(tl.where(late == -1, 1, 0), 1), 0)
                    age = (last - there + history) % places
                    counted = tl.where(newest != 0, age[:, None] == youngest[None, :], late == late)
                    shares = tl.sum(tl.where((late == code[None, :]) & counted, 1, 0), 1)
                    part = (shares > 0)[:, None] & inside
                    rows = tl.load(values + there[:, None] * width + column[None, :], mask=part, other=0.0)
                    total += tl.sum(shares.to(tl.float64)[:, None] * rows, 0)
                    count += tl.sum(shares, 0)
                # Of the newest, a table tells only what the ring does not.
                known = known & (youngest == history)
                bucket = table.to(tl.int64) * buckets + code
                part = known[:, None] & inside
                total += tl.sum(tl.load(sums + bucket[:, None] * width + column[None, :], mask=part, other=0.0), 0)
                count += tl.sum(tl.load(counts + bucket, mask=known, other=0), 0)
            mean = total / tl.maximum(count, 1).to(tl.float64)
            mean = tl.where(unknown != 0, float("nan"), mean).to(tl.float32)
            tl.store(out + result * width + column, mean.to(out.dtype.element_ty), mask=column < width)
            if start == 0:
                tl.store(out_count + result, count)
