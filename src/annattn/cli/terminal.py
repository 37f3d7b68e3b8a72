"""What goes where: results to standard output, everything else to standard error, progress only to a terminal."""

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

__all__ = [
    "Flag",
    "Integer",
    "JsonFlag",
    "print_json",
    "print_line",
    "progress_bar",
    "shows_progress",
    "stderr_console",
    "stdout_console",
]


def stdout_console() -> Console:
    """Where results go."""
    return Console(highlight=False)


def stderr_console() -> Console:
    """Where everything else goes, so that a program can read the results."""
    return Console(stderr=True, highlight=False)


def print_line(text: str) -> None:
    """Print a result on one line as it is, however long: a path that is cut in two cannot be copied."""
    stdout_console().print(text, markup=False, soft_wrap=True)


def print_json(data: Any) -> None:
    """Print data for a program: no colour, no wrapping, and no NaN, which JSON does not have."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def shows_progress(console: Console) -> bool:
    """Whether the console is a terminal that can redraw a line, and the user has not asked for plain output."""
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("NO_COLOR")


def progress_bar(console: Console, *columns: ProgressColumn) -> Progress:
    """A progress bar with an estimate of the time left; invisible unless the console shows progress."""
    shown: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
    ]
    note, left = TextColumn("{task.fields[note]}"), TimeRemainingColumn()
    # A narrow terminal has no room for all of it.
    shown += [*columns, note, TimeElapsedColumn(), left] if console.width >= 80 else [note, left]
    return Progress(*shown, console=console, disable=not shows_progress(console), expand=True)


def _to_integer(_: type, tokens: Sequence[cyclopts.Token]) -> int:
    # The parser's own conversion rounds 2.5 to 2.
    try:
        number = int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not an integer") from None
    if abs(number) >= 2**63:
        raise ValueError(f"{tokens[0].value!r} is an integer of more than 64 bits")
    return number


Integer = Annotated[int, cyclopts.Parameter(converter=_to_integer)]
Flag = Annotated[bool, cyclopts.Parameter(negative="", show_default=False)]
JsonFlag = Annotated[bool, cyclopts.Parameter(name="--json", negative="", show_default=False)]
