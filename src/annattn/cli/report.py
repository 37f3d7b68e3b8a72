"""`annattn report`: the page, from saved numbers or measured anew."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from annattn.cli.demo import measure
from annattn.cli.terminal import AsJson, Whole, print_json
from annattn.errors import InputError
from annattn.report import Order, page, read_results, written
from annattn.report.page import headlines

__all__ = ["report"]


def report(
    *,
    output: Path = Path("report.html"),
    source: Annotated[Path | None, Parameter(name="--from")] = None,
    seed: Whole = 0,
    as_json: AsJson = False,
) -> None:
    """Write the page from numbers that `annattn demo` has saved, or measure them anew.

    Example: annattn report --from report.json --output report.html

    Args:
        output: the page to write.
        source: a results file; without one everything is measured, which takes as long as the demo.
        seed: decides tokens, words and hash functions when measuring.
        as_json: print where the page is and its headlines as JSON.
    """
    if source is None:
        results = measure(Order(seed), output, show=False)
    else:
        if output.resolve() == source.resolve():
            raise InputError("output", given=str(output), expected="another file than the results")
        results = read_results(source)
        written(page(results), output)
    if as_json:
        print_json({"page": str(output.resolve()), "headlines": [list(one) for one in headlines(results)]})
        return
    Console(highlight=False, soft_wrap=True).print(f"the page: {output.resolve()}", markup=False)
