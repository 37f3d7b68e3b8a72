"""A packed corpus: its bytes, compared with their checksum and then mapped, and the parts it is split into."""

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from annattn.checks import did_you_mean, require_choice, require_count
from annattn.data.corpora import CORPORA
from annattn.errors import InputError

__all__ = ["SPLITS", "Text", "checksum", "data_folder", "load", "places"]

SPLITS = ("train", "validation", "test")


def data_folder() -> Path:
    """Where corpora are kept: `ANNATTN_DATA`, or a folder for annattn where this system keeps what can be made again.

    >>> data_folder().is_absolute() or "ANNATTN_DATA" in os.environ
    True
    """
    if chosen := os.environ.get("ANNATTN_DATA"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "annattn"
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    return Path(os.environ.get(variable) or Path.home() / ".cache") / "annattn"


def places(name: str, folder: Path | None = None) -> tuple[Path, Path]:
    """The files of a corpus: its bytes, and what is known about them, which is written last."""
    place = data_folder() if folder is None else folder
    return place / f"{name}.bytes", place / f"{name}.json"


@dataclass(frozen=True, eq=False)
class Text:
    """Bytes of a corpus. Documents follow one another with a zero byte between them.

    - sha256: of all bytes, as they were packed.
    - splits: where each part begins and ends. Of a corpus of many files, each file lies in one part.

    >>> text = Text("demo", np.arange(100, dtype=np.uint8), "", {"train": (0, 90), "validation": (90, 95)})
    >>> text.part("validation").tolist()
    [90, 91, 92, 93, 94]
    >>> text.sample("train", 2, 8, seed=0).shape
    (2, 8)
    """

    name: str
    data: NDArray[np.uint8]
    sha256: str
    splits: dict[str, tuple[int, int]]

    def part(self, split: str) -> NDArray[np.uint8]:
        """The bytes of one split, not copied."""
        first, last = self.splits[require_choice("split", split, self.splits)]
        return self.data[first:last]

    def sample(self, split: str, count: int, length: int, seed: int | tuple[int, ...]) -> NDArray[np.int64]:
        """Excerpts (count, length) from places that the seed decides."""
        part = self.part(split)
        hint = f"{self.name} has {len(part):,} bytes to {split}"
        length = require_count("length", length, most=len(part), hint=hint)
        starts = np.random.default_rng(seed).integers(len(part) - length + 1, size=require_count("count", count))
        return np.stack([part[start : start + length] for start in starts]).astype(np.int64)


def load(name: str, folder: Path | None = None) -> Text:
    """A corpus that `annattn.data.fetch` or `annattn data` has packed, and that is still what was packed.

    Nothing is downloaded here. To compare the checksum takes less than a second per 100 MB.

    >>> load("enwik9")
    Traceback (most recent call last):
    annattn.errors.InputError: corpus: got 'enwik9', expected one of ...; did you mean enwik8?
    """
    require_choice("corpus", name, CORPORA, hint=did_you_mean(name, CORPORA))
    content, about = places(name, folder)
    again = f"annattn data {name}"
    if not about.exists() or not content.exists():
        raise InputError(
            f"corpus {name}", given="none", expected=f"its bytes in {content.parent}", hint=f"run: {again}"
        )
    try:
        known = json.loads(about.read_text())
        splits = {split: (int(first), int(last)) for split, (first, last) in known["splits"].items()}
        sha256 = str(CORPORA[name].sha256 or known["sha256"])
        edges = [0, *(edge for part in splits.values() for edge in part), content.stat().st_size]
        # One part begins where the one before it ends, and none is empty.
        follow = all(edges[at] == edges[at + 1] for at in range(0, len(edges), 2))
        is_whole = tuple(splits) == SPLITS and follow and all(first < last for first, last in splits.values())
        is_whole = is_whole and checksum(content) == sha256
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        is_whole, splits, sha256 = False, {}, ""
    if not is_whole:
        raise InputError(
            f"corpus {name}",
            given=f"{content}, damaged",
            expected="what was packed",
            hint=f"delete it and {about.name} beside it, and run: {again}",
        )
    return Text(name, np.memmap(content, dtype=np.uint8, mode="r"), sha256, splits)


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
