"""How many seeds of samplesort are bad: `python -m benchmarks.sorting_seeds` runs thousands at several sizes.

A seed is bad if a machine would send or receive more records than it has room for. What happens depends only on which
rank is in which slot after the shuffle, so one input is as good as another; see docs/sorting.md.
"""

import argparse
import math

import numpy as np

from annattn.mpc.delivery import deliver
from annattn.mpc.model import spread
from annattn.mpc.parts.samplesort import Samplesort, plan_samplesort

# Records, and the fewest records per machine for which there is a plan.
CASES = ((4096, 133), (6000, 166), (20_000, 174))


def largest_load(plan: Samplesort, n: int) -> int:
    """The most records that any machine sends or receives, with n sorted records as the input."""
    mail, most = spread(np.arange(n, dtype=np.uint64)[:, None], plan.rows), 0
    for i in range(plan.rounds):
        sent = plan.step(i, mail, (0,))
        mail = deliver(sent, plan.machines)
        most = max(most, int(np.bincount(sent.src).max()), int(np.bincount(mail.dest).max()))
    return most


def upper_limit(bad: int, runs: int, chance: float = 0.05) -> float:
    """The probability of a bad seed at which so few bad ones have just this chance (Clopper and Pearson).

    >>> round(upper_limit(0, 3000), 6)
    0.000998
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        likely = sum(math.comb(runs, k) * p**k * (1 - p) ** (runs - k) for k in range(bad + 1))
        low, high = (p, high) if likely > chance else (low, p)
    return high


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3000)
    options = parser.parse_args()
    for n, capacity in CASES:
        plans = (plan_samplesort(n, capacity, seed) for seed in range(options.seeds))
        loads = [largest_load(plan, n) for plan in plans if plan is not None]
        bad = sum(load > capacity for load in loads)
        print(
            f"{n:,} records, {capacity} per machine: {bad} of {len(loads):,} seeds bad, so at most "
            f"{upper_limit(bad, len(loads)):.1e} with 95 % confidence; largest load {max(loads)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
