"""A band of a matrix of scores, cut into blocks: which keys a block of consecutive queries looks at."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from annattn.attention.packed import Documents

__all__ = ["Band", "Blocks"]


@dataclass(frozen=True)
class Band:
    """`queries` and `keys`, the last of both aligned: query i sees `window` keys up to its own and `ahead` after it.

    >>> Band(queries=4, keys=4, window=2, ahead=0).cut(2).span
    3
    """

    queries: int
    keys: int
    window: int
    ahead: int

    def cut(self, block: int) -> "Blocks":
        """Blocks of at most so many queries."""
        return Blocks(self, min(block, self.queries))


@dataclass(frozen=True)
class Blocks:
    """A band in blocks of `block` queries. Each looks at a run of `span` keys, which overlaps with its neighbours'."""

    band: Band
    block: int

    @property
    def count(self) -> int:
        """How many blocks."""
        return -(-self.band.queries // self.block)

    @property
    def span(self) -> int:
        """Keys per block, from the first that its first query sees to the last that its last one does."""
        return self.block + self.band.window - 1 + self.band.ahead

    @property
    def edges(self) -> tuple[int, int]:
        """How many rows to put before and after the keys, so that every block has its span."""
        first = self.band.keys - self.band.queries - (self.band.window - 1)
        return -first, first + (self.count - 1) * self.block + self.span - self.band.keys

    def of_queries(self, x: Tensor) -> Tensor:
        """(many, queries, width) as (many, blocks, block, width), with zeros at the end."""
        missing = self.count * self.block - self.band.queries
        return (pad(x, (0, 0, 0, missing)) if missing else x).unflatten(1, (self.count, self.block))

    def of_keys(self, x: Tensor) -> Tensor:
        """(many, keys, width) as (many, blocks, span, width), a view of the rows with zeros around them."""
        return pad(x, (0, 0, *self.edges)).unfold(1, self.span, self.block).mT

    def sum_of_keys(self, x: Tensor) -> Tensor:
        """The transpose of `of_keys`: what the blocks say of each key, added up."""
        many, _, _, width = x.shape
        reach = -(-self.span // self.block)  # blocks that a span touches
        x = pad(x, (0, 0, 0, reach * self.block - self.span)).unflatten(2, (reach, self.block))
        found = x.new_zeros(many, self.count + reach - 1, self.block, width)
        for at in range(reach):
            found[:, at : at + self.count] += x[:, :, at]
        rows = found.flatten(1, 2)
        return pad(rows, (0, 0, -self.edges[0], self.band.keys + self.edges[0] - rows.shape[1]))

    def seen(self, key_mask: Tensor | None, documents: Documents | None, device: torch.device) -> Tensor:
        """Which pairs are in the band, (batch or 1, blocks, block, span)."""
        band = self.band
        place = torch.arange(self.span, device=device) - torch.arange(self.block, device=device)[:, None]
        real = torch.ones(1, band.keys, dtype=torch.bool, device=device) if key_mask is None else key_mask
        seen = pad(real, self.edges).unfold(1, self.span, self.block)[:, :, None, :]
        seen = seen & (place >= 0) & (place < band.window + band.ahead)
        if documents is not None:
            of_key = pad(documents.key, self.edges, value=-1).unfold(1, self.span, self.block)
            of_query = pad(documents.query, (0, self.count * self.block - band.queries), value=-2)
            seen = seen & (of_query.unflatten(1, (self.count, self.block))[..., None] == of_key[:, :, None, :])
        return seen
