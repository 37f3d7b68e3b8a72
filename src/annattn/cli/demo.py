"""`annattn demo`: measure the five parts of the report, print them, and write the page."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from annattn.cli.part_progress import watched
from annattn.cli.part_tables import TABLES
from annattn.cli.terminal import AsJson, Flag, Whole, print_json
from annattn.errors import InputError
from annattn.measure import describe_machine, lengths
from annattn.report import PARTS, Order, document, measured, page, writable, written
from annattn.report.page import headlines

__all__ = ["demo", "measure"]


def demo(
    *,
    seed: Whole = 0,
    longest: Whole = 65_536,
    output: Path = Path("report.html"),
    quick: Flag = False,
    as_json: AsJson = False,
) -> None:
    """Show what this is and that it is true: speed, attention, trained models, theory and theorems, in three minutes.

    Writes a page to open in a browser, and beside it the numbers as JSON. Exits with 1 if an output is wrong or a
    theorem does not hold.

    Example: annattn demo --longest 16384 --output report.html

    Args:
        seed: decides tokens, words and hash functions.
        longest: the largest number of tokens timed, at least 1024; softmax attention takes four times as long for each
            doubling.
        output: the page; the numbers go beside it, with the ending .json.
        quick: everything small, in half a minute.
        as_json: print the numbers as JSON and nothing else.
    """
    order = Order(seed, longest, quick)
    results = measure(order, output, show=not as_json)
    if as_json:
        print_json(results)
    else:
        _summary(results, output)
    raise SystemExit(0 if _holds(results) else 1)


def measure(order: Order, output: Path, *, show: bool) -> dict[str, Any]:
    """Measure every part, print its table as it is finished if wanted, and write the page and its numbers."""
    lengths(order.longest)  # refused now, not after a minute
    if order.seed < 0:
        raise InputError("seed", given=order.seed, expected="an integer of at least 0")
    writable(output)
    numbers = output.with_suffix(".json")
    if numbers == output:
        raise InputError("output", given=str(output), expected="a name that ends in .html")
    console = Console(highlight=False)
    # One console for both where both are seen, so that tables push the bar down and do not run into it.
    aside = console if show and console.is_terminal else Console(stderr=True, highlight=False)
    about, parts = describe_machine(), {}
    try:
        with watched(aside, {name: part.seconds(order) for name, part in PARTS.items()}) as tell:
            for name, data in measured(order, tell):
                parts[name] = data
                if show:
                    console.print(TABLES[name](data))
                    console.print()
        results = document(parts, about)
        written(page(results), output)
        written(json.dumps(results, ensure_ascii=False) + "\n", numbers)
    except KeyboardInterrupt:
        aside.print("stopped; nothing was written")
        raise SystemExit(130) from None
    return results


def _summary(results: dict[str, Any], output: Path) -> None:
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    for figure, what in headlines(results):
        table.add_row(figure, what)
    about = results["machine"]
    console.print(table)
    console.print(
        f"\n{about['processor']}, {about['threads']} threads, torch {about['versions']['torch']}", style="dim"
    )
    Console(highlight=False, soft_wrap=True).print(f"the page: {output.resolve()}", markup=False)


def _holds(results: dict[str, Any]) -> bool:
    theory = results["theory"]
    same = theory["equal"] == theory["compared"] and all(one["same"] for one in theory["rounds"])
    return same and all(row["holds"] for row in results["theorems"]["rows"])
