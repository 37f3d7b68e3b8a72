"""Rounds of sorting against 1/ε: a table, a straight line fitted to samplesort, and with `--plot FILE` a figure.

The plans are for N = 2^200 records, so that N^ε is more than samplesort's least memory at every ε shown. Only the plan
is computed; nothing of that size runs.
"""

import argparse
from math import ceil, log
from pathlib import Path

import numpy as np

from annattn.drawing import Axis, Line, chart, write_figure
from annattn.mpc.parts.samplesort import plan_samplesort

BITS = 200
INVERSE = [1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9, 10]


def sample_rounds(inverse: float) -> int:
    """Rounds of samplesort for N^ε records per machine."""
    plan = plan_samplesort(2**BITS, int(2 ** (BITS / inverse)))
    if plan is None:
        raise ValueError(f"no plan for 1/ε = {inverse}")
    return plan.rounds


def column_rounds(inverse: float) -> int:
    """Rounds of columnsort, 4^d with d = ⌈log_1.5(1/ε)⌉."""
    return 4 ** ceil(log(inverse, 1.5))


def main() -> None:
    """Print the table and the fit; draw them with `--plot`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", metavar="FILE")
    options = parser.parse_args()
    sample, column = [sample_rounds(x) for x in INVERSE], [column_rounds(x) for x in INVERSE]
    slope, start = np.polyfit(INVERSE, sample, 1)
    for x, *rounds in zip(INVERSE, sample, column, strict=True):
        print(f"1/ε = {x:4}: samplesort {rounds[0]:3}, columnsort {rounds[1]:6,}")
    off = np.abs(np.polyval([slope, start], INVERSE) - sample).max()
    print(f"samplesort: {slope:.2f}/ε {start:+.2f}, off by at most {off:.1f} rounds")
    if options.plot:
        fit = [(x, float(np.polyval([slope, start], x))) for x in INVERSE]
        lines = [
            Line("samplesort", list(zip(INVERSE, sample, strict=True)), kind="accent"),
            Line(f"{slope:.1f}/ε {start:+.1f}", fit, kind="faint"),
            Line("columnsort", [(x, y) for x, y in zip(INVERSE, column, strict=True) if y <= 256], dashed=True),
        ]
        x = Axis("1/ε", [(k, f"{k:g}") for k in range(1, 11)])
        y = Axis(f"rounds to sort N = 2^{BITS} records, N^ε per machine", [(32 * k, f"{32 * k}") for k in range(9)])
        title = f"Rounds to sort N = 2^{BITS} records, N^ε per machine"
        write_figure(
            lambda theme: chart(lines, x, y, title=title, description="", width=760, height=400, theme=theme),
            Path(options.plot),
        )


if __name__ == "__main__":
    main()
