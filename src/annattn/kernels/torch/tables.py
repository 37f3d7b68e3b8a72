"""Tables in plain torch: a row for every bucket there could be, or for those that occur; on any device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from annattn.kernels.tables import MOST_LISTED, ROW, Layout, Tables, expand
from annattn.lsh import IGNORED, NO_BUCKET

__all__ = ["DENSE", "TorchTables", "fill_tables", "read_tables"]

DENSE = 2**14
"""A table of more buckets has rows for those that occur."""


def fill_tables(sums: Tensor, counts: Tensor, slots: Tensor, value: Tensor, keep_newest: bool) -> None:
    """Add value rows (batch, heads, n, width) to the rows `slots` (batch, heads, n, tables) of dense tables.

    Row 0 of the tables is nobody's: rows with that slot take no part. With `keep_newest` a row replaces what was
    there, in order of time, and counts as 1.
    """
    rows, flat = value.flatten(0, 2).to(sums.dtype), slots.flatten(0, 2)
    if not keep_newest:
        for slot in flat.unbind(-1):
            taken = slot > 0
            sums.index_add_(0, slot, torch.where(taken[:, None], rows, 0))
            counts.index_add_(0, slot, taken.to(counts.dtype))
        return
    order = torch.arange(len(rows), device=rows.device)
    for slot in flat.unbind(-1):
        # Rows of one head come in order of time, and no slot is shared across heads: the last one stays.
        written, place = torch.unique(slot, return_inverse=True)
        last = torch.full(written.shape, -1, device=rows.device).scatter_reduce(0, place, order, "amax")
        somebodys = written > 0
        sums[written[somebodys]] = rows[last[somebodys]]
        counts[written[somebodys]] = 1


def read_tables(sums: Tensor, counts: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over tables of the rows at `slots`, and of their counts; row 0 holds zeros."""
    total = sums.new_zeros(*slots.shape[:3], sums.shape[-1])
    count = counts.new_zeros(slots.shape[:3])
    for slot in slots.unbind(-1):
        total += sums[slot]
        count += counts[slot]
    return total, count


