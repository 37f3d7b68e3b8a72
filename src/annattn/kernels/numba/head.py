"""The arrays of one head of tables on a CPU, and how they grow; `bucket_store` says what is in them."""

import math
from collections.abc import Sequence

import numpy as np

from annattn.errors import NoMemoryError
from annattn.kernels.numba import bucket_store as store
from annattn.kernels.tables import LIST

__all__ = ["MANY", "SAVED", "Head"]

SAVED = ("bucket_codes", "bucket_tables", "bucket_kinds", "values", "lists", "sums", "counts")
"""The arrays of a saved head: one row per bucket, three times; one per value, per list, and twice per sum."""
_FIRST_PLACES = 8  # of a table with keys
MANY = 64  # tokens at once, for which room is made in larger steps
_MOST = 2**29  # rows of an array: 4 · number + kind is an int32
_LINE = 64  # bytes

_ARRAYS = ("entries", "keys", "taken", "values", "lists", "sums", "counts")  # in the order of their fields


class Head:
    """The arrays of one head; those that are `shared` are copied before they change."""

    def __init__(self, tables: int, width: int, buckets: int, kind: type) -> None:
        self.tables, self.width, self.buckets = tables, width, buckets
        self.taken = np.zeros(tables, np.int32)
        self.values, self.lists = np.zeros((0, width), kind), np.zeros((0, store.RECORD), np.int32)
        self.sums, self.counts = np.zeros((0, width)), np.zeros(0, np.int64)
        self.shared = False
        self.make_places(_FIRST_PLACES)

    def make_places(self, places: int) -> None:
        """Empty places for so many buckets per table; one for each there could be if that takes no more."""
        self.direct = self.buckets <= 4 * places  # a place with a key takes three times as much, and is not always used
        places = self.buckets if self.direct else places
        self.entries = np.zeros((self.tables, places), np.int32)
        self.keys = np.zeros((self.tables, 0 if self.direct else places), np.int64)

    def arrays(self) -> list[np.ndarray]:
        """All of them, in the order of their fields."""
        return [getattr(self, name) for name in _ARRAYS]

    def copy(self) -> "Head":
        """One with arrays of its own."""
        twin = Head.__new__(Head)
        vars(twin).update(vars(self))
        for name in _ARRAYS:
            setattr(twin, name, getattr(self, name).copy())
        twin.shared = False
        return twin

    def write_to(self, line: np.ndarray) -> None:
        """Enter where the arrays lie and how long they are into the head's line; how much is used stands there."""
        line[: len(_ARRAYS)] = [array.ctypes.data for array in self.arrays()]
        line[store.PLACES], line[store.DIRECT] = self.entries.shape[1], self.direct
        line[store.VALUE_ROOM], line[store.LIST_ROOM], line[store.ROW_ROOM] = map(
            len, (self.values, self.lists, self.sums)
        )

    def resize(self, names: Sequence[str], length: int) -> None:
        """Give arrays another number of rows."""
        if length > _MOST:
            raise NoMemoryError(f"one head of a cache holds at most {_MOST:,} values, lists or rows")
        for name in names:
            array = getattr(self, name)
            if length != len(array):
                other = _lines_of(length, array)
                kept = min(length, len(array))
                other[:kept] = array[:kept]
                setattr(self, name, other)

    def make_room(self, line: np.ndarray, reason: int, tokens: int) -> None:
        """Lengthen the array that a kernel found full while it let in so many tokens."""
        if reason == store.VALUES_FULL:
            used = int(line[store.VALUES_USED])
            if self._is_wasteful_now(line, tokens):
                self.keep_only_rows(line)
            else:
                self.resize(("values",), used + max(tokens, used // 8, 8))
        elif reason == store.LISTS_FULL:
            self.resize(("lists",), _longer(len(self.lists), tokens))
        elif reason == store.ROWS_FULL:
            most = self.tables * self.buckets
            self.resize(("sums", "counts"), min(most, _longer(len(self.sums), tokens)))
        else:
            self.rehash(line, 2 * self.entries.shape[1])
        self.write_to(line)

    def prepare(self, line: np.ndarray, tokens: int, buckets: int, lists: int, rows: int) -> None:
        """Make room for so many tokens, which need so much; keep only rows if values and lists would be wasteful."""
        fields = (store.VALUES_USED, store.LISTS_USED, store.ROWS_USED)
        values_used, lists_used, rows_used = (int(line[field]) for field in fields)
        lists = lists_used + max(lists, 0)
        if not line[store.ONLY_ROWS]:
            buckets += int(self.taken.sum())
            if self._is_wasteful(values_used + tokens, lists, buckets - rows_used - rows):
                self.keep_only_rows(line, buckets)
                return
            self.resize(("lists",), max(len(self.lists), lists + 1))
        self.resize(("sums", "counts"), max(len(self.sums), rows_used + rows))
        self.write_to(line)

    def settle(self, line: np.ndarray) -> None:
        """After many tokens at once: keep only rows where that takes less, and give back room left unused."""
        if not line[store.ONLY_ROWS] and self._is_wasteful_now(line, 0):
            self.keep_only_rows(line)
        for names, used in ((("lists",), line[store.LISTS_USED]), (("sums", "counts"), line[store.ROWS_USED])):
            self.resize(names, min(len(getattr(self, names[0])), _longer(int(used), 1)))
        self.write_to(line)

    def keep_only_rows(self, line: np.ndarray, buckets: int = 0) -> None:
        """Make every bucket a row, with room for at least so many of them."""
        self.resize(("sums", "counts"), max(len(self.sums), int(self.taken.sum()), buckets))
        self.write_to(line)
        store.only_rows(line, self.tables, self.width, self.values.reshape(-1)[:0])
        self.values, self.lists = self.values[:0].copy(), self.lists[:0].copy()
        line[[store.VALUES_USED, store.LISTS_USED]], line[store.FREE_LIST] = 0, -1
        self.write_to(line)

    def keep_values_again(self, line: np.ndarray, tokens: int) -> None:
        """If rows alone take far more than the values of so many tokens: those that come are unlike those that came."""
        rows, values = int(line[store.ROWS_USED]) * 8 * (self.width + 1), tokens * self.values.itemsize * self.width
        if line[store.ONLY_ROWS] and rows > 4 * values:
            line[store.ONLY_ROWS] = 0

    def rehash(self, line: np.ndarray, places: int) -> None:
        """Give each table more places for buckets."""
        entries, keys = self.entries, self.keys
        self.make_places(places)
        self.write_to(line)
        store.rehash(line, self.tables, entries.reshape(-1), keys.reshape(-1), entries.shape[1])

    def saved(self, line: np.ndarray) -> dict[str, np.ndarray]:
        """What is in use, as arrays that say the same on any machine: `SAVED`."""
        table, place = np.nonzero(self.entries)
        kinds = self.entries[table, place]
        codes = place if self.direct else self.keys[table, place]
        # Lists are numbered anew: some may be free.
        listed = kinds & 3 == LIST
        lists = self.lists[kinds[listed] >> 2]
        lists[np.arange(store.RECORD) > lists[:, :1]] = 0
        kinds[listed] = 4 * np.arange(len(lists)) + LIST
        used, rows = int(line[store.VALUES_USED]), int(line[store.ROWS_USED])
        arrays = (
            codes, table.astype(np.int32), kinds, self.values[:used], lists, self.sums[:rows], self.counts[:rows],
        )  # fmt: skip
        return dict(zip(SAVED, arrays, strict=True))

    def load(self, line: np.ndarray, saved: dict[str, np.ndarray]) -> None:
        """Take over what `saved` gave, into a head that is empty."""
        self.values = saved["values"].astype(self.values.dtype)
        self.lists, self.sums, self.counts = (saved[name].copy() for name in ("lists", "sums", "counts"))
        table, places = saved["bucket_tables"], _FIRST_PLACES
        while 3 * places < 4 * int(np.bincount(table, minlength=1).max()):
            places *= 2
        self.make_places(places)
        line[[store.VALUES_USED, store.LISTS_USED, store.ROWS_USED]] = len(self.values), len(self.lists), len(self.sums)
        # With rows and no values at all, none need be kept from now on either.
        line[store.ONLY_ROWS] = len(self.sums) > 0 and not len(self.values)
        self.write_to(line)
        if len(table):
            store.insert(line, table, saved["bucket_codes"], saved["bucket_kinds"])

    def _is_wasteful_now(self, line: np.ndarray, tokens: int) -> bool:
        values = int(line[store.VALUES_USED])
        rows = int(self.taken.sum()) - int(line[store.ROWS_USED])
        return values > 0 and self._is_wasteful(values + tokens, len(self.lists), rows)

    def _is_wasteful(self, values: int, lists: int, rows: int) -> bool:
        """Whether so many values and lists take half as much as so many rows that they stand for."""
        kept = values * self.values.itemsize * self.width + lists * self.lists.itemsize * store.RECORD
        return 2 * kept >= rows * 8 * (self.width + 1)


def _lines_of(length: int, like: np.ndarray) -> np.ndarray:
    """An array of so many rows that begins with a line of the cache: otherwise each row would lie in one line more."""
    size = length * like.itemsize * math.prod(like.shape[1:])
    room = np.empty(size + _LINE, np.uint8)
    skipped = -room.ctypes.data % _LINE
    return room[skipped : skipped + size].view(like.dtype).reshape(length, *like.shape[1:])


def _longer(length: int, tokens: int) -> int:
    """How long to make an array that is full."""
    return length + max(length if tokens >= MANY else length // 8, 8)
