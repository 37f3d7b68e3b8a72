"""Codes for hash values too wide for one: the tuples that occur are numbered, and a number stays what it is."""

from collections.abc import Sequence

import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.lsh import IGNORED, NO_BUCKET

__all__ = ["Names"]


class Names:
    """Per batch row, a number for every tuple of hash values seen so far.

    A number is never given to another tuple. So rows that come from one another share their numbers for good, and what
    one of them adds does not disturb the other.

    >>> names = Names(batch=1, width=2)
    >>> digits = torch.tensor([[7, 7], [9, 9], [7, 7]]).reshape(1, 1, 3, 1, 2)
    >>> names.codes(digits, torch.tensor([[[True, True, True]]]), create=True).flatten().tolist()
    [0, 1, 0]
    """

    def __init__(self, batch: int, width: int) -> None:
        self.width = width
        self.rows: list[dict[bytes, int]] = [{} for _ in range(batch)]

    @property
    def nbytes(self) -> int:
        """Bytes of the tuples themselves."""
        return 8 * self.width * sum(len(names) for names in {id(names): names for names in self.rows}.values())

    def codes(self, digits: Tensor, hashable: Tensor, *, create: bool) -> Tensor:
        """Numbers of tuples (batch, heads, n, tables, width): a new one for those not seen, or unless `create` none."""
        codes = torch.full(digits.shape[:-1], NO_BUCKET, dtype=torch.int64, device="cpu")
        taken = hashable.cpu()
        for row, names in enumerate(self.rows):
            if not bool(taken[row].any()):
                continue
            distinct, place = torch.unique(digits[row].cpu()[taken[row]].flatten(0, 1), dim=0, return_inverse=True)
            written = [each.tobytes() for each in distinct.numpy()]
            if create:
                numbers = [names.setdefault(name, len(names)) for name in written]
            else:
                numbers = [names.get(name, IGNORED) for name in written]
            numbered = torch.tensor(numbers, dtype=torch.int64, device="cpu")[place]
            codes[row, taken[row]] = numbered.reshape(-1, digits.shape[3])
        return codes.to(digits.device)

    def select(self, rows: Sequence[int | None]) -> None:
        """Make batch row b know what row rows[b] knew, or nothing."""
        self.rows = [{} if row is None else self.rows[row] for row in rows]

    def twin(self, rows: Sequence[int]) -> "Names":
        """The names of these batch rows, shared."""
        twin = Names(0, self.width)
        twin.rows = [self.rows[row] for row in rows]
        return twin

    def adopt(self, other: "Names") -> list[Tensor]:
        """What the numbers of each row of another are here; new ones are taken in."""
        found = [
            [mine.setdefault(name, len(mine)) for name in theirs]
            for mine, theirs in zip(self.rows, other.rows, strict=True)
        ]
        return [torch.tensor(numbers, dtype=torch.int64, device="cpu") for numbers in found]

    def saved(self) -> dict[str, Tensor]:
        """The tuples in the order of their numbers, row after row, and how many each row has."""
        digits = [list(memoryview(name).cast("q")) for names in self.rows for name in names]
        return {
            "names": torch.tensor(digits, dtype=torch.int64, device="cpu").reshape(-1, self.width),
            "named": torch.tensor([len(names) for names in self.rows], dtype=torch.int64, device="cpu"),
        }

    def check(self, saved: dict[str, Tensor]) -> None:
        """Raise InputError unless `saved` could have given this."""
        names, named = saved.get("names"), saved.get("named")
        fits = (
            isinstance(names, Tensor)
            and isinstance(named, Tensor)
            and not names.is_meta
            and not named.is_meta
            and names.dtype == named.dtype == torch.int64
            and names.shape[1:] == (self.width,)
            and named.shape == (len(self.rows),)
            and bool(((named >= 0) & (named <= len(names))).all())
            and int(named.sum()) == len(names)
        )
        if fits:
            assert names is not None
            assert named is not None
            parts = names.split(named.tolist())
            fits = all(len(torch.unique(part, dim=0)) == len(part) for part in parts if len(part))
        if not fits:
            raise InputError(
                "state['names']",
                given="tuples that cannot be",
                expected=f"distinct tuples of {self.width} hash values per batch row, as many as state['named'] says",
            )

    def load(self, saved: dict[str, Tensor]) -> None:
        """Take over what `saved` gave."""
        parts = saved["names"].cpu().split(saved["named"].tolist())
        self.rows = [{name.tobytes(): number for number, name in enumerate(part.numpy())} for part in parts]
