"""Rounds of sorting against 1/ε: a table, a straight line fitted to samplesort, and with `--plot FILE` a figure.

The plans are for N = 2^200 records, so that N^ε is more than samplesort's least memory at every ε shown. Only the plan
is computed; nothing of that size runs.
"""

import argparse
from math import ceil, log

import numpy as np

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
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
        axes.plot(INVERSE, sample, "o", label="samplesort")
        axes.plot(INVERSE, np.polyval([slope, start], INVERSE), label=f"{slope:.1f}/ε {start:+.1f}")
        shown = [(x, y) for x, y in zip(INVERSE, column, strict=True) if y <= 256]
        axes.plot(*zip(*shown, strict=True), "s--", label="columnsort, 4^⌈log_1.5(1/ε)⌉")
        axes.set(xlabel="1/ε", ylabel="rounds", ylim=(0, 130), title="Sorting N records, N^ε per machine (N = 2^200)")
        axes.legend()
        axes.grid(alpha=0.3)
        figure.savefig(options.plot)


if __name__ == "__main__":
    main()
