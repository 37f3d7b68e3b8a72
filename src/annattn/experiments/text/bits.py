"""How well a model predicts text: bits per byte, and apart from it where an earlier repetition could help."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from annattn.checks import require_count
from annattn.data import Text
from annattn.experiments.text.model import TextModel

__all__ = ["Bits", "bits_of", "recall_hits"]

_GRAM, _BEYOND = 5, 32


@dataclass(frozen=True)
class Bits:
    """Bits per byte over all bytes, over recall hits, and over the others; and the share of hits."""

    every: float
    hits: float
    others: float
    share: float


def recall_hits(rows: NDArray[np.int64], *, gram: int = _GRAM, beyond: int = _BEYOND) -> NDArray[np.bool_]:
    """Which bytes are the last of a 5-gram that ended more than 32 bytes earlier in the same row.

    >>> row = np.array([[*b"abcdef", *range(40), *b"abcdef"]])
    >>> recall_hits(row)[0].nonzero()[0].tolist()
    [50, 51]
    """
    found = np.zeros(rows.shape, bool)
    for row, marked in zip(rows.astype(np.uint8), found, strict=True):
        data, first = row.tobytes(), {}
        for end in range(gram, len(data) + 1):
            at = first.setdefault(data[end - gram : end], end)
            marked[end - 1] = end - at > beyond
    return found


@torch.no_grad()
def bits_of(
    model: TextModel, text: Text, split: str, *,
    length: int = 512, count: int = 128, seed: int = 1, block: int = 16_384,
    report: Callable[[int], None] | None = None,
) -> Bits:  # fmt: skip
    """Measure on `count` excerpts of `length` bytes, each read from its beginning, of the split.

    Args:
        model: in `eval()`.
        text: the corpus.
        split: "validation" to choose by, "test" to report.
        length: bytes that are predicted, each from all before it in its excerpt.
        count: how many excerpts.
        seed: of their places.
        block: at most so many bytes at a time.
        report: called with the number of bytes done.
    """
    rows = text.sample(split, require_count("count", count), length + 1, (seed, length))
    hits, found, done = recall_hits(rows)[:, 1:], [], 0
    group = max(1, block // length)
    for start in range(0, count, group):
        tokens = torch.from_numpy(rows[start : start + group])
        state, parts = model.new_state(len(tokens)), []
        for at in range(0, length, block):
            piece = tokens[:, at : min(at + block, length)]
            logits = model(piece, state)
            after = tokens[:, at + 1 : at + 1 + piece.shape[1]]
            parts.append(torch.nn.functional.cross_entropy(logits.mT, after, reduction="none"))
            done += piece.numel()
            if report:
                report(done)
        found.append(torch.cat(parts, 1))
    bits = (torch.cat(found) / math.log(2)).numpy()
    return Bits(float(bits.mean()), float(bits[hits].mean()), float(bits[~hits].mean()), float(hits.mean()))
