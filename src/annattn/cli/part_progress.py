"""The progress of `demo`, `report` and `bench`: a bar on a terminal, plain lines in a pipe."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from annattn.report import PARTS

__all__ = ["Tell", "watched"]

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
