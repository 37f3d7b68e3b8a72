"""`annattn theorems`: build what the paper's theorems promise, measure it, and print the table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from annattn.checks import did_you_mean, require_choice
from annattn.cli.terminal import Flag, JsonFlag, print_json, shows_progress, stderr_console, stdout_console
from annattn.errors import AnnattnError
from annattn.report.theorems import tightest
from annattn.theorems import THEOREMS, Effort, Verdict

__all__ = ["theorems"]


def theorems(*names: str, quick: Flag = False, as_json: JsonFlag = False) -> None:
    """Build what each theorem of the paper promises, run it, and compare its sizes and answers with the theorem's.

    Exits with 1 if any theorem does not hold. All of them take about ten minutes, or half a minute with --quick.

    Example: annattn theorems match2 k-hop --quick

    Args:
        names: the theorems to run, by default all; docs/theorems.md explains each.
        quick: use smaller sizes.
        as_json: print the rows as JSON, with every bound.
    """
    for name in names:
        require_choice("theorem", name, THEOREMS, hint=did_you_mean(name, THEOREMS))
    rows = _run_theorems(names or tuple(THEOREMS), "quick" if quick else "full")
    holds = all(row.holds for row in rows.values())
    if as_json:
        document = {"effort": "quick" if quick else "full", "holds": holds}
        document["rows"] = {name: row.to_dict() for name, row in rows.items()}
        print_json(document)
    else:
        console = stdout_console()
        console.print(_table(rows))
        for name, row in rows.items():
            for line in (*row.notes, *(f"does not hold: {bound}" for bound in row.broken)):
                console.print(f"{name}: {escape(line)}", style="bold" if line.startswith("does not") else "dim")
        failed = [name for name, row in rows.items() if not row.holds]
        console.print(f"[bold]{', '.join(failed)} DO NOT HOLD[/bold]" if failed else "every row holds")
    if not holds:
        raise SystemExit(1)


def _run_theorems(names: Sequence[str], effort: Effort) -> dict[str, Verdict]:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    rows = {}
    console = stderr_console()
    with _one_thread(), Progress(*columns, console=console, transient=True, disable=not shows_progress(console)) as bar:
        task = bar.add_task("", total=len(names))
        for name in names:
            bar.update(task, description=name)
            try:
                row = THEOREMS[name](effort, lambda what, name=name: bar.update(task, description=f"{name}: {what}"))
            except AnnattnError as error:
                row = Verdict(name, "nothing", (), (), (), 0, 0, 0.0, notes=(f"stopped: {error}",))
            rows[name] = row
            bar.advance(task)
            bar.console.print(f"{name} {'holds' if row.holds else 'DOES NOT HOLD'} ({row.seconds:.1f} s)")
    return rows


@contextmanager
def _one_thread() -> Iterator[None]:
    """What the rows build is many small tensors, on which a second thread of torch only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _table(rows: dict[str, Verdict]) -> Table:
    table = Table(show_lines=True)
    table.add_column("theorem", overflow="fold")
    table.add_column("built; measured against the theorem's bound", overflow="fold")
    table.add_column("holds")
    for name, row in rows.items():
        claims = [f"• {escape(str(bound))}" for bound in (*tightest(row.bounds), *row.exponents)]
        table.add_row(
            f"[bold]{name}[/bold]\n{_range('run at', row.sizes)}{_range('sizes for', row.planned)}"
            f"{row.equal:,} of {row.inputs:,} right\n{row.seconds:.1f} s",
            "\n".join([f"[dim]{escape(row.theorem)}: {escape(row.built)}[/dim]", *claims]),
            "yes" if row.holds else "[bold]NO[/bold]",
        )
    return table


def _range(what: str, sizes: Sequence[int]) -> str:
    if not sizes:
        return ""
    last = f"{sizes[-1]:,}" if sizes[-1] < 10**7 else f"{sizes[-1]:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{what} N = {sizes[0]:,}" + (f" … {last}" if len(sizes) > 1 else "") + "\n"
