"""All parts in order, and the results file that holds them."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annattn.errors import InputError
from annattn.files import read_json, write_text
from annattn.measure import Progress, describe_machine, lengths, measure_speed
from annattn.report.attention import pictures
from annattn.report.models import errors
from annattn.report.needles import needles
from annattn.report.recall import recall
from annattn.report.theorems import rows
from annattn.report.theory import k_hop

__all__ = [
    "PARTS",
    "Part",
    "PartProgress",
    "Settings",
    "check_writable",
    "make_results",
    "measure_parts",
    "read_results",
    "write_file",
]

FORMAT = 1

PartProgress = Callable[[str, float, str], None]
"""Called with the name of a part, the share of it that is done, and what comes next."""


@dataclass(frozen=True)
class Settings:
    """What to measure: the seed of everything random, the longest input to time, and whether to use small sizes.

    >>> Settings().longest
    65536
    """

    seed: int = 0
    longest: int = 65_536
    quick: bool = False


@dataclass(frozen=True)
class Part:
    """A part of the report: its title, the seconds it takes on two idle cores, and how it is measured."""

    title: str
    expected_seconds: Callable[[Settings], float]
    measure: Callable[[Settings, Progress], dict[str, Any]]


def _recall_lengths(settings: Settings) -> tuple[int, ...]:
    """Up to 262,144 tokens, or as far as was asked for."""
    return tuple(n for n in (256, 4096, 65_536, 262_144, 1_048_576) if n <= max(262_144, settings.longest))


def _needle_lengths(settings: Settings) -> tuple[int, ...]:
    """Four times as long each, as far as recall goes."""
    return tuple(n for n in (1024, 4096, 16_384, 65_536, 262_144, 1_048_576) if n <= max(262_144, settings.longest))


PARTS: dict[str, Part] = {
    "speed": Part(
        "Speed",
        lambda settings: 6 + 25 * (settings.longest / 65_536) ** 2,
        lambda settings, progress: measure_speed(lengths(settings.longest), seed=settings.seed, progress=progress),
    ),
    "attention": Part(
        "Attention in pictures",
        lambda settings: 2,
        lambda settings, progress: pictures(tokens=12 if settings.quick else 40, seed=settings.seed, progress=progress),
    ),
    "models": Part(
        "Trained models",
        lambda settings: 2 if settings.quick else 15,
        lambda settings, progress: errors(
            samples=4 if settings.quick else 32, draws=2 if settings.quick else 4, seed=settings.seed, progress=progress
        ),
    ),
    "recall": Part(
        "Recall at length",
        lambda settings: 2 if settings.quick else 12,
        lambda settings, progress: recall(
            lengths=(256, 4096) if settings.quick else _recall_lengths(settings), seed=settings.seed, progress=progress
        ),
    ),
    "needles": Part(
        "Facts in real text",
        lambda settings: 2 if settings.quick else 12,
        lambda settings, progress: needles(
            lengths=(1024, 4096) if settings.quick else _needle_lengths(settings), seed=settings.seed, progress=progress
        ),
    ),
    "theory": Part(
        "Theory that runs",
        lambda settings: 3 if settings.quick else 8,
        lambda settings, progress: k_hop(words=1 if settings.quick else 4, seed=settings.seed, progress=progress),
    ),
    "theorems": Part(
        "The theorems",
        lambda settings: 10 if settings.quick else 60,
        lambda settings, progress: rows(effort="tiny" if settings.quick else "quick", progress=progress),
    ),
}


def measure_parts(
    settings: Settings, progress: PartProgress, names: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and data of each part, or of the named ones, as soon as it is measured.

    >>> name, data = next(measure_parts(Settings(longest=1024), lambda part, done, what: None))
    >>> name, data["rows"][0]["tokens"]
    ('speed', 1024)
    """
    for name, part in PARTS.items():
        if names and name not in names:
            continue
        yield name, part.measure(settings, lambda done, what, name=name: progress(name, done, what))
        progress(name, 1.0, "")


def make_results(parts: dict[str, Any], machine: dict[str, Any] | None = None) -> dict[str, Any]:
    """The parts with the machine that measured them, by default this one: the content of a results file.

    >>> make_results({})["format"]
    1
    """
    return {"format": FORMAT, "machine": describe_machine() if machine is None else machine, **parts}


def read_results(path: Path) -> dict[str, Any]:
    """The results in a file that `annattn demo` wrote; anything else is refused."""
    expected = "the results file of `annattn demo`"
    found = read_json(path, "results", expected)
    if found.get("format") != FORMAT:
        raise InputError("results", given=f"{path} in another format", expected=expected)
    if "machine" not in found or not any(name in found for name in PARTS):
        given = f"{path} without a machine and a part that was measured"
        raise InputError("results", given=given, expected=expected)
    return found


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, now instead of after minutes of measuring.

    >>> check_writable(Path("report.html"))
    """
    if path.is_dir():
        raise InputError("output", given=f"the folder {path}", expected="a file", hint=f"{path / 'report.html'}")
    folder = next(one for one in path.absolute().parents if one.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError("output", given=str(path), expected=f"a file that can be written, which {folder} forbids")


def write_file(text: str, path: Path) -> Path:
    """Write a file whole or not at all, in folders that are made if necessary.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file("a", Path(folder) / "new" / "x.txt").read_text()
    'a'
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(text, path)
    except OSError as wrong:
        raise InputError("output", given=str(path), expected="a file that can be written", hint=str(wrong)) from None
    return path
