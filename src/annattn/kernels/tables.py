"""Tables that live on, as a state of attention holds them: what a backend promises of them, and how they are saved."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.lsh import NO_BUCKET, Hasher

__all__ = ["LIST", "MOST_LISTED", "ROW", "SINGLE", "Layout", "Tables", "check_saved", "expand"]

SINGLE, LIST, ROW = 1, 2, 3
"""What a bucket is, as 4 · number + kind: the number of its only member, of a list of members, or of a row of sums."""

MOST_LISTED = 3
"""Members of a bucket that are kept as a list; a bucket of more is a row."""

_MANY = 2**14  # buckets looked at together when tables are loaded, so that this takes little memory beside them


@dataclass(frozen=True)
class Layout:
    """What tables are made for. Codes are below `buckets`; of the last `history` tokens each can be undone."""

    batch: int
    heads: int
    tables: int
    width: int
    buckets: int
    keep_newest: bool
    history: int
    device: torch.device

    @property
    def dense_bytes(self) -> int:
        """What a float64 row and an int64 count for every possible bucket would take."""
        return self.batch * self.heads * self.tables * self.buckets * 8 * (self.width + 1)


class Tables(ABC):
    """Sums and counts per bucket, or with `keep_newest` the newest value; per batch row, head and table.

    Codes are int64 (batch, heads, n, tables). `lsh.NO_BUCKET` in all tables of a token means that it is lost: whoever
    reads from its head then cannot have an answer. The last tokens stand beside the tables until as many newer ones
    have come as `history` says, so that they can be undone without a trace.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @property
    @abstractmethod
    def lengths(self) -> list[int]:
        """How many tokens each batch row holds."""

    @property
    @abstractmethod
    def recent(self) -> list[int]:
        """How many of them can be undone."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held."""

    @abstractmethod
    def add(self, codes: Tensor, value: Tensor, kept: Tensor | None) -> None:
        """Put in tokens with values (batch, heads, n, width), in order of time, but only those `kept` (batch, n)."""

    @abstractmethod
    def read(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Over the tables, the sum of what lies in these buckets and of the counts, and who has no answer.

        Codes may have a multiple of the heads; a negative one takes no part, and one without a bucket no answer.
        """

    def step(
        self, key_codes: Tensor, query_codes: Tensor, value: Tensor, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`add` and then `read` of one token per batch row."""
        self.add(key_codes, value, kept)
        return self.read(query_codes)

    def decode(
        self, hasher: Hasher, query: Tensor, key: Tensor, value: Tensor, kept: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """Hash one token per batch row, `step`, and divide: the mean and the count; None if that is not one kernel."""
        return None

    @abstractmethod
    def crop(self, tokens: Sequence[int]) -> None:
        """Undo this many of each batch row's last tokens, at most `recent`."""

    @abstractmethod
    def select(self, rows: Sequence[int | None]) -> None:
        """Make batch row b what row rows[b] was, or empty."""

    @abstractmethod
    def twin(self, rows: Sequence[int]) -> "Tables":
        """Tables of their own that hold what these batch rows hold; what the two share is copied when it changes."""

    @abstractmethod
    def merge(self, later: "Tables", names: Sequence[Tensor | None]) -> None:
        """Put in what `later` holds, as if its tokens came after; codes of row b become names[b][code], if given."""

    @abstractmethod
    def saved(self) -> dict[str, Tensor]:
        """Everything, as tensors that `load` and `check_saved` understand, of any backend."""

    @abstractmethod
    def load(self, saved: dict[str, Tensor]) -> None:
        """Take over what `saved` gave and `check_saved` passed."""


def _formats(layout: Layout) -> dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]]:
    """Names, shapes (-1: any length) and dtypes of what is saved; rows of all heads follow each other."""
    whole, small, wide = (torch.int64,), (torch.int32,), (torch.float32, torch.float64)
    batch, heads = layout.batch, layout.heads
    return {
        "lengths": ((batch,), whole),
        "recent": ((batch,), whole),
        "lost": ((batch, heads), (torch.bool,)),
        "held": ((batch, heads, 4), whole),  # buckets, values, lists and rows of each head
        "bucket_codes": ((-1,), whole),
        "bucket_tables": ((-1,), small),
        "bucket_kinds": ((-1,), small),
        "values": ((-1, layout.width), wide),
        "lists": ((-1, 1 + MOST_LISTED), small),  # how many, and which values of the head
        "sums": ((-1, layout.width), (torch.float64,)),
        "counts": ((-1,), whole),
        "recent_codes": ((-1, heads, layout.tables), whole),
        "recent_values": ((-1, heads, layout.width), wide),
    }


