"""`python -m benchmarks`: verify, measure, and write a table, JSON and plots.

Examples:
  python -m benchmarks                      everything (about ten minutes on two cores)
  python -m benchmarks --quick              the sweep up to 8,192 tokens, no figures (seconds)
  python -m benchmarks --only one_head long some of the figures
  python -m benchmarks --sweep --patience 8 the table alone, without calls of more than 8 seconds
  python -m benchmarks --device cuda        the GPU kernels: predicted beside measured
"""

import argparse
import math
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from annattn.drawing import Axis, Line, chart, write_figure
from annattn.files import write_json
from annattn.measure import describe_machine, faster_from, median_seconds
from benchmarks.contenders import CONTENDERS
from benchmarks.cuda import compare
from benchmarks.figures import FIGURES, Figure
from benchmarks.memory import extra_memory

_SHORT = (64, 128, 256, 512)  # lengths below those of the sweep, to find the crossover
PATIENCE = 60.0  # seconds that a call may take; longer lengths are left out


def sweep(longest: int, patience: float, console: Console) -> dict[str, dict[int, float]]:
    """Seconds of every contender at every length it reaches within the time limit."""
    times: dict[str, dict[int, float]] = {name: {} for name in CONTENDERS}
    sizes = [1024 * 2**step for step in range(11) if 1024 * 2**step <= longest]
    for n in track(sizes, description="lengths", console=console, transient=True):
        for name, contender in CONTENDERS.items():
            earlier = list(times[name].values())
            # A quadratic contender takes four times as long at the next length.
            if len(earlier) < sizes.index(n) or (earlier and earlier[-1] * 4 > patience):
                continue
            try:
                times[name][n] = median_seconds(contender.make(n), enough=0.3)
            except ModuleNotFoundError as missing:
                console.print(f"{contender.label}: left out, {missing.name} is not installed (the `bench` extra)")
    return times


def crossover(times: dict[str, dict[int, float]]) -> int | None:
    """The first length from which ANNA is faster than softmax attention, there and at all longer ones."""
    short = {name: {n: median_seconds(CONTENDERS[name].make(n)) for n in _SHORT} for name in ("anna", "softmax")}
    return faster_from(short["anna"] | times["anna"], short["softmax"] | times["softmax"])


def plot(times: dict[str, dict[int, float]], memory: dict[str, dict[int, int]], folder: Path) -> None:
    """Time and peak memory against n, on logarithmic axes."""
    for title, unit, data, scale in (
        ("Time of one head, dim 64", "milliseconds", times, 1e3),
        ("Extra peak memory of one head, dim 64", "MiB", memory, 2.0**-20),
    ):
        if not data:
            continue
        lines = [
            Line(
                CONTENDERS[name].label,
                [(n, value * scale) for n, value in by_length.items()],
                kind="accent" if name == "anna" else "faint" if name == "floor" else "plain",
            )
            for name, by_length in data.items()
            if by_length
        ]
        every = [point for line in lines for point in line.points]
        low, high = (round(pick(math.log10(y) for _, y in every)) for pick in (min, max))
        lengths = sorted({n for n, _ in every})
        x = Axis("tokens", [(n, f"{n:,}") for n in lengths], log=True)
        ticks = [(10.0**k, f"{10.0**k:g}" if k < 0 else f"{10**k:,}") for k in range(low - 1, high + 2)]
        y = Axis(f"{title}, {unit}", ticks, log=True)
        write_figure(
            lambda theme, lines=lines, x=x, y=y, title=title: chart(
                lines, x, y, title=title, description="", width=860, height=460, theme=theme
            ),
            folder / f"{unit}.svg",
        )


def tables(times: dict[str, dict[int, float]], figures: list[Figure], console: Console) -> None:
    table = Table(title="Milliseconds, medians; one head, dim 64, 8 tables of 8 hyperplane hashes")
    table.add_column("tokens", justify="right")
    for contender in CONTENDERS.values():
        table.add_column(contender.label, justify="right")
    for n in times["floor"]:
        cells = (times[name].get(n) for name in CONTENDERS)
        table.add_row(f"{n:,}", *("" if cell is None else f"{1e3 * cell:,.2f}" for cell in cells))
    console.print(table)
    if figures:
        table = Table("case", "goal", "measured", "reached", title="Figures")
        for figure in figures:
            table.add_row(figure.case, figure.goal, figure.measured, "yes" if figure.reached else "no")
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short lengths, no figures, no plots")
    parser.add_argument("--sweep", action="store_true", help="the table and the plot of times, no figures")
    parser.add_argument("--longest", type=int, default=1_048_576, help="tokens of the longest sequence")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds that a call may take")
    parser.add_argument("--only", nargs="*", choices=list(FIGURES), help="these figures and no sweep")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder for JSON and plots")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to measure")
    options = parser.parse_args()
    console = Console(width=160) if not sys.stdout.isatty() else Console()
    if options.device == "cuda":
        raise SystemExit(compare(console))
    longest = min(8192, options.longest) if options.quick else options.longest
    times = {name: {} for name in CONTENDERS} if options.only else sweep(longest, options.patience, console)
    chosen = [] if options.quick or options.sweep else options.only or list(FIGURES)
    figures = [row for name in track(chosen, "figures", console=console, transient=True) for row in FIGURES[name]()]
    tables(times, figures, console)
    first = None if options.only else crossover(times)
    if first:
        console.print(f"ANNA beats torch's softmax attention from {first:,} tokens (lengths doubled from 64)")
    options.out.mkdir(parents=True, exist_ok=True)
    memory: dict[str, dict[int, int]] = {}
    if options.sweep:
        plot(times, memory, options.out)
    elif not options.quick and not options.only:
        reach = {name: [n for n in by_length if n >= 16_384][::2] for name, by_length in times.items() if by_length}
        for name in track(list(reach), "memory", console=console, transient=True):
            memory[name] = {n: extra_memory(name, n) for n in reach[name]}
        plot(times, memory, options.out)
    record = {
        "machine": describe_machine(),
        "seconds": times,
        "extra_bytes": memory,
        "crossover": first,
        "figures": [asdict(figure) for figure in figures],
    }
    write_json(record, options.out / "results.json")
    console.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
