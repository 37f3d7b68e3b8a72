"""Which pairs of queries and keys an attention by meetings looks at: those nearby, the first keys, and those that meet.

Keys are counted by rank: the key that takes part and has r such keys before it has rank r. A query stands at the last
key at or before its own position, the last query being aligned with the last key. Everything here is for one key head
and the query heads it serves, and lists pairs instead of filling a matrix, so the work grows with the number of
meetings, not with the number of pairs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LookedAt", "Reach", "looked_at"]

_DENSE = 16  # meetings per pair, inverted, from which one counter per pair is faster than sorting the meetings


@dataclass(frozen=True)
class Reach:
    """Which keys a query looks at, met or not, and how often it has to meet the others."""

    window: int
    first: int
    meetings: int
    is_causal: bool


@dataclass(frozen=True)
class LookedAt:
    """Pairs as two columns of indices; the first `certain` of them were not left to chance."""

    query: Tensor
    key: Tensor
    certain: int


def looked_at(query_codes: Tensor, key_codes: Tensor, present: Tensor, queries: int, reach: Reach) -> LookedAt:
    """The pairs of (share · queries, tables) query codes and (keys, tables) key codes; `present` keys take part."""
    keys = len(key_codes)
    rows, by_rank = len(query_codes), present.nonzero().squeeze(1)
    position = torch.arange(queries, device=present.device) + (keys - queries)
    before = torch.nn.functional.pad(present.cumsum(0), (1, 0))  # keys that take part among the first so many
    stand = before[(position + 1).clamp(min=0)].repeat(rows // queries if queries else 0)
    last = stand if reach.is_causal else torch.full_like(stand, len(by_rank))
    near = torch.maximum(stand - reach.window, torch.full_like(stand, reach.first)), stand + reach.window - 1
    certain = [
        _ranges(torch.zeros_like(stand), last.clamp(max=reach.first)),
        _ranges(near[0], torch.minimum(near[1], last)),
    ]
    far = [(torch.full_like(stand, reach.first), torch.minimum(stand - reach.window, last))]
    if not reach.is_causal:
        far.append((torch.maximum(torch.maximum(near[1], stand - reach.window), far[0][0]), last))
    met = _met(query_codes, key_codes[by_rank], far, reach.meetings)
    query, rank = (torch.cat(columns) for columns in zip(*certain, met, strict=True))
    return LookedAt(query, by_rank[rank], len(query) - len(met[0]))


def _ranges(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Row i's numbers start_i … end_i − 1, as a column of rows and a column of numbers."""
    lengths = (end - start).clamp(min=0)
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    # What repeat_interleave gives, which waits for threads where the cores are busy.
    row = torch.bincount(ends[:-1], minlength=total + 1)[:total].cumsum(0) if len(ends) else ends
    return row, torch.arange(total, device=row.device) + (start - ends + lengths)[row]


def _met(
    query_codes: Tensor, key_codes: Tensor, far: list[tuple[Tensor, Tensor]], meetings: int
) -> tuple[Tensor, Tensor]:
    """The pairs with at least so many equal codes, of the keys ranked from start to end."""
    rows, keys = len(query_codes), len(key_codes)
    if not rows or not keys:
        return query_codes.new_empty(0), query_codes.new_empty(0)
    every, numbers = torch.unique(torch.cat([query_codes, key_codes]).T, return_inverse=True)
    query_numbers, key_numbers = numbers[:, :rows].contiguous(), numbers[:, rows:]
    # In every table the keys by bucket and, within a bucket, by rank: a range of ranks is then a range of places.
    place, order = (key_numbers * keys + torch.arange(keys, device=numbers.device)).sort(1)
    known = (every >= 0)[query_numbers]
    found = []
    for start, end in far:
        low, high = (query_numbers * keys + bound.clamp(0, keys) for bound in (start, end))
        low, high = (torch.searchsorted(place, bound) for bound in (low, high))
        line, at = _ranges(low.flatten(), torch.where(known, high, low).flatten())
        found.append(line % rows * keys + order.flatten()[torch.div(line, rows, rounding_mode="floor") * keys + at])
    met = torch.cat(found)
    if len(met) * _DENSE > rows * keys:
        pair = (torch.bincount(met, minlength=rows * keys) >= meetings).nonzero().squeeze(1)
    else:
        pair, counts = torch.unique(met, return_counts=True)
        pair = pair[counts >= meetings]
    return torch.div(pair, keys, rounding_mode="floor"), pair % keys
