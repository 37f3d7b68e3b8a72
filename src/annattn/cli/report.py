"""`annattn report`: the page, from saved numbers or measured anew."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from annattn.cli.demo import measure
from annattn.errors import InputError
from annattn.report import Order, page, read_results, written

__all__ = ["report"]


def report(
    *,
    output: Path = Path("report.html"),
    source: Annotated[Path | None, Parameter(name="--from")] = None,
    seed: int = 0,
) -> None:
    """Write the page from numbers that `annattn demo` has saved, or measure them anew.

    Example: annattn report --from report.json --output report.html

    Args:
        output: the page to write.
        source: a results file; without one everything is measured, which takes as long as the demo.
        seed: decides tokens, words and hash functions when measuring.
    """
    if source is None:
        measure(Order(seed), output, show=False)
    else:
        if output.resolve() == source.resolve():
            raise InputError("output", given=str(output), expected="another file than the results")
        written(page(read_results(source)), output)
    Console(highlight=False, soft_wrap=True).print(f"the page: {output.resolve()}")
