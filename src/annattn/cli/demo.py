"""`annattn demo`: measure the parts of the report, print them, and write the page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from annattn.checks import did_you_mean, require_choice
from annattn.cli.part_progress import part_progress
from annattn.cli.part_tables import TABLES
from annattn.cli.terminal import Flag, Integer, JsonFlag, print_json, print_line, stderr_console, stdout_console
from annattn.errors import InputError
from annattn.measure import describe_machine, lengths
from annattn.report import PARTS, Settings, check_writable, make_results, measure_parts, page, write_file
from annattn.report.page import headlines
from annattn.seeds import check_seed

__all__ = ["demo", "measure"]

QUICK_LONGEST = 8_192
"""The longest input of the quick demo: softmax attention over it takes a tenth of a second."""


def demo(
    *parts: str,
    seed: Integer = 0,
    longest: Integer = 65_536,
    output: Path = Path("report.html"),
    quick: Flag = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure speed, attention, models, recall, facts in text, theory and theorems in three minutes; write a report.

    The report is a page to open in a browser; its numbers are saved next to it as JSON. An interrupted demo writes the
    parts that were finished. Exits with 1 if an output is wrong or a theorem does not hold.

    Example: annattn demo --longest 16384 --output report.html

    Example: annattn demo speed recall --output parts.html

    Args:
        parts: the parts to measure, by default all: speed, attention, models, recall, needles, theory,
            theorems.
        seed: determines tokens, words and hash functions.
        longest: the largest number of tokens to time, at least 1024; each doubling makes softmax attention take four
            times as long. Recall and facts are read at up to 262144 tokens, or at
            1048576 if that is given here.
        output: the page to write, in place of one that is there; the numbers get the same name with the ending .json.
        quick: use small sizes, and at most 8192 tokens for softmax attention; half a minute in all.
        as_json: print the numbers as JSON and nothing else.
    """
    for name in parts:
        require_choice("part", name, PARTS, hint=did_you_mean(name, PARTS))
    longest = min(longest, QUICK_LONGEST) if quick else longest
    results = measure(Settings(seed, longest, quick), output, parts, show=not as_json)
    if as_json:
        print_json(results)
    else:
        _print_summary(results, output)
    raise SystemExit(0 if _everything_holds(results) else 1)


def measure(settings: Settings, output: Path, names: Sequence[str] = (), *, show: bool) -> dict[str, Any]:
    """Measure every part or the named ones, print each table when it is ready if `show`, and write page and numbers.

    When it is interrupted, the finished parts are written before it exits.
    """
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
    expected = {name: part.expected_seconds(settings) for name, part in PARTS.items() if not names or name in names}
    stopped = False
    try:
        with part_progress(stderr, expected) as progress:
            for name, data in measure_parts(settings, progress, names):
                parts[name] = data
                if show:
                    stdout.print(TABLES[name](data))
                    stdout.print()
    except KeyboardInterrupt:
        stopped = True
        if not parts:
            stderr.print("stopped; nothing was measured yet, and nothing was written")
            raise SystemExit(130) from None
    results = make_results(parts, machine)
    write_file(page(results), output)
    write_file(json.dumps(results, ensure_ascii=False) + "\n", numbers)
    if stopped:
        stderr.print(f"stopped; {output} has the parts that were finished: {', '.join(parts)}")
        raise SystemExit(130)
    return results


def _print_summary(results: dict[str, Any], output: Path) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    for figure, what in headlines(results):
        table.add_row(figure, what)
    machine, console = results["machine"], stdout_console()
    console.print(table)
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    console.print(f"\n{machine['processor']}, {threads}, torch {machine['versions']['torch']}", style="dim")
    print_line(f"the page: {output.resolve()}")


def _everything_holds(results: dict[str, Any]) -> bool:
    theory, theorems = results.get("theory"), results.get("theorems")
    same = theory is None or (theory["equal"] == theory["compared"] and all(one["same"] for one in theory["rounds"]))
    return same and (theorems is None or all(row["holds"] for row in theorems["rows"]))
