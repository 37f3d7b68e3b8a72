"""What `demo`, `report` and `bench` share: a progress bar for watchers, plain lines for pipes, tables of each part."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from annattn.report import PARTS
from annattn.report.page import percent, seconds, times
from annattn.report.speed import LABELS

__all__ = ["TABLES", "Tell", "speed_table", "watched"]

Tell = Callable[[str, float, str], None]
"""Told a part's name, the share of it that is done, and what comes next."""


class _TimeLeft(ProgressColumn):
    """What is left at the pace so far; the parts' expected seconds until there is a pace."""

    def render(self, task: Task) -> Text:
        """Minutes and seconds."""
        total, done, elapsed = task.total or 0.0, task.completed, task.elapsed or 0.0
        left = (total - done) * (max(1.0, elapsed / done) if done > 0.1 * total else 1.0)
        return Text(f"{int(left) // 60}:{int(left) % 60:02d} left", style="progress.remaining")


@contextmanager
def watched(console: Console, expected: dict[str, float]) -> Iterator[Tell]:
    """A bar over parts that take the expected seconds; when nobody watches, a line whenever a part begins."""
    started = time.monotonic()
    if not console.is_terminal:
        begun: set[str] = set()

        def line(part: str, done: float, what: str) -> None:
            if part not in begun:
                begun.add(part)
                console.print(f"{time.monotonic() - started:4.0f} s  {PARTS[part].title}")

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, _TimeLeft(), console=console, transient=True) as bar:
        task = bar.add_task("", total=sum(expected.values()))
        order = list(expected)

        def update(part: str, done: float, what: str) -> None:
            before = sum(expected[name] for name in order[: order.index(part)])
            text = f"{PARTS[part].title}: {what}" if what else PARTS[part].title
            room = max(12, console.width - 49)
            text = text if len(text) <= room else text[: room - 1] + "…"
            bar.update(task, completed=before + done * expected[part], description=text)

        yield update


def speed_table(part: dict[str, Any]) -> Table:
    """Times of a call at every length."""
    used = part["settings"]
    table = Table(
        title=f"Time of a call: {used['heads']} head{'s' * (used['heads'] > 1)} of width {used['dim']}, "
        f"{used['tables']} tables of {used['hashes']} hashes",
        title_justify="left",
    )
    table.add_column("tokens", justify="right", no_wrap=True)
    for name in LABELS:
        table.add_column("copying" if name == "floor" else LABELS[name], justify="right")
    table.add_column("softmax / ANNA", justify="right", style="bold")
    for row in part["rows"]:
        cells = (seconds(row["seconds"][name]) for name in LABELS)
        table.add_row(f"{row['tokens']:,}", *cells, times(row["ratio"]["softmax / ANNA"]))
    return table


def _attention_table(part: dict[str, Any]) -> Table:
    table = Table(
        title="Distance of hashed from expected weights, from 0 to 1, by number of tables",
        title_justify="left",
    )
    table.add_column("layer")
    table.add_column("hashes", justify="right")
    every = sorted({count for layer in part["layers"] for count in layer["tables"]})
    for count in every:
        table.add_column(str(count), justify="right", no_wrap=True)
    for number, layer in enumerate(part["layers"], 1):
        for at, (z, row) in enumerate(zip(layer["hashes"], layer["rows"], strict=True)):
            known = dict(zip(layer["tables"], (f"{cell['distance']:.2f}" for cell in row["cells"]), strict=True))
            table.add_row("" if at else str(number), str(z), *(known.get(count, "") for count in every))
    return table


def _models_table(part: dict[str, Any]) -> Table:
    table = Table(
        title=f"Wrong tokens of {part['samples']} sequences, mean of {part['draws']} draws, "
        "by number of tables; * as trained",
        title_justify="left",
    )
    table.add_column("model, layer")
    table.add_column("hashes", justify="right")
    every = sorted({count for model in part["models"] for layer in model["layers"] for count in layer["tables"]})
    for count in every:
        table.add_column(str(count), justify="right", no_wrap=True)
    for model in part["models"]:
        for number, layer in enumerate(model["layers"], 1):
            for at, (z, row) in enumerate(zip(layer["hashes"], layer["errors"], strict=True)):
                known = {
                    count: percent(cell["mean"]) + "*" * (layer["trained"] == {"tables": count, "hashes": z})
                    for count, cell in zip(layer["tables"], row, strict=True)
                }
                name = "" if at else f"{model['task']}, {number}"
                table.add_row(name, str(z), *(known.get(count, "") for count in every))
    return table


def _theory_table(part: dict[str, Any]) -> Table:
    table = Table("", "protocol", "transformer", title=f"{part['k']}-hop of {part['n']} letters", title_justify="left")
    sizes = part["sizes"]
    same = sum(one["same"] for one in part["rounds"])
    table.add_row("in parallel", f"{part['machines']} machines", f"{sizes['heads']} heads")
    table.add_row("in sequence", f"{len(part['rounds'])} rounds", f"{sizes['layers']} layers")
    table.add_row("in one place", f"{part['memory_words']} words", f"{sizes['value_width']:,} numbers a value")
    table.add_row("same messages", f"after {len(part['rounds'])} rounds", f"after {same} of as many layers")
    table.add_row("right outputs", "", f"{part['equal']} of {part['compared']} words, EMA and ANNA")
    return table


def _theorems_table(part: dict[str, Any]) -> Table:
    table = Table(title=f"Theorems, {part['effort']} sizes", title_justify="left")
    table.add_column("theorem", overflow="fold")
    table.add_column("right outputs", justify="right")
    table.add_column("bounds kept", justify="right")
    table.add_column("holds")
    for row in part["rows"]:
        kept = f"{row['kept']} of {row['kept'] + len(row['broken'])}"
        right = f"{row['equal']:,} of {row['inputs']:,}"
        table.add_row(row["theorem"], right, kept, "yes" if row["holds"] else "[bold]NO[/bold]")
    return table


TABLES: dict[str, Callable[[dict[str, Any]], Table]] = {
    "speed": speed_table,
    "attention": _attention_table,
    "models": _models_table,
    "theory": _theory_table,
    "theorems": _theorems_table,
}
