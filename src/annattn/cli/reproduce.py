"""`annattn reproduce`: train from scratch, measure, and write tables and figures."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rich.progress import MofNCompleteColumn
from rich.table import Table

from annattn.checks import did_you_mean, require_choice
from annattn.cli.terminal import JsonFlag, print_json, print_line, progress_bar, stderr_console, stdout_console
from annattn.cli.train import train_with_bar
from annattn.experiments.recipe import Recipe
from annattn.experiments.reproduce import EXPERIMENTS, PROFILES, ExperimentContext, Finding

__all__ = ["reproduce"]


def reproduce(
    *names: str, profile: Literal["quick", "full"] = "quick", folder: Path = Path("results"), as_json: JsonFlag = False
) -> None:
    """Train from scratch, measure, and write tables and figures.

    Models that are finished in the folder are not trained again, so a stopped run continues where it was. On two cores
    the quick profile takes about a quarter of an hour for the paper's two figures, trained as in the paper and trained
    directly. It leaves out families, k_hop, k_hop_16, ablations, recall and recall_state, which take up to an hour
    each, unless they are named. The full profile takes days.

    Example: annattn reproduce match2_direct induction_heads --folder results

    Args:
        names: any of match2_paper, match2_direct, induction_heads, betas, families, k_hop, k_hop_16, ablations,
            recall and recall_state; by default those of the profile.
        profile: quick for short runs; full for all runs with the paper's numbers of steps and its whole grid.
        folder: where runs, numbers (JSON) and figures (SVG) go, in one folder per profile.
        as_json: print the findings as JSON.
    """
    for name in names:
        require_choice("experiment", name, EXPERIMENTS, hint=did_you_mean(name, EXPERIMENTS))
    console = stderr_console()

    def run(recipe: Recipe, name: str, seed: int, place: Path) -> None:
        train_with_bar(recipe, name, seed, place, console)

    @contextmanager
    def show_progress(what: str, parts: int) -> Iterator[Callable[[], None]]:
        with progress_bar(console, MofNCompleteColumn()) as progress:
            line = progress.add_task(what, total=parts, note="")
            yield lambda: progress.advance(line)

    left_out = () if names else PROFILES[profile].leaves_out
    chosen = names or [name for name in EXPERIMENTS if name not in left_out]
    if left_out:
        console.print(f"left out because they take long: {', '.join(left_out)}; name them, or use --profile full")
    context = ExperimentContext(folder / profile, PROFILES[profile], show_progress, run)
    found: dict[str, list[Finding]] = {}
    try:
        for name in chosen:
            started = time.monotonic()
            console.print(f"[bold]{name}[/bold]")
            found[name] = EXPERIMENTS[name](context)
            console.print(f"{name}: {time.monotonic() - started:.0f} s")
    except KeyboardInterrupt:
        console.print(f"stopped; the same command continues from {folder / profile}", markup=False)
        raise SystemExit(130) from None
    if as_json:
        print_json({name: [vars(one) | {"holds": one.holds} for one in some] for name, some in found.items()})
        return
    stdout_console().print(_table(found))
    print_line(f"numbers and figures: {folder / profile}")


def _table(found: dict[str, list[Finding]]) -> Table:
    table = Table("experiment", "what", "measured", "bound")
    for name, findings in found.items():
        for at, one in enumerate(findings):
            bound = "" if one.at_most is None else f"≤ {one.at_most:g}"
            mark = "" if one.holds else "  not reached"
            spread = "" if one.spread is None else f" ± {one.spread:.4f}"
            table.add_row(name if at == 0 else "", one.what, f"{one.measured:.4f}{spread}{mark}", bound)
    return table
