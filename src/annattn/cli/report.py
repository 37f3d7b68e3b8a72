"""`annattn report`: the page, from saved numbers or from new ones."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from annattn.cli.demo import measure
from annattn.cli.terminal import Integer, JsonFlag, print_json, print_line
from annattn.errors import InputError
from annattn.report import Settings, page, read_results, write_file
from annattn.report.benchmarks import read_grid, read_scale
from annattn.report.comparison import read_comparison
from annattn.report.page import headlines

__all__ = ["report"]


def report(
    *,
    output: Path = Path("report.html"),
    source: Annotated[Path | None, Parameter(name="--from")] = None,
    grid: Path | None = None,
    comparison: Path | None = None,
    scale: Path | None = None,
    seed: Integer = 0,
    as_json: JsonFlag = False,
) -> None:
    """Write the report from numbers that `annattn demo` saved, or measure them again.

    Example: annattn report --from report.json --output report.html

    Example: annattn report --from report.json --grid results/grid/grid.json

    Args:
        output: the page to write.
        source: a results file; without one everything is measured, which takes as long as the demo.
        grid: the grid.json of `python -m benchmarks.grid`; the page then has a section on shapes people use.
        comparison: the comparison.json of `annattn compare`; the page then has a section with its table and frontier.
        scale: the scale.json of `python -m benchmarks.context_parallel bytes --out FOLDER`; the page then has a section
            on several processes.
        seed: determines tokens, words and hash functions when measuring.
        as_json: print the path of the page and its headlines as JSON.
    """
    readers = {"grid": (grid, read_grid), "comparison": (comparison, read_comparison), "scale": (scale, read_scale)}
    others = {name: read(path) for name, (path, read) in readers.items() if path is not None}
    if source is None:
        results = measure(Settings(seed), output, show=False)
        if others:
            write_file(page(results | others), output)
    else:
        if output.resolve() == source.resolve():
            raise InputError("output", given=str(output), expected="another file than the results")
        results = read_results(source)
        write_file(page(results | others), output)
    if as_json:
        print_json({"page": str(output.resolve()), "headlines": [list(one) for one in headlines(results)]})
    else:
        print_line(f"the page: {output.resolve()}")