def check_saved(layout: Layout, saved: dict[str, Tensor]) -> None:
    """Raise InputError unless this is what tables of this layout can have saved: every number points to something."""
    formats = _formats(layout)
    if set(saved) != set(formats):
        raise InputError("state", given=sorted(map(str, saved)), expected=f"the entries {sorted(formats)}")
    for name, (shape, dtypes) in formats.items():
        tensor = saved[name]
        plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
        fits = plain and tensor.ndim == len(shape) and tensor.dtype in dtypes
        if not fits or any(wanted not in (-1, found) for wanted, found in zip(shape, tensor.shape, strict=True)):
            given = f"{tuple(tensor.shape)} {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            wanted = ", ".join("any" if size == -1 else str(size) for size in shape)
            raise InputError(
                f"state[{name!r}]",
                given=given,
                expected=f"({wanted}) {' or '.join(map(str, dtypes))}",
                hint="load into a cache with the same hasher, batch, heads, value_dim and mechanism",
            )

    here = {
        name: tensor.cpu()
        for name, tensor in saved.items()
        if name not in ("values", "sums", "recent_values", "recent_codes")
    }
    held, recent = here["held"].flatten(0, 1), here["recent"]
    # Below the largest length first: then no sum can wrap around.
    longest = max(len(tensor) for tensor in saved.values())
    _require(((held >= 0) & (held <= longest)).all(), "held", "how many of each there are")
    for place, names in enumerate((("bucket_codes", "bucket_tables", "bucket_kinds"), ("values",), ("lists",))):
        for name in names:
            _require(held[:, place].sum() == len(saved[name]), name, "as many as `held` says")
    for name in ("sums", "counts"):
        _require(held[:, 3].sum() == len(saved[name]), name, "as many as `held` says")
    starts = held.cumsum(0) - held
    for head, first in zip(held.tolist(), starts.tolist(), strict=True):
        mine = slice(first[0], first[0] + head[0])
        codes, table, kinds = (here[f"bucket_{what}"][mine] for what in ("codes", "tables", "kinds"))
        _check_buckets(layout, codes, table, kinds, head)
    lists, counts = here["lists"], here["counts"]
    size, members = lists[:, :1], lists[:, 1:]
    values = held[:, 1].int().repeat_interleave(held[:, 2])[:, None]
    listed = torch.arange(MOST_LISTED, device="cpu") < size
    _require(((size >= 2) & (size <= MOST_LISTED)).all(), "lists", f"2 to {MOST_LISTED} members")
    _require((~listed | ((members >= 0) & (members < values))).all(), "lists", "members that are values of the head")
    _require((counts >= 1).all(), "counts", "positive numbers")
    if layout.keep_newest:
        _require(not len(lists) and (counts == 1).all(), "counts", "one newest value per bucket")
    _require(((recent >= 0) & (recent <= layout.history)).all(), "recent", f"at most the history of {layout.history}")
    _require((here["lengths"] >= recent).all(), "lengths", "at least as many as are recent")
    for name in ("recent_codes", "recent_values"):
        _require(recent.sum() == len(saved[name]), name, "as many as `recent` says")
    late = saved["recent_codes"].cpu()
    lost = late == NO_BUCKET
    _require(((late >= 0) & (late < layout.buckets) | lost).all(), "recent_codes", f"codes below {layout.buckets}")
    _require((lost.all(-1) == lost.any(-1)).all(), "recent_codes", "tokens lost in all tables or in none")


def _require(holds: bool | Tensor, name: str, expected: str) -> None:
    if not bool(holds):
        raise InputError(f"state[{name!r}]", given="numbers that cannot be", expected=expected)


def _check_buckets(layout: Layout, codes: Tensor, table: Tensor, kinds: Tensor, held: list[int]) -> None:
    """`check_saved` for one head, which has as many buckets, values, lists and rows as `held` says."""
    _require(((codes >= 0) & (codes < layout.buckets)).all(), "bucket_codes", f"codes below {layout.buckets}")
    _require(((table >= 0) & (table < layout.tables)).all(), "bucket_tables", f"tables below {layout.tables}")
    seen = 0
    for which in (SINGLE, LIST, ROW):
        number = kinds[kinds & 3 == which] >> 2
        seen += len(number)
        there = ((number >= 0) & (number < held[which])).all()
        _require(there, "bucket_kinds", "values, lists and rows of the head")
        if which != SINGLE:
            used = torch.zeros(held[which], dtype=torch.bool, device="cpu")
            used[number.long()] = True
            _require(len(number) == len(used) and used.all(), "bucket_kinds", "each list and each row of one bucket")
    _require(seen == len(kinds), "bucket_kinds", "values, lists and rows of the head")
    for one in range(layout.tables if len(codes) > _MANY else 1):
        # Of many buckets table by table, and of few at once, by table and code.
        mine = codes[table == one] if len(codes) > _MANY else torch.stack([table.long(), codes], -1)
        _require(len(torch.unique(mine, dim=0)) == len(mine), "bucket_codes", "each bucket once")


def expand(layout: Layout, saved: dict[str, Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """What was saved, some buckets at a time: (head of all, table, code), the sum in float64 and the count."""
    held = saved["held"].flatten(0, 1)
    begin = held.cumsum(0) - held
    for head in range(len(held)):
        for first in range(0, int(held[head, 0]), _MANY):
            last = min(first + _MANY, int(held[head, 0]))
            yield _expand(
                layout, saved, head, slice(first + int(begin[head, 0]), last + int(begin[head, 0])), begin[head]
            )


def _expand(
    layout: Layout, saved: dict[str, Tensor], head: int, part: slice, begin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`expand` for a part of the buckets of one head, whose values, lists and rows begin there."""
    kinds, table, codes = (saved[f"bucket_{name}"][part].long() for name in ("kinds", "tables", "codes"))
    kind, number = kinds & 3, kinds >> 2
    sums = torch.zeros(len(kinds), layout.width, dtype=torch.float64, device=kinds.device)
    counts = torch.ones_like(codes)
    single, listed, rows = (kind == which for which in (SINGLE, LIST, ROW))
    sums[single] = saved["values"][begin[1] + number[single]].double()
    sums[rows], counts[rows] = (saved[name][begin[3] + number[rows]] for name in ("sums", "counts"))
    lists = saved["lists"][begin[2] + number[listed]].long()
    counts[listed] = lists[:, 0]
    for place in range(MOST_LISTED if len(lists) else 0):
        more = place < lists[:, 0]
        values = saved["values"][begin[1] + torch.where(more, lists[:, 1 + place], 0)].double()
        sums[listed] += torch.where(more[:, None], values, 0)
    return torch.stack([torch.full_like(codes, head), table, codes], -1), sums, counts
