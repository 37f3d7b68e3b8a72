"""`annattn demo`: measure the five parts of the report, print them, and write the page."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from annattn.cli.part_progress import part_progress
from annattn.cli.part_tables import TABLES
from annattn.cli.terminal import Flag, Integer, JsonFlag, print_json, print_line, stderr_console, stdout_console
from annattn.errors import InputError
from annattn.measure import describe_machine, lengths
from annattn.report import PARTS, Settings, check_writable, make_results, measure_parts, page, write_file
from annattn.report.page import headlines
from annattn.seeds import check_seed

__all__ = ["demo", "measure"]


def demo(
    *,
    seed: Integer = 0,
    longest: Integer = 65_536,
    output: Path = Path("report.html"),
    quick: Flag = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure speed, attention, trained models, theory and theorems in three minutes, and write a report.

    The report is a page to open in a browser; its numbers are saved next to it as JSON. Exits with 1 if an output is
    wrong or a theorem does not hold.

    Example: annattn demo --longest 16384 --output report.html

    Args:
        seed: determines tokens, words and hash functions.
        longest: the largest number of tokens to time, at least 1024; each doubling makes softmax attention take four
            times as long.
        output: the page to write; the numbers get the same name with the ending .json.
        quick: use small sizes and finish in half a minute.
        as_json: print the numbers as JSON and nothing else.
    """
    results = measure(Settings(seed, longest, quick), output, show=not as_json)
    if as_json:
        print_json(results)
    else:
        _print_summary(results, output)
    raise SystemExit(0 if _everything_holds(results) else 1)


def measure(settings: Settings, output: Path, *, show: bool) -> dict[str, Any]:
    """Measure every part, print each table when it is ready if `show`, and write the page and its numbers."""
    # Refuse now what would fail after minutes of measuring.
    lengths(settings.longest)
    check_seed(settings.seed)
    check_writable(output)
    numbers = output.with_suffix(".json")
    if numbers == output:
        raise InputError("output", given=str(output), expected="a name that ends in .html")
    stdout = stdout_console()
    # On a terminal, one console for tables and bar, so that the tables appear above the bar and not inside it.
    stderr = stdout if show and stdout.is_terminal else stderr_console()
    machine, parts = describe_machine(), {}
    try:
        with part_progress(stderr, {name: part.expected_seconds(settings) for name, part in PARTS.items()}) as progress:
            for name, data in measure_parts(settings, progress):
                parts[name] = data
                if show:
                    stdout.print(TABLES[name](data))
                    stdout.print()
        results = make_results(parts, machine)
        write_file(page(results), output)
        write_file(json.dumps(results, ensure_ascii=False) + "\n", numbers)
    except KeyboardInterrupt:
        stderr.print("stopped; nothing was written")
        raise SystemExit(130) from None
    return results


def _print_summary(results: dict[str, Any], output: Path) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    for figure, what in headlines(results):
        table.add_row(figure, what)
    machine, console = results["machine"], stdout_console()
    console.print(table)
    console.print(
        f"\n{machine['processor']}, {machine['threads']} threads, torch {machine['versions']['torch']}", style="dim"
    )
    print_line(f"the page: {output.resolve()}")


def _everything_holds(results: dict[str, Any]) -> bool:
    theory = results["theory"]
    same = theory["equal"] == theory["compared"] and all(one["same"] for one in theory["rounds"])
    return same and all(row["holds"] for row in results["theorems"]["rows"])
