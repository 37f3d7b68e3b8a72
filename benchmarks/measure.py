"""Medians of times, and peak memory of a process of its own."""

import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def seconds(call: Callable[[], object], *, least_runs: int = 7, enough: float = 1.0) -> float:
    """Median time of a call: at least `least_runs` runs, or three when they are slow, or one when very slow."""
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    if first > 5:
        return first
    times: list[float] = []
    while len(times) < (3 if first > 0.5 else least_runs) or sum(times) < enough:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        if len(times) >= 200:
            break
    return statistics.median(times)


def turns(calls: Mapping[str, Callable[[], object]], *, rounds: int = 9, enough: float = 0.1) -> dict[str, float]:
    """Median times of several calls, measured turn and turn about: whatever else the machine does falls on all.

    A turn is a block of runs, not one run, so that no call finds its caches and threads as another has left them.
    """
    found = [{name: seconds(call, least_runs=3, enough=enough) for name, call in calls.items()} for _ in range(rounds)]
    return {name: statistics.median(one[name] for one in found) for name in calls}


def exponent(sizes: list[int], times: list[float]) -> float:
    """The slope of log time against log size, by least squares."""
    x, y = [math.log(n) for n in sizes], [math.log(t) for t in times]
    mean_x, mean_y = statistics.mean(x), statistics.mean(y)
    top = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return top / sum((a - mean_x) ** 2 for a in x)


def extra_memory(name: str, n: int) -> int:
    """Bytes by which the peak of a fresh process grows while the contender runs once, its output included."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure", name, str(n)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def _peak() -> int:
    """The high-water mark of this process alone; ru_maxrss would start from its parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _main(name: str, size: str) -> None:
    from benchmarks.contenders import CONTENDERS

    CONTENDERS[name].make(1024)()  # compiled and warm before anything counts
    import torch

    n = int(size)
    inputs = [torch.randn(1, 1, n, 64) for _ in range(3)]
    before = _peak()
    del inputs
    # Checking the answer would count, so the call is made without it.
    from benchmarks import contenders

    contenders.verify_anna = lambda *args, **kwargs: None
    contenders.CONTENDERS[name].make(n)()
    sys.stdout.write(json.dumps(_peak() - before))


if __name__ == "__main__":
    _main(*sys.argv[1:])