class TorchTables(Tables):
    """Rows of float64 sums, row 0 nobody's; the last tokens stand at the end of `late`, after places of nobody."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        batch, heads, tables, device = layout.batch, layout.heads, layout.tables, layout.device
        self._dense = layout.buckets <= DENSE
        # (head of all, table, code) of the buckets that occur, if not every one has a row.
        self._slots: dict[tuple[int, int, int], int] = {}
        size = 1 + (batch * heads * tables * layout.buckets if self._dense else 0)
        # Apple's GPUs have no float64.
        self._kind = torch.float32 if device.type == "mps" else torch.float64
        with torch.inference_mode(False):
            self._sums = torch.zeros(size, layout.width, dtype=self._kind, device=device)
            self._counts = torch.zeros(size, dtype=torch.int64, device=device)
            self._lost = torch.zeros(batch, heads, dtype=torch.bool, device=device)
            self._codes = torch.zeros(batch, heads, 0, tables, dtype=torch.int64, device=device)
            self._late = torch.zeros(batch, heads, 0, layout.width, dtype=self._kind, device=device)
        self._lengths, self._recent = [0] * batch, [0] * batch

    @classmethod
    def holding(
        cls, layout: Layout, sums: Tensor, counts: Tensor, lost: Tensor, codes: Tensor, late: Tensor,
        lengths: list[int], recent: list[int],
    ) -> "TorchTables":  # fmt: skip
        """Dense tables on rows that are there already."""
        made = cls.__new__(cls)
        Tables.__init__(made, layout)
        made._dense, made._slots, made._kind = True, {}, sums.dtype
        made._sums, made._counts, made._lost, made._codes, made._late = sums, counts, lost, codes, late
        made._lengths, made._recent = lengths, recent
        return made

    @property
    def lengths(self) -> list[int]:
        """See `Tables`."""
        return list(self._lengths)

    @property
    def recent(self) -> list[int]:
        """See `Tables`."""
        return list(self._recent)

    @property
    def nbytes(self) -> int:
        """See `Tables`."""
        return sum(tensor.nbytes for tensor in (self._sums, self._counts, self._codes, self._late))

    @torch.inference_mode(False)
    @torch.no_grad()
    def add(self, codes: Tensor, value: Tensor, kept: Tensor | None) -> None:
        """See `Tables`."""
        batch, n = codes.shape[0], codes.shape[2]
        if kept is None:
            kept = torch.ones(batch, n, dtype=torch.bool, device=codes.device)
        new = kept.sum(1).tolist()
        if not any(new):
            return
        before = self._codes.shape[2]
        codes, value = torch.cat([self._codes, codes], 2), torch.cat([self._late, value.to(self._kind)], 2)
        places = torch.arange(before, device=codes.device)
        there = places >= before - torch.tensor(self._recent, device=codes.device)[:, None]
        # Those of nobody come first, all others in order of time.
        order = torch.argsort(torch.cat([there, kept], 1), stable=True)
        pick = order[:, None, :, None]
        codes = codes.gather(2, pick.expand(*codes.shape[:2], -1, codes.shape[3]))
        value = value.gather(2, pick.expand(*value.shape[:2], -1, value.shape[3]))
        total = [old + more for old, more in zip(self._recent, new, strict=True)]
        length = codes.shape[2]
        left = torch.arange(length, device=codes.device) < length - torch.tensor(total, device=codes.device)[:, None]
        codes = codes.masked_fill(left[:, None, :, None], IGNORED)
        kept_late = min(self.layout.history, max(total))
        self._fold(codes[:, :, : length - kept_late], value[:, :, : length - kept_late])
        self._codes, self._late = codes[:, :, length - kept_late :].clone(), value[:, :, length - kept_late :].clone()
        self._recent = [min(self.layout.history, count) for count in total]
        self._lengths = [old + more for old, more in zip(self._lengths, new, strict=True)]

    def _fold(self, codes: Tensor, value: Tensor) -> None:
        """Let tokens leave the history for the tables."""
        if codes.shape[2]:
            self._lost = self._lost | (codes[..., 0] == NO_BUCKET).any(-1)
            slots = self._find(codes, True)  # may make room for more rows
            fill_tables(self._sums, self._counts, slots, value, self.layout.keep_newest)

    @torch.inference_mode(False)
    @torch.no_grad()
    def read(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Tables`."""
        share = codes.shape[1] // self.layout.heads
        unknown = (codes == NO_BUCKET).any(-1)
        late, value = (x.repeat_interleave(share, 1) for x in (self._codes, self._late))
        total = value.new_zeros(*codes.shape[:3], self.layout.width)
        count = torch.zeros(codes.shape[:3], dtype=torch.int64, device=codes.device)
        for place in reversed(range(late.shape[2])):
            met = (codes == late[:, :, place : place + 1]) & (codes >= 0)
            if self.layout.keep_newest:
                codes = codes.masked_fill(met, IGNORED)
            met = met.sum(-1)
            total += torch.where(met[..., None] > 0, met[..., None] * value[:, :, place : place + 1], 0)
            count += met
        more, met = read_tables(self._sums, self._counts, self._find(codes, False))
        lost = self._lost | (self._codes == NO_BUCKET).any(-1).any(-1)
        return total + more, count + met, unknown | lost.repeat_interleave(share, 1)[..., None]

    def _find(self, codes: Tensor, create: bool) -> Tensor:
        """The rows of buckets; 0 if there is none."""
        batch, heads, _, tables = codes.shape
        own = torch.arange(batch * self.layout.heads, device=codes.device).reshape(batch, -1)
        own = own.repeat_interleave(heads // self.layout.heads, 1)[..., None, None]
        if self._dense:
            home = own * tables + torch.arange(tables, device=codes.device)
            return torch.where(codes >= 0, codes + home * self.layout.buckets + 1, 0)
        slots = torch.zeros_like(codes, device="cpu")
        at = (codes.cpu() >= 0).nonzero()
        owners = own.cpu().expand(codes.shape)[tuple(at.T)].tolist()
        named = zip(owners, at[:, 3].tolist(), codes.cpu()[tuple(at.T)].tolist(), strict=True)
        slots[tuple(at.T)] = torch.tensor([self._slot(name, create) for name in named], dtype=torch.int64, device="cpu")
        return slots.to(codes.device)

    def _slot(self, name: tuple[int, int, int], create: bool) -> int:
        if not create:
            return self._slots.get(name, 0)
        slot = self._slots.setdefault(name, len(self._slots) + 1)
        if slot >= len(self._sums):
            more = len(self._sums)
            self._sums = torch.nn.functional.pad(self._sums, (0, 0, 0, more))
            self._counts = torch.nn.functional.pad(self._counts, (0, more))
        return slot

    def crop(self, tokens: Sequence[int]) -> None:
        """See `Tables`."""
        longest = self._codes.shape[2]
        back = torch.tensor(list(tokens), device=self._codes.device)[:, None]
        # Each row moves to the right by what is undone, which falls off the end.
        source = torch.arange(longest, device=self._codes.device) - back
        pick = source.clamp(min=0)[:, None, :, None]
        nobody = (source < 0)[:, None, :, None]
        codes = self._codes.gather(2, pick.expand(self._codes.shape)).masked_fill(nobody, IGNORED)
        self._late = self._late.gather(2, pick.expand(self._late.shape))
        self._codes = codes
        self._recent = [old - less for old, less in zip(self._recent, tokens, strict=True)]
        self._lengths = [old - less for old, less in zip(self._lengths, tokens, strict=True)]

    @torch.inference_mode(False)
    def select(self, rows: Sequence[int | None]) -> None:
        """See `Tables`."""
        if list(rows) == list(range(self.layout.batch)):
            return
        picked = torch.tensor([-1 if row is None else row for row in rows], device=self._sums.device)
        kept = picked >= 0
        if self._dense:
            each = (len(self._sums) - 1) // max(1, self.layout.batch)
            old_sums, old_counts = self._sums, self._counts
            self._sums, self._counts = (
                torch.zeros(1 + each * len(rows), *x.shape[1:], dtype=x.dtype, device=x.device)
                for x in (old_sums, old_counts)
            )
            for to, row in enumerate(rows):
                if row is not None:
                    into, of = (slice(1 + at * each, 1 + (at + 1) * each) for at in (to, row))
                    self._sums[into], self._counts[into] = old_sums[of], old_counts[of]
        else:
            old, heads, taken = self._slots, self.layout.heads, [0]
            self._slots = {}
            for to, row in enumerate(rows):
                for (owner, table, code), slot in old.items() if row is not None else ():
                    if owner // heads == row:
                        self._slots[to * heads + owner % heads, table, code] = len(taken)
                        taken.append(slot)
            at = torch.tensor(taken, device=self._sums.device)
            self._sums, self._counts = self._sums[at], self._counts[at]
        self._codes = self._codes[picked].masked_fill(~kept[:, None, None, None], IGNORED)
        self._late = self._late[picked]
        self._lost = self._lost[picked] & kept[:, None]
        self._lengths = [0 if row is None else self._lengths[row] for row in rows]
        self._recent = [0 if row is None else self._recent[row] for row in rows]

    @torch.inference_mode(False)
    def twin(self, rows: Sequence[int]) -> "TorchTables":
        """See `Tables`; here all is copied at once."""
        twin = TorchTables.__new__(TorchTables)
        vars(twin).update(vars(self))
        same = list(rows) == list(range(self.layout.batch))
        twin.select(rows)  # copies, unless they are the rows as they are
        twin.layout = type(self.layout)(**{**vars(self.layout), "batch": len(rows)})
        if same:
            twin._slots = dict(self._slots)
            twin._sums, twin._counts, twin._lost = self._sums.clone(), self._counts.clone(), self._lost.clone()
        twin._lengths, twin._recent = list(twin._lengths), list(twin._recent)
        return twin

    @torch.inference_mode(False)
    def merge(self, later: Tables, names: Sequence[Tensor | None]) -> None:
        """See `Tables`."""
        assert isinstance(later, TorchTables)
        heads, device = self.layout.heads, self._sums.device
        self._fold(self._codes, self._late)
        # A batch row, its newest tokens left aside: those come after.
        if self._dense:
            held = (later._counts > 0).nonzero()[:, 0]
            into = held
        else:
            pairs = [
                (self._slot((owner, table, _renamed(names[owner // heads], code)), True), slot)
                for (owner, table, code), slot in later._slots.items()
            ]
            both = torch.tensor(pairs, dtype=torch.int64, device=device).reshape(-1, 2)
            into, held = both[later._counts[both[:, 1]] > 0].unbind(1)
        if self.layout.keep_newest:
            self._sums[into], self._counts[into] = later._sums[held], later._counts[held]
        else:
            self._sums[into] += later._sums[held]
            self._counts[into] += later._counts[held]
        codes = later._codes.clone()
        for row, name in enumerate(names):
            if name is not None and name.numel():
                codes[row] = torch.where(codes[row] >= 0, name.to(device)[codes[row].clamp(min=0)], codes[row])
        self._codes, self._late, self._recent = codes, later._late, later.recent
        self._lost = self._lost | later._lost
        self._lengths = [a + b for a, b in zip(self._lengths, later._lengths, strict=True)]

    def saved(self) -> dict[str, Tensor]:
        """See `Tables`."""
        layout = self.layout
        held = (self._counts > 0).nonzero()[:, 0]
        if self._dense:
            place, code = (held - 1) // layout.buckets, (held - 1) % layout.buckets
            owner, table = place // layout.tables, place % layout.tables
        else:
            named = sorted((*name, slot) for name, slot in self._slots.items())
            all_of = torch.tensor(named, dtype=torch.int64, device=self._sums.device).reshape(-1, 4)
            owner, table, code, held = all_of[self._counts[all_of[:, 3]] > 0].unbind(1)
        each = torch.bincount(owner, minlength=layout.batch * layout.heads)
        place = torch.arange(len(held), device=held.device) - (each.cumsum(0) - each)[owner]
        there = [self._codes.shape[2] - recent for recent in self._recent]
        late, value = (
            torch.cat([x[row, :, first:].transpose(0, 1) for row, first in enumerate(there)])
            for x in (self._codes, self._late)
        )
        none = each.new_zeros(())
        counted = each.reshape(layout.batch, layout.heads)
        return {
            "lengths": held.new_tensor(self._lengths),
            "recent": held.new_tensor(self._recent),
            "lost": self._lost.clone(),
            "held": torch.stack([counted, none.expand_as(counted), none.expand_as(counted), counted], -1),
            "bucket_codes": code.contiguous(),
            "bucket_tables": table.int(),
            "bucket_kinds": (4 * place + ROW).int(),
            "values": torch.zeros(0, layout.width, device=held.device),
            "lists": torch.zeros(0, 1 + MOST_LISTED, dtype=torch.int32, device=held.device),
            "sums": self._sums[held].double() if self._kind != torch.float32 else self._sums[held].cpu().double(),
            "counts": self._counts[held],
            "recent_codes": late.contiguous(),
            "recent_values": value.contiguous(),
        }

    @torch.inference_mode(False)
    def load(self, saved: dict[str, Tensor]) -> None:
        """See `Tables`."""
        layout, device = self.layout, self.layout.device
        fresh = TorchTables(layout)
        if not self._dense:
            buckets = len(saved["bucket_codes"])
            fresh._sums = fresh._sums.new_zeros(1 + buckets, layout.width)
            fresh._counts = fresh._counts.new_zeros(1 + buckets)
        for names, sums, counts in expand(layout, {name: tensor.detach().cpu() for name, tensor in saved.items()}):
            slots = (names[:, 0] * layout.tables + names[:, 1]) * layout.buckets + names[:, 2] + 1
            if not self._dense:
                first = len(fresh._slots) + 1
                fresh._slots.update(((o, t, c), first + at) for at, (o, t, c) in enumerate(names.tolist()))
                slots = torch.arange(first, first + len(names), device="cpu")
            fresh._sums[slots.to(device)] = sums.to(device, fresh._kind)
            fresh._counts[slots.to(device)] = counts.to(device)
        fresh._lost = saved["lost"].to(device, copy=True)
        fresh._lengths, recent = saved["lengths"].tolist(), saved["recent"].tolist()
        longest = max(recent, default=0)
        batch, heads = layout.batch, layout.heads
        fresh._codes = fresh._codes.new_full((batch, heads, longest, layout.tables), IGNORED)
        fresh._late = fresh._late.new_zeros(batch, heads, longest, layout.width)
        for row, (codes, value) in enumerate(
            zip(saved["recent_codes"].split(recent), saved["recent_values"].split(recent), strict=True)
        ):
            fresh._codes[row, :, longest - len(codes) :] = codes.transpose(0, 1).to(device)
            fresh._late[row, :, longest - len(codes) :] = value.transpose(0, 1).to(device, fresh._kind)
        fresh._recent = recent
        vars(self).update(vars(fresh))


def _renamed(names: Tensor | None, code: int) -> int:
    return code if names is None else int(names[code])
