"""Tables on a CPU that grow with use: what a bucket takes follows its number of members."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.kernels.numba import bucket_store as store
from annattn.kernels.numba import memory
from annattn.kernels.numba.decode import decode, read, step
from annattn.kernels.numba.few_rows import FewRows, rows_of
from annattn.kernels.numba.fold import fold, forecast
from annattn.kernels.numba.head import MANY, SAVED, Head
from annattn.kernels.numba.threads import pieces_of, run_pieces
from annattn.kernels.tables import Layout, Tables
from annattn.lsh import IGNORED, Hasher

__all__ = ["NumbaTables"]

_SPARSE = 4  # buckets per token, up to which a table has a place for every one when many tokens come at once
_WORTH_LISTING = 8  # columns from which on a list takes less than a row


class NumbaTables(Tables):
    """A `Head` per batch row and head, and rings of the last tokens."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        groups, history = layout.batch * layout.heads, layout.history
        self._kind: type = np.float32
        self._heads = [self._new_head() for _ in range(groups)]
        self._lines = np.zeros((groups, store.FIELDS), np.int64)
        self._lines[:, store.FREE_LIST] = -1
        self._late_codes = np.full((groups, layout.tables, history), IGNORED, np.int64)
        self._late_values = np.zeros((groups, history, layout.width), self._kind)
        self._late = np.zeros((layout.batch, 2), np.int64)
        self._counts = np.zeros(layout.batch, np.int64)
        self._few_rows: FewRows | None = None
        self._refresh()

    def _new_head(self) -> Head:
        return Head(self.layout.tables, self.layout.width, self.layout.buckets, self._kind)

    def _refresh(self) -> None:
        """After arrays were exchanged."""
        for head, line in zip(self._heads, self._lines, strict=True):
            head.write_to(line)
        layout = self.layout
        listed = layout.width >= _WORTH_LISTING
        self._shape = (layout.heads, layout.buckets, layout.width, layout.keep_newest, listed)
        self._any_shared = any(head.shared for head in self._heads)
        groups = len(self._heads)
        self._starts = np.arange(groups) * (layout.history * layout.width)
        self._which, self._edges = np.zeros(layout.batch, np.int64), np.zeros(layout.batch + 1, np.int64)

    @property
    def lengths(self) -> list[int]:
        """See `Tables`."""
        return self._counts.tolist()

    @property
    def recent(self) -> list[int]:
        """See `Tables`."""
        return self._late[:, 1].tolist()

    @property
    def nbytes(self) -> int:
        """See `Tables`; what several share counts once."""
        heads = {id(head): head for head in self._heads}.values()
        held = sum(array.nbytes for head in heads for array in head.arrays())
        return held + self._late_codes.nbytes + self._late_values.nbytes + self._lines.nbytes

    def add(self, codes: Tensor, value: Tensor, kept: Tensor | None) -> None:
        """See `Tables`."""
        layout, n = self.layout, codes.shape[2]
        if not codes.numel():
            return
        taking_part = np.ones((layout.batch, n), np.bool_) if kept is None else kept.numpy()
        self._own()
        value = self._fit(value)
        flat, starts, stride = memory.flat(value)
        lines = codes.transpose(2, 3).contiguous().numpy().reshape(len(self._heads), layout.tables, n)
        if lines.max() >= layout.buckets:
            raise _bad_code(layout)
        new = [np.flatnonzero(row) for row in taking_part]
        # Of the ring and the new tokens together, the last ones stay in the ring.
        leaving, entering, staying = [], [], []
        for (first, late), tokens in zip(self._late.tolist(), new, strict=True):
            pushed = min(late, max(0, late + len(tokens) - layout.history))
            leaving.append((first + np.arange(pushed)) % max(1, layout.history))
            passed = max(0, len(tokens) - layout.history)
            entering.append(tokens[:passed])
            staying.append(tokens[passed:])
        self._fold(self._late_codes, self._late_values.reshape(-1), self._starts, layout.width, leaving)
        self._fold(lines, flat, starts.reshape(-1), stride, entering)
        if n >= MANY:
            for head, line in zip(self._heads, self._lines, strict=True):
                head.settle(line)
        late_codes = self._late_codes.reshape(layout.batch, layout.heads, layout.tables, layout.history)
        late_values = self._late_values.reshape(layout.batch, layout.heads, layout.history, layout.width)
        lines = lines.reshape(layout.batch, layout.heads, layout.tables, n)
        rows = value.detach().numpy()
        for row, tokens in enumerate(staying):
            first, late = self._late[row]
            first, late = first + len(leaving[row]), late - len(leaving[row])
            places = (first + late + np.arange(len(tokens))) % max(1, layout.history)
            late_codes[row][:, :, places] = lines[row][:, :, tokens]
            late_values[row][:, places] = rows[row][:, tokens]
            self._late[row] = first % max(1, layout.history), late + len(tokens)
        self._counts += taking_part.sum(1)

    def _fit(self, value: Tensor) -> Tensor:
        """Values in the precision they are stored in, which becomes float64 when some are."""
        if value.dtype == torch.float64 and self._kind is np.float32:
            self._kind = np.float64
            for head in self._heads:
                head.values = head.values.astype(np.float64)
            self._late_values = self._late_values.astype(np.float64)
            self._refresh()
        return value.to(torch.float64 if self._kind is np.float64 else torch.float32)

    def _fold(
        self, codes: np.ndarray, source: np.ndarray, starts: np.ndarray, stride: int, tokens: list[np.ndarray]
    ) -> None:
        """Let some tokens of each batch row enter the tables."""
        edges = np.cumsum([0, *map(len, tokens)])
        if not edges[-1]:
            return
        which, groups, width = np.concatenate(tokens).astype(np.int64), len(self._heads), self.layout.width
        work = int(edges[-1]) // self.layout.batch * self.layout.tables * width
        pieces, _ = pieces_of(groups, work, 1)
        cuts = groups * np.arange(pieces + 1) // pieces
        self._prepare(codes, which, edges, cuts)

        def piece(number: int) -> None:
            progress = np.zeros(4, np.int64)
            progress[0] = cuts[number]
            self._until_done(
                lambda: fold(
                    self._lines, cuts[number], cuts[number + 1], self._shape, codes, source, starts, stride, which,
                    edges, progress,
                ),
                progress,
                int(np.diff(edges).max()),
            )  # fmt: skip

        run_pieces(piece, pieces, "fold", source.dtype)

    def _until_done(self, call: Callable[[], int], progress: np.ndarray, tokens: int) -> None:
        """Call a kernel again after each array that it found full was made longer."""
        grown = set()
        while reason := call():
            self._make_room(int(progress[0]), reason, tokens)
            grown.add(int(progress[0]))
        for group in grown:
            held = int(self._counts[group // self.layout.heads]) + tokens
            self._heads[group].keep_values_again(self._lines[group], held)

    def _make_room(self, group: int, reason: int, tokens: int) -> None:
        if reason == store.BAD_CODE:
            raise _bad_code(self.layout)
        self._heads[group].make_room(self._lines[group], reason, tokens)

    def _prepare(self, codes: np.ndarray, which: np.ndarray, edges: np.ndarray, cuts: np.ndarray) -> None:
        """Make the room that many tokens will need, once; keep only rows if values and lists would be wasteful."""
        layout, tokens = self.layout, int(np.diff(edges).max())
        if layout.keep_newest or tokens < MANY or layout.buckets > _SPARSE * tokens:
            return
        for head, line in zip(self._heads, self._lines, strict=True):
            if not head.direct:
                head.rehash(line, layout.buckets)
        needed = np.zeros((len(self._heads), 3), np.int64)
        run_pieces(
            lambda number: forecast(
                self._lines, cuts[number], cuts[number + 1], self._shape, codes, which, edges, needed
            ),
            len(cuts) - 1,
            "forecast",
        )
        for head, line, more in zip(self._heads, self._lines, needed.tolist(), strict=True):
            head.prepare(line, tokens, *more)

    def read(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Tables`."""
        layout, groups = self.layout, len(self._heads)
        batch, heads, n, tables = codes.shape
        total = memory.empty(batch, heads, n, layout.width, dtype=torch.float64)
        count, unknown = memory.empty(batch, heads, n), torch.empty(batch, heads, n, dtype=torch.bool, device="cpu")
        lines = codes.transpose(2, 3).contiguous().numpy().reshape(groups, heads // layout.heads, tables, n)
        pieces, _ = pieces_of(groups, lines[0].size * layout.width, 1)
        cuts = groups * np.arange(pieces + 1) // pieces
        found = (array.numpy().reshape(-1) for array in (total, count, unknown))
        sums, counts, nobody = found

        def piece(number: int) -> None:
            bad = read(
                self._lines, cuts[number], cuts[number + 1], self._shape, lines, self._late_codes,
                self._late_values.reshape(-1), self._late, sums, counts, nobody,
            )  # fmt: skip
            if bad:
                raise _bad_code(layout)

        run_pieces(piece, pieces, "read", self._kind)
        return total, count, unknown

    def step(
        self, key_codes: Tensor, query_codes: Tensor, value: Tensor, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Tables`; one compiled call for all heads."""
        layout, groups = self.layout, len(self._heads)
        if not layout.history:
            self.add(key_codes, value, kept)
            return self.read(query_codes)
        if self._any_shared:
            self._own()
        rows = self._fit(value).contiguous().numpy().reshape(-1)
        heads = query_codes.shape[1]
        total = np.empty((layout.batch, heads, 1, layout.width))
        count, unknown = np.empty((layout.batch, heads, 1), np.int64), np.empty((layout.batch, heads, 1), np.bool_)
        progress, taking_part = np.zeros(5, np.int64), _ONES if kept is None else kept.numpy().reshape(-1)
        if kept is None and layout.batch > 1:
            taking_part = np.ones(layout.batch, np.bool_)
        arguments = (
            self._shape, taking_part, key_codes.numpy().reshape(groups, -1),
            query_codes.numpy().reshape(groups, heads // layout.heads, -1, 1), rows, self._starts, self._late_codes,
            self._late_values.reshape(-1), self._late, self._which, self._edges, progress, total.reshape(-1),
            count.reshape(-1), unknown.reshape(-1),
        )  # fmt: skip
        run_pieces(
            lambda _: self._until_done(lambda: step(self._lines, *arguments), progress, 1), 1, "step", self._kind
        )
        self._counts += taking_part
        return torch.from_numpy(total), torch.from_numpy(count), torch.from_numpy(unknown)

    def decode(
        self, hasher: Hasher, query: Tensor, key: Tensor, value: Tensor, kept: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """See `Tables`; one compiled call, from rows to means."""
        if self._few_rows is None or self._few_rows.hasher is not hasher:
            self._few_rows = FewRows(hasher)
        if not self.layout.history or not self._few_rows.takes(query, key):
            return None
        if self._any_shared:
            self._own()
        width, progress = self.layout.width, np.zeros(5, np.int64)
        out = np.empty((*query.shape[:3], width), np.float32 if dtype == torch.float32 else np.float64)
        count = np.empty(query.shape[:3], np.int64)
        taking_part = np.ones(self.layout.batch, np.bool_) if kept is None else kept.numpy().reshape(-1)
        arguments = (
            self._shape, taking_part, self._few_rows.arrays, rows_of(query), rows_of(key),
            self._fit(value).contiguous().detach().numpy().reshape(-1), self._starts, self._late_codes,
            self._late_values.reshape(-1), self._late, self._which, self._edges, progress, out.reshape(-1),
            count.reshape(-1),
        )  # fmt: skip
        run_pieces(
            lambda _: self._until_done(lambda: decode(self._lines, *arguments), progress, 1), 1, "decode", self._kind,
            out.dtype,
        )  # fmt: skip
        self._counts += taking_part
        return torch.from_numpy(out).to(dtype), torch.from_numpy(count)

    def crop(self, tokens: Sequence[int]) -> None:
        """See `Tables`."""
        codes = self._late_codes.reshape(self.layout.batch, -1, self.layout.history)
        for row, less in enumerate(tokens):
            first, late = self._late[row].tolist()
            codes[row][:, (first + late - less + np.arange(less)) % max(1, self.layout.history)] = IGNORED
            self._late[row, 1] -= less
            self._counts[row] -= less

    def select(self, rows: Sequence[int | None]) -> None:
        """See `Tables`."""
        if list(rows) != list(range(self.layout.batch)):
            vars(self).update(vars(self._rows(rows)))

    def twin(self, rows: Sequence[int]) -> "NumbaTables":
        """See `Tables`."""
        for head in self._heads:
            head.shared = self._any_shared = True
        return self._rows(rows)

    def _rows(self, rows: Sequence[int | None]) -> "NumbaTables":
        """Tables of these batch rows, with the arrays of this one."""
        layout, each = self.layout, self.layout.heads
        picked = NumbaTables.__new__(NumbaTables)
        Tables.__init__(picked, replace(layout, batch=len(rows)))
        picked._kind, picked._few_rows = self._kind, self._few_rows
        groups = [None if row is None else row * each + head for row in rows for head in range(each)]
        at = np.array([-1 if group is None else group for group in groups])
        # A head that two rows have is shared by them.
        for group, times in zip(*np.unique(at[at >= 0], return_counts=True), strict=True):
            self._heads[group].shared |= bool(times > 1)
        picked._heads = [self._new_head() if group is None else self._heads[group] for group in groups]
        picked._lines = self._lines[at]
        picked._lines[at < 0] = 0
        picked._lines[at < 0, store.FREE_LIST] = -1
        picked._late_codes, picked._late_values = self._late_codes[at], self._late_values[at]
        picked._late_codes[at < 0] = IGNORED
        of = np.array([-1 if row is None else row for row in rows])
        picked._late, picked._counts = self._late[of], self._counts[of]
        picked._late[of < 0], picked._counts[of < 0] = 0, 0
        picked._refresh()
        return picked

    def _own(self) -> None:
        """Copy what is shared, before it changes."""
        if self._any_shared:
            self._heads = [head.copy() if head.shared else head for head in self._heads]
            self._refresh()

    def merge(self, later: Tables, names: Sequence[Tensor | None]) -> None:
        """See `Tables`."""
        assert isinstance(later, NumbaTables)
        layout, none = self.layout, np.zeros(0, np.int64)
        self._own()
        if later._kind is not self._kind:
            later = later.twin(range(layout.batch))
            for tables in (self, later):
                tables._own()
                tables._fit(torch.zeros(0, dtype=torch.float64, device="cpu"))
        tokens = [(first + np.arange(late)) % max(1, layout.history) for first, late in self._late.tolist()]
        self._fold(self._late_codes, self._late_values.reshape(-1), self._starts, layout.width, tokens)
        for group, (head, line) in enumerate(zip(self._heads, self._lines, strict=True)):
            other, theirs = later._lines[group], later._heads[group]
            used, more = int(line[store.VALUES_USED]), int(other[store.VALUES_USED])
            if not line[store.ONLY_ROWS]:
                head.resize(("values",), used + more)
                head.values[used:] = theirs.values[:more]
                line[store.VALUES_USED] += more
                head.write_to(line)
            name = names[group // layout.heads]
            given = none if name is None else name.numpy()
            progress = np.zeros(3, np.int64)
            _, _, width, newest, listed = self._shape
            while reason := store.merge_head(
                line, other, layout.tables, width, newest, listed, used, given, theirs.values.reshape(-1)[:0], progress
            ):
                self._make_room(group, reason, 0)
            line[store.LOST] |= other[store.LOST]
        self._late_codes, self._late_values = later._late_codes.copy(), later._late_values.copy()
        for row, name in enumerate(names):
            if name is not None and name.numel():
                mine = self._late_codes.reshape(layout.batch, layout.heads, layout.tables, -1)[row]
                mine[mine >= 0] = name.numpy()[mine[mine >= 0]]
        self._late, self._counts = later._late.copy(), self._counts + later._counts

    def saved(self) -> dict[str, Tensor]:
        """See `Tables`."""
        layout = self.layout
        parts = [head.saved(line) for head, line in zip(self._heads, self._lines, strict=True)]
        held = [[len(part[name]) for name in ("bucket_codes", "values", "lists", "sums")] for part in parts]
        order = [(first + np.arange(late)) % max(1, layout.history) for first, late in self._late.tolist()]
        codes = self._late_codes.reshape(layout.batch, layout.heads, layout.tables, layout.history)
        values = self._late_values.reshape(layout.batch, layout.heads, layout.history, layout.width)
        late = [codes[row][:, :, at].transpose(2, 0, 1) for row, at in enumerate(order)]
        late_values = [values[row][:, at].transpose(1, 0, 2) for row, at in enumerate(order)]
        lost = self._lines[:, store.LOST].reshape(layout.batch, layout.heads) != 0
        arrays = {
            "lengths": self._counts.copy(),
            "recent": self._late[:, 1].copy(),
            "lost": lost,
            "held": np.array(held, np.int64).reshape(layout.batch, layout.heads, 4),
            **{name: np.concatenate([part[name] for part in parts]) for name in SAVED},
            "recent_codes": np.concatenate(late),
            "recent_values": np.concatenate(late_values),
        }
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}

    def load(self, saved: dict[str, Tensor]) -> None:
        """See `Tables`."""
        layout = self.layout
        fresh = NumbaTables(layout)
        wide = any(saved[name].dtype == torch.float64 and saved[name].numel() for name in ("values", "recent_values"))
        fresh._kind = np.float64 if wide else np.float32
        array = {name: tensor.detach().cpu().numpy() for name, tensor in saved.items()}
        held = array["held"].reshape(-1, 4)
        ends = np.cumsum(held, 0)
        fresh._heads = []
        for line, of, to in zip(fresh._lines, ends - held, ends, strict=True):
            buckets, values, lists, rows = (slice(first, last) for first, last in zip(of, to, strict=True))
            parts = (buckets, buckets, buckets, values, lists, rows, rows)
            head = fresh._new_head()
            head.load(line, {name: array[name][part] for name, part in zip(SAVED, parts, strict=True)})
            fresh._heads.append(head)
        fresh._lines[:, store.LOST] = array["lost"].reshape(-1)
        fresh._counts, fresh._late[:, 1] = array["lengths"].copy(), array["recent"]
        fresh._late_values = fresh._late_values.astype(fresh._kind)
        codes = fresh._late_codes.reshape(layout.batch, layout.heads, layout.tables, layout.history)
        late = fresh._late_values.reshape(layout.batch, layout.heads, layout.history, layout.width)
        edges = np.cumsum([0, *array["recent"]])
        for row in range(layout.batch):
            part = slice(edges[row], edges[row + 1])
            count = edges[row + 1] - edges[row]
            codes[row, :, :, :count] = array["recent_codes"][part].transpose(1, 2, 0)
            late[row, :, :count] = array["recent_values"][part].transpose(1, 0, 2)
        fresh._refresh()
        vars(self).update(vars(fresh))


_ONES = np.ones(1, np.bool_)


def _bad_code(layout: Layout) -> InputError:
    return InputError(
        "hash codes",
        given="one too large",
        expected=f"codes below {layout.buckets}",
        hint="a family's `evaluate` must return digits below its `values`",
    )
