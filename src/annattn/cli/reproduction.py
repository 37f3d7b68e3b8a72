"""`annattn reproduce`: train from nothing, measure, and write tables and figures."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rich.progress import MofNCompleteColumn
from rich.table import Table

from annattn.cli.learning import watched
from annattn.cli.names import known
from annattn.cli.terminal import AsJson, bar, output, print_json, remarks
from annattn.experiments.recipe import Recipe
from annattn.experiments.reproduce import EXPERIMENTS, PROFILES, ExperimentContext, Finding

__all__ = ["reproduce"]


def reproduce(
    *names: str, profile: Literal["quick", "full"] = "quick", folder: Path = Path("results"), as_json: AsJson = False
) -> None:
    """Train from nothing, measure, and write tables and figures.

    What is finished in the folder is not trained again, so a stopped run goes on where it was. The quick profile takes
    about a quarter of an hour on two cores for the paper's two figures, the paper's way and trained directly; k_hop,
    ablations and recall, up to half an hour each, are left to those who name them. The full profile takes days.

    Example: annattn reproduce match2_direct induction_heads --profile quick --folder results

    Args:
        names: which of match2_paper, match2_direct, induction_heads, betas, k_hop, ablations and recall; those of the
            profile unless given.
        profile: quick for short runs, full for all of them with the paper's numbers of steps and its whole grid.
        folder: where runs, numbers (JSON) and figures (SVG) go; each profile has a folder in it.
        as_json: print the findings as JSON.
    """
    for name in names:
        known("experiment", name, EXPERIMENTS)
    console = remarks()

    def run(recipe: Recipe, name: str, seed: int, place: Path) -> None:
        watched(recipe, name, seed, place, console)

    @contextmanager
    def watch(what: str, parts: int) -> Iterator[Callable[[], None]]:
        with bar(console, MofNCompleteColumn()) as progress:
            line = progress.add_task(what, total=parts, note="")
            yield lambda: progress.advance(line)

    left_out = () if names else PROFILES[profile].leaves_out
    chosen = names or [name for name in EXPERIMENTS if name not in left_out]
    if left_out:
        console.print(f"left out, as they take long: {', '.join(left_out)}; name them, or take --profile full")
    context = ExperimentContext(folder / profile, PROFILES[profile], watch, run)
    found: dict[str, list[Finding]] = {}
    try:
        for name in chosen:
            started = time.monotonic()
            console.print(f"[bold]{name}[/bold]")
            found[name] = EXPERIMENTS[name](context)
            console.print(f"{name}: {time.monotonic() - started:.0f} s")
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on from {folder / profile}", markup=False)
        raise SystemExit(130) from None
    if as_json:
        data = {name: [vars(one) | {"holds": one.holds} for one in some] for name, some in found.items()}
        print_json(data)
        return
    table = Table("experiment", "what", "measured", "asked")
    for name, findings in found.items():
        for at, one in enumerate(findings):
            asked = "" if one.at_most is None else f"≤ {one.at_most:g}"
            mark = "" if one.holds else "  not reached"
            spread = "" if one.spread is None else f" ± {one.spread:.4f}"
            table.add_row(name if at == 0 else "", one.what, f"{one.measured:.4f}{spread}{mark}", asked)
    output().print(table)
    output().print(f"numbers and figures: {folder / profile}", markup=False, soft_wrap=True)
