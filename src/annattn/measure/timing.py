"""Times of calls as medians, and how times grow with the size of the input."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

__all__ = ["exponent", "median_of_blocks", "median_seconds", "runs_in_turns", "timed"]

_MOST_RUNS = 200
_SLOW, _VERY_SLOW = 0.5, 5.0  # seconds

Answer = TypeVar("Answer")


def timed(call: Callable[[], Answer]) -> tuple[float, Answer]:
    """The seconds that one call takes, and what it returns.

    >>> seconds, answer = timed(lambda: 3)
    >>> answer
    3
    """
    start = time.perf_counter()
    answer = call()
    return time.perf_counter() - start, answer


def median_seconds(call: Callable[[], object], *, least_runs: int = 7, enough: float = 1.0) -> float:
    """Median time of a call, after a first run that does not count.

    Runs continue until there are `least_runs` and they took `enough` seconds together. Of a slow call three runs
    suffice; of a very slow one the first is the result.

    >>> 0 < median_seconds(lambda: None, enough=0) < 1
    True
    """
    first = timed(call)[0]
    if first > _VERY_SLOW:
        return first
    least = 3 if first > _SLOW else least_runs
    times: list[float] = []
    while len(times) < _MOST_RUNS and (len(times) < least or sum(times) < enough):
        times.append(timed(call)[0])
    return statistics.median(times)


def median_of_blocks(
    calls: Mapping[str, Callable[[], object]], *, rounds: int = 9, enough: float = 0.1
) -> dict[str, float]:
    """Median time of each call, measured in turns, so that whatever else the machine does affects all of them.

    A turn is a block of runs rather than one run, so that no call finds the caches and threads as another left them.

    >>> sorted(median_of_blocks({"a": lambda: None, "b": lambda: None}, rounds=1, enough=0))
    ['a', 'b']
    """
    blocks = [
        {name: median_seconds(call, least_runs=3, enough=enough) for name, call in calls.items()} for _ in range(rounds)
    ]
    return {name: statistics.median(block[name] for block in blocks) for name in calls}


def runs_in_turns(calls: Mapping[str, Callable[[], object]], *, enough: float) -> dict[str, list[float]]:
    """Seconds of every run of each call, one run per turn; each gets three runs, and more until they took `enough`.

    >>> [len(times) for times in runs_in_turns({"a": lambda: None}, enough=0).values()]
    [3]
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    left = list(calls)
    while left:
        for name in left:
            times[name].append(timed(calls[name])[0])
        left = [name for name in left if len(times[name]) < 3 or sum(times[name]) < enough]
    return times


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The slope of log time against log size, by least squares.

    >>> exponent([10, 100], [1.0, 100.0])
    2.0
    """
    x, y = [math.log(n) for n in sizes], [math.log(t) for t in times]
    mean_x, mean_y = statistics.mean(x), statistics.mean(y)
    top = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return top / sum((a - mean_x) ** 2 for a in x)
