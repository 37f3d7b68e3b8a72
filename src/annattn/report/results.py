"""All parts in order, and the results file that holds them."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annattn.errors import InputError
from annattn.files import write_text
from annattn.measure import Progress, describe_machine, lengths, measure_speed
from annattn.report.attention import pictures
from annattn.report.models import errors
from annattn.report.theorems import rows
from annattn.report.theory import k_hop

__all__ = ["PARTS", "Order", "Part", "document", "measured", "read_results", "writable", "written"]

FORMAT = 1


@dataclass(frozen=True)
class Order:
    """What to measure: the seed of everything random, the longest input timed, and whether everything is small.

    >>> Order().longest
    65536
    """

    seed: int = 0
    longest: int = 65_536
    quick: bool = False


@dataclass(frozen=True)
class Part:
    """A part of the report: its title, the seconds to expect on two quiet cores, and how it is measured."""

    title: str
    seconds: Callable[[Order], float]
    measure: Callable[[Order, Progress], dict[str, Any]]


PARTS: dict[str, Part] = {
    "speed": Part(
        "Speed",
        lambda order: 6 + 25 * (order.longest / 65_536) ** 2,
        lambda order, progress: measure_speed(lengths(order.longest), seed=order.seed, progress=progress),
    ),
    "attention": Part(
        "Attention one can see",
        lambda order: 2,
        lambda order, progress: pictures(tokens=12 if order.quick else 40, seed=order.seed, progress=progress),
    ),
    "models": Part(
        "Trained models",
        lambda order: 2 if order.quick else 15,
        lambda order, progress: errors(
            samples=4 if order.quick else 32, draws=2 if order.quick else 4, seed=order.seed, progress=progress
        ),
    ),
    "theory": Part(
        "Theory that runs",
        lambda order: 3 if order.quick else 8,
        lambda order, progress: k_hop(words=1 if order.quick else 4, seed=order.seed, progress=progress),
    ),
    "theorems": Part(
        "The theorems",
        lambda order: 10 if order.quick else 60,
        lambda order, progress: rows(effort="tiny" if order.quick else "quick", progress=progress),
    ),
}


def measured(order: Order, progress: Callable[[str, float, str], None]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each part's name and data as it is finished; `progress` is told the part, its share done and what comes next.

    >>> name, data = next(measured(Order(longest=1024), lambda part, done, what: None))
    >>> name, data["rows"][0]["tokens"]
    ('speed', 1024)
    """
    for name, part in PARTS.items():
        yield name, part.measure(order, lambda done, what, name=name: progress(name, done, what))
        progress(name, 1.0, "")


def document(parts: dict[str, Any], about: dict[str, Any] | None = None) -> dict[str, Any]:
    """The parts with the machine that measured them: what a results file holds.

    >>> document({})["format"]
    1
    """
    return {"format": FORMAT, "machine": describe_machine() if about is None else about, **parts}


def read_results(path: Path) -> dict[str, Any]:
    """The results of a file that `annattn demo` wrote, refused when they are something else."""
    expected = "the results file of `annattn demo`"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("results", given=str(path), expected="a file that exists") from None
    except (OSError, ValueError, RecursionError) as wrong:
        raise InputError("results", given=str(path), expected=expected, hint=str(wrong)) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError("results", given=f"{path} of another format", expected=expected)
    missing = [name for name in ("machine", *PARTS) if name not in found]
    if missing:
        raise InputError("results", given=f"{path} without {', '.join(missing)}", expected=expected)
    return found


def writable(path: Path) -> None:
    """Refuse a path that cannot be written, now and not after minutes of measuring.

    >>> writable(Path("report.html"))
    """
    if path.is_dir():
        raise InputError("output", given=f"the folder {path}", expected="a file", hint=f"{path / 'report.html'}")
    folder = next(one for one in path.absolute().parents if one.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError("output", given=str(path), expected=f"a file that can be written: {folder} allows none")


def written(text: str, path: Path) -> Path:
    """Write a file, and the folders it is to lie in, whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written("a", Path(folder) / "new" / "x.txt").read_text()
    'a'
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(text, path)
    except OSError as wrong:
        raise InputError("output", given=str(path), expected="a file that can be written", hint=str(wrong)) from None
    return path
