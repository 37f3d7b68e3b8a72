"""Random comparisons until time is up: every property test, with a new seed in each round, and hostile calls.

The property tests run over the registries (mechanisms, families, backends, protocols), over sequences of cache
operations and over damaged files, so what is listed there is fuzzed. Hypothesis shrinks what fails to its shortest
form, prints it, and keeps it in .hypothesis: the next run tries it first.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOSTILE_CALLS = 100


class _Until:
    """Tests in an order of the seed's, until a moment; counts those that ran."""

    def __init__(self, seed: int, deadline: float) -> None:
        self.seed, self.deadline, self.ran = seed, deadline, 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items) -> None:
        random.Random(self.seed).shuffle(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item) -> None:
        if time.monotonic() > self.deadline:
            item.session.shouldstop = "time is up"
            pytest.skip("time is up")

    def pytest_runtest_logreport(self, report) -> None:
        self.ran += report.when == "call"


def fuzz(minutes: float, seed: int) -> int:
    """Fuzz for some minutes from a seed on; returns 0, or 1 after a failure or if no test ran, which is printed."""
    deadline = time.monotonic() + 60 * minutes
    os.chdir(ROOT)
    ran, number = 0, seed
    for number in range(seed, sys.maxsize):
        # The greater part of the time for comparisons, the rest for hostile calls.
        until = _Until(number, min(deadline, time.monotonic() + 40 * minutes))
        options = ["-q", "-x", "-m", "hypothesis", "-p", "no:cacheprovider", "--no-header", "--hypothesis-profile=fuzz"]
        code = pytest.main([*options, f"--hypothesis-seed={number}", "tests"], plugins=[until])
        ran += until.ran
        if code == pytest.ExitCode.INTERRUPTED and time.monotonic() < until.deadline:
            return 130  # Ctrl-C
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED):
            sys.stdout.write(f"failed with seed {number}; make fuzz SEED={number} shows it again\n")
            return 1
        for kind in ("attention", "op"):
            call = f"from tests.kernels.test_boundary import main; main({kind!r}, {number * 10_000}, {HOSTILE_CALLS})"
            ended = subprocess.run([sys.executable, "-W", "ignore", "-c", call], capture_output=True, text=True)
            if ended.returncode:
                sys.stdout.write(f"hostile call {ended.stdout.splitlines()[-1]} ended with {ended.returncode}\n")
                return 1
        if time.monotonic() > deadline:
            break
    if not ran:
        sys.stdout.write("no property test ran in this time; give it more: make fuzz MINUTES=1\n")
        return 1
    sys.stdout.write(f"seeds {seed} to {number}: {ran} property tests, no failure\n")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Random comparisons until time is up.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="by default the time, so that every run is another")
    given = parser.parse_args()
    sys.exit(fuzz(given.minutes, int(time.time()) % 2**20 if given.seed is None else given.seed))
