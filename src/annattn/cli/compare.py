"""`annattn compare`: every efficient attention on the same tasks."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Column, Table

from annattn.checks import did_you_mean, require_choice, require_count
from annattn.cli.terminal import (
    Flag,
    Integer,
    JsonFlag,
    print_json,
    print_line,
    progress_bar,
    stderr_console,
    stdout_console,
)
from annattn.drawing import write_figure
from annattn.errors import InputError
from annattn.experiments import Progress as Step
from annattn.experiments.comparison import CONTENDERS, PROFILES, Run, read_runs, run_all, summary
from annattn.files import held, read_json, write_json
from annattn.measure.contender_costs import LENGTHS, contender_costs
from annattn.measure.machine import usable_cores
from annattn.report.comparison import error_text, frontier_chart

__all__ = ["compare"]

_COLUMNS = 4
_JOBS = 8  # each takes some hundred MB
_NONE = "–"  # where a mechanism has no form that the task needs


def compare(
    *names: str,
    profile: Literal["small", "quick", "full", "listops"] = "quick",
    folder: Path = Path("results/compare"),
    seeds: Integer | None = None,
    jobs: Integer | None = None,
    minutes: float | None = None,
    again: Flag = False,
    as_json: JsonFlag = False,
) -> None:
    """Train every efficient attention on the same tasks, and print errors beside costs.

    Each run writes one JSON file; runs that have one are not repeated, and a run that was stopped goes on where it was.
    On two cores small takes about ten minutes and quick under an hour; from the times of single steps, full takes a
    night, and listops, which trains as long as published, a day or more. Whatever has run is in the table, and the rest
    says that it has not.

    Example: annattn compare induction recall --profile small

    Args:
        names: any of match2, induction, recall, sum, listops, k_hop and k_hop_16; by default all.
        profile: the sizes, steps, learning rates and seeds.
        folder: where runs, costs, table (JSON) and figures (SVG) go, in one folder per profile.
        seeds: how many runs a contender has per task at the learning rate it chose, by default as the profile says.
        jobs: how many runs go on at once, by default one per core, at most 8.
        minutes: begin no run after this time; 0 trains nothing and prints what is there.
        again: measure the costs again, even if they are there.
        as_json: print the table as JSON.
    """
    chosen = PROFILES[profile]
    if seeds is not None:
        chosen = chosen.with_seeds(require_count("seeds", seeds, most=100))
    for name in names:
        require_choice("task", name, chosen.tasks, hint=did_you_mean(name, chosen.tasks))
    if minutes is not None and not minutes >= 0:
        raise InputError("--minutes", given=minutes, expected="a number of at least 0")
    jobs = min(usable_cores(), _JOBS) if jobs is None else require_count("jobs", jobs, most=1000)
    console, place = stderr_console(), folder / profile
    place.mkdir(parents=True, exist_ok=True)
    try:
        with progress_bar(console, MofNCompleteColumn()) as progress:
            line = progress.add_task("runs", total=None, note="")

            def report(done: int, total: int, run: Run | None, step: Step | None) -> None:
                note = f"{run.name}, step {step.step} of {step.steps}, error {step.error:.3f}" if run and step else ""
                progress.update(line, completed=done, total=total, note=note)

            run_all(chosen, names or tuple(chosen.tasks), place, jobs=jobs, minutes=minutes, report=report)
        costs = _costs(place, console, again=again)
    except KeyboardInterrupt:
        console.print(f"stopped; the same command continues from {place}", markup=False)
        raise SystemExit(130) from None
    found = {"profile": profile, **summary(chosen, read_runs(chosen, place)), "costs": costs}
    write_json(found, place / "comparison.json")
    for is_causal, name in ((True, "frontier_causal.svg"), (False, "frontier.svg")):
        draw = partial(frontier_chart, found, is_causal=is_causal, width=760)
        if draw() is not None:
            write_figure(lambda theme, draw=draw: draw(theme=theme) or "", place / name)
    if as_json:
        print_json(found)
        return
    for table in (*_error_tables(found), _cost_table(found)):
        stdout_console().print(table)
    print_line(f"{found['runs']} of {found['planned']} runs; table and figures: {place}")


def _costs(place: Path, console: Console, *, again: bool) -> dict[str, Any] | None:
    """The costs in the folder, or measured now; None while another process measures them."""
    path = place / "costs.json"
    try:
        with held(place / "costs.run"):
            if path.exists() and not again:
                return _read_costs(path)
            with progress_bar(console) as progress:
                line = progress.add_task("costs", total=1.0, note="")
                found = contender_costs(progress=lambda done, what: progress.update(line, completed=done, note=what))
            write_json(found, path)
            return found
    except InputError as error:
        if "in use by" not in str(error):
            raise
        return None


def _read_costs(path: Path) -> dict[str, Any]:
    expected = "the costs that annattn compare wrote"
    found = read_json(path, "costs", expected)
    try:
        for name in CONTENDERS:
            cost = found["contenders"][name]
            numbers = [cost["seconds_per_token"][str(n)] for n in LENGTHS]
            numbers += [cost["state_bytes"][str(n)] or 0 for n in LENGTHS]
            if not all(isinstance(x, int | float) for x in numbers):
                raise TypeError("not a number")
    except (KeyError, TypeError) as wrong:
        hint = f"annattn compare --again measures them anew ({wrong!r})"
        raise InputError("costs", given=f"{path}, damaged", expected=expected, hint=hint) from None
    return found


def _error_tables(found: dict[str, Any]) -> Iterator[Table]:
    """Four tasks per table, so that a terminal of 80 letters holds them."""
    caption = f"{_NONE} no causal form, or no other"
    for first in range(0, len(found["columns"]), _COLUMNS):
        columns = found["columns"][first : first + _COLUMNS]
        table = Table(_names(), *(column["title"] for column in columns), title="errors on test data", caption=caption)
        table.add_row("best constant answer", *(f"{column['guess']:.3f}" for column in columns), style="dim")
        for row in found["rows"]:
            table.add_row(row["title"], *(_short(row["cells"][column["name"]]) for column in columns))
        yield table


def _short(cell: dict[str, Any]) -> str:
    return _NONE if "missing" in cell else error_text(cell).replace(" ± ", "±")


def _names() -> Column:
    return Column("contender", no_wrap=True)


def _cost_table(found: dict[str, Any]) -> Table:
    lengths = [f"{n:,}" for n in LENGTHS]
    table = Table(
        _names(),
        *(f"µs per token at {n}" for n in lengths),
        *(f"state at {n}, KiB" for n in lengths),
        title="costs of one layer",
    )
    contenders = {} if found["costs"] is None else found["costs"]["contenders"]
    for row in found["rows"] if contenders else ():
        cost = contenders[row["name"]]
        states = [cost["state_bytes"][str(n)] for n in LENGTHS]
        table.add_row(
            row["title"],
            *(f"{1e6 * cost['seconds_per_token'][str(n)]:.2f}" for n in LENGTHS),
            *(_NONE if state is None else f"{state / 1024:,.0f}" for state in states),
        )
    return table
