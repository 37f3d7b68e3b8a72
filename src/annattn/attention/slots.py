"""Where a state keeps a bucket: a slot for every bucket there could be, or for those that occur."""

from collections.abc import Sequence

import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.kernels import choose, hash_call
from annattn.lsh import Hasher

__all__ = ["DENSE_BUCKETS", "DenseSlots", "Slots", "SparseSlots", "make_slots"]

DENSE_BUCKETS = 2**14  # a table of more buckets is stored by the buckets that occur


def make_slots(hasher: Hasher, batch: int, heads: int) -> "Slots":
    """Dense where the tables are small enough."""
    dense = hasher.buckets is not None and hasher.buckets <= DENSE_BUCKETS
    return (DenseSlots if dense else SparseSlots)(hasher, batch, heads)


class DenseSlots:
    """A slot for every bucket there could be."""

    grows = False

    def __init__(self, hasher: Hasher, batch: int, heads: int) -> None:
        assert hasher.buckets is not None
        self.hasher, self.batch = hasher, batch
        self.per_row = heads * hasher.tables * hasher.buckets
        self.size = 1 + batch * self.per_row
        home = torch.arange(batch * heads * hasher.tables, device=hasher.device) * hasher.buckets + 1
        self.home = home.reshape(batch, heads, 1, hasher.tables)

    def find(self, rows: Tensor, kept: Tensor, *, create: bool, share: int = 1) -> Tensor:
        """The slot of every kept row (batch, heads, n, dim) in every table, 0 for the others."""
        codes = choose(hash_call(self.hasher, rows, rows)).hash_rows(self.hasher, rows)
        home = self.home if share == 1 else self.home.repeat_interleave(share, 1)
        return torch.where(kept[..., None], codes + home, 0)

    def adopt(self, other: "Slots") -> tuple[Tensor, Tensor]:
        """Where the buckets of another state belong: their slots here, and there."""
        every = torch.arange(1, self.size, device=self.home.device)
        return every, every

    def rearrange(self, sources: Sequence[int | None]) -> Tensor:
        """Batch row b becomes what row sources[b] was, or empty; returns the old slot of every new one."""
        at = torch.arange(self.per_row, device=self.home.device)
        picked = [torch.zeros_like(at) if row is None else at + row * self.per_row + 1 for row in sources]
        return torch.cat([at.new_zeros(1), *picked])

    def state(self) -> dict[str, Tensor]:
        """Nothing to save: a slot follows from the code."""
        return {}

    def check(self, state: dict[str, Tensor]) -> None:
        """Nothing to check beyond shapes."""

    def load(self, state: dict[str, Tensor]) -> None:
        """Nothing to take over."""


class SparseSlots:
    """A slot for every bucket that occurs, found by the hash values themselves, so of any width."""

    grows = True

    def __init__(self, hasher: Hasher, batch: int, heads: int) -> None:
        self.hasher, self.batch, self.heads = hasher, batch, heads
        self.maps: list[dict[tuple[int, int, bytes], int]] = [{} for _ in range(batch)]
        self.size = 1

    def find(self, rows: Tensor, kept: Tensor, *, create: bool, share: int = 1) -> Tensor:
        """The same; a bucket that has no slot yet gets one, or 0 unless `create`."""
        digits, taken = self.hasher.digits(rows).cpu().numpy(), kept.cpu().numpy()
        slots = torch.zeros(*rows.shape[:3], self.hasher.tables, dtype=torch.int64)
        found = slots.numpy()
        for batch, head, at in zip(*taken.nonzero(), strict=True):
            for table in range(self.hasher.tables):
                name = (int(head) // share, table, digits[batch, head, at, table].tobytes())
                if create:
                    found[batch, head, at, table] = self._slot(batch, name)
                else:
                    found[batch, head, at, table] = self.maps[batch].get(name, 0)
        return slots.to(rows.device)

    def _slot(self, batch: int, name: tuple[int, int, bytes]) -> int:
        slot = self.maps[batch].setdefault(name, self.size)
        self.size += slot == self.size
        return slot

    def adopt(self, other: "Slots") -> tuple[Tensor, Tensor]:
        """The same; buckets that are new here get slots."""
        assert isinstance(other, SparseSlots)
        pairs = [
            (self._slot(batch, name), slot) for batch, names in enumerate(other.maps) for name, slot in names.items()
        ]
        both = torch.tensor(pairs, dtype=torch.int64, device=self.hasher.device).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def rearrange(self, sources: Sequence[int | None]) -> Tensor:
        """Batch row b becomes what row sources[b] was, or empty; returns the old slot of every new one."""
        old, kept = self.maps, [0]
        self.maps = []
        for row in sources:
            names = {} if row is None else old[row]
            self.maps.append(dict(zip(names, range(len(kept), len(kept) + len(names)), strict=True)))
            kept.extend(names.values())
        self.size = len(kept)
        return torch.tensor(kept, device=self.hasher.device)

    def state(self) -> dict[str, Tensor]:
        """Which bucket owns which slot."""
        entries = [
            (row, head, table, slot, name)
            for row, names in enumerate(self.maps)
            for (head, table, name), slot in names.items()
        ]
        width = self.hasher.hashes * self.hasher.family.digits_per_hash
        digits = torch.tensor([list(memoryview(name).cast("q")) for *_, name in entries], dtype=torch.int64)
        owners = torch.tensor([entry[:4] for entry in entries], dtype=torch.int64)
        return {"slot_digits": digits.reshape(-1, width), "slot_owners": owners.reshape(-1, 4)}

    def check(self, state: dict[str, Tensor]) -> None:
        """Raise InputError unless every slot of the tables has one owner that exists."""
        owners = state["slot_owners"]
        if not (len(state["slot_digits"]) == len(owners) < len(state["table"]) == len(state["tally"])):
            sizes = {name: len(tensor) for name, tensor in state.items()}
            raise InputError("state", given=f"lengths {sizes}", expected="an owner for every slot of the table")
        low = torch.tensor([0, 0, 0, 1])
        high = torch.tensor([self.batch, self.heads, self.hasher.tables, len(owners) + 1])
        if not bool(((owners.cpu() >= low) & (owners.cpu() < high)).all()):
            raise InputError("state", given="slot owners out of range", expected="those of a cache made like this one")

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave."""
        self.maps = [{} for _ in self.maps]
        digits = state["slot_digits"].cpu().numpy()
        for (row, head, table, slot), name in zip(state["slot_owners"].tolist(), digits, strict=True):
            self.maps[row][head, table, name.tobytes()] = slot
        self.size = 1 + sum(map(len, self.maps))


Slots = DenseSlots | SparseSlots
