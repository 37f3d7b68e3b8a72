"""The progress of `demo`, `report` and `bench`: a bar on a terminal, plain lines in a pipe."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from annattn.report import PARTS, PartProgress

__all__ = ["part_progress"]


class _TimeLeft(ProgressColumn):
    """The time left at the pace so far; before there is a pace, what the parts are expected to take."""

    def render(self, task: Task) -> Text:
        """Minutes and seconds."""
        total, done, elapsed = task.total or 0.0, task.completed, task.elapsed or 0.0
        left = (total - done) * (max(1.0, elapsed / done) if done > 0.1 * total else 1.0)
        return Text(f"{int(left) // 60}:{int(left) % 60:02d} left", style="progress.remaining")


@contextmanager
def part_progress(console: Console, expected_seconds: dict[str, float]) -> Iterator[PartProgress]:
    """A bar over all parts; if the console is not a terminal, a line when a part begins."""
    started = time.monotonic()
    if not console.is_terminal:
        begun: set[str] = set()

        def print_part(part: str, done: float, what: str) -> None:
            if part not in begun:
                begun.add(part)
                console.print(f"{time.monotonic() - started:4.0f} s  {PARTS[part].title}")

        yield print_part
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, _TimeLeft(), console=console, transient=True) as bar:
        task = bar.add_task("", total=sum(expected_seconds.values()))
        parts = list(expected_seconds)

        def update_bar(part: str, done: float, what: str) -> None:
            before = sum(expected_seconds[name] for name in parts[: parts.index(part)])
            text = f"{PARTS[part].title}: {what}" if what else PARTS[part].title
            room = max(12, console.width - 49)
            text = text if len(text) <= room else text[: room - 1] + "…"
            bar.update(task, completed=before + done * expected_seconds[part], description=text)

        yield update_bar
