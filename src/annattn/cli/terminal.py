"""What is printed where: data on standard output; bars and remarks on standard error, and bars only if one watches."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import cyclopts
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["AsJson", "Flag", "Whole", "bar", "is_watched", "output", "print_json", "remarks"]


def output() -> Console:
    """Where results go."""
    return Console(highlight=False)


def remarks() -> Console:
    """Where everything else goes, so that a program can read the results."""
    return Console(stderr=True, highlight=False)


def print_json(data: Any) -> None:
    """Write data for a program: no colour, no wrapping, and no NaN, which JSON does not know."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def is_watched(console: Console) -> bool:
    """Whether somebody sits at a terminal that can redraw a line, and has not asked for plain output."""
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("NO_COLOR")


def bar(console: Console, *columns: ProgressColumn) -> Progress:
    """A progress bar with an estimate of the time left; silent when nobody watches."""
    shown: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
    ]
    note, left = TextColumn("{task.fields[note]}"), TimeRemainingColumn()
    # A narrow terminal has no room for all of it.
    shown += [*columns, note, TimeElapsedColumn(), left] if console.width >= 80 else [note, left]
    return Progress(*shown, console=console, disable=not is_watched(console), expand=True)


def _whole(_: type, tokens: Sequence[cyclopts.Token]) -> int:
    # The parser's own conversion rounds 2.5 to 2.
    try:
        number = int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not an integer") from None
    if abs(number) >= 2**63:
        raise ValueError(f"{tokens[0].value!r} is an integer of more than 64 bits")
    return number


Whole = Annotated[int, cyclopts.Parameter(converter=_whole)]
Flag = Annotated[bool, cyclopts.Parameter(negative="", show_default=False)]
AsJson = Annotated[bool, cyclopts.Parameter(name="--json", negative="", show_default=False)]
