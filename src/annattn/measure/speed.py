"""ANNA, torch's softmax attention and plain copying, timed against the number of tokens."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from annattn.attention import anna_attention
from annattn.checks import require_count
from annattn.lsh import Hasher, Hyperplane
from annattn.measure.answers import (
    CHECKED,
    check_answer,
    collision_counts,
    copy_floor,
    random_inputs,
    softmax_weights,
)
from annattn.measure.progress import Progress, silent
from annattn.measure.timing import runs_in_turns, timed

__all__ = ["LABELS", "faster_from", "lengths", "measure_speed"]

LABELS = {
    "softmax": "softmax",
    "causal_softmax": "softmax, causal",
    "anna": "ANNA",
    "causal_anna": "ANNA, causal",
    "floor": "copying q, k, v and the output",
}

_SLOW = 1.0  # seconds from which one run of softmax attention is enough
_ENOUGH = 0.15  # seconds that the runs of a faster call take together


def lengths(longest: int, shortest: int = 1024) -> list[int]:
    """Lengths that double, from the shortest up to the longest.

    >>> lengths(5000)
    [1024, 2048, 4096]
    """
    shortest = require_count("shortest", shortest)
    longest = require_count("longest", longest, least=shortest)
    return [shortest * 2**step for step in range(int(math.log2(longest / shortest)) + 1)]


def measure_speed(
    sizes: Sequence[int], *,
    tables: int = 8, hashes: int = 8, dim: int = 64, heads: int = 1, batch: int = 1, seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:  # fmt: skip
    """Median seconds of each contender at each length. A few of its outputs are checked before it is timed.

    The contenders take turns at each length, so that whatever else the machine does affects all of them.

    >>> found = measure_speed([256], tables=2, hashes=4, dim=16)
    >>> sorted(found["rows"][0]["seconds"]) == sorted(LABELS)
    True
    """
    heads, batch, dim = require_count("heads", heads), require_count("batch", batch), require_count("dim", dim)
    hasher = Hyperplane(dim).sample(tables=tables, hashes=hashes, seed=seed)
    progress(0, "compiling kernels, the first time")
    _measure(_contenders(64, heads, batch, hasher, seed), enough=0)  # compiled and warm before anything counts
    rows, done = [], 0.0
    for n in sizes:
        progress(done, f"{n:,} tokens")
        rows.append({"tokens": n, **_measure(_contenders(n, heads, batch, hasher, seed), enough=_ENOUGH)})
        # Most of the time goes into softmax attention, which is quadratic.
        done += (n / max(sizes)) ** 2 / sum((m / max(sizes)) ** 2 for m in sizes)
    by_length = {name: {row["tokens"]: row["seconds"][name] for row in rows} for name in LABELS}
    return {
        "settings": {"tables": tables, "hashes": hashes, "dim": dim, "heads": heads, "batch": batch, "seed": seed},
        "checked": CHECKED,
        "rows": rows,
        "faster_from": faster_from(by_length["anna"], by_length["softmax"]),
        "causal_faster_from": faster_from(by_length["causal_anna"], by_length["causal_softmax"]),
    }


def faster_from(ours: Mapping[int, float], theirs: Mapping[int, float]) -> int | None:
    """The first measured length from which ours is faster, there and at all longer ones; times are by length.

    >>> faster_from({1: 0.5, 2: 2.0, 4: 0.9, 8: 0.1}, {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0})
    4
    """
    first = None
    for n in sorted(theirs, reverse=True):
        if ours[n] >= theirs[n]:
            break
        first = n
    return first


@dataclass(frozen=True)
class _Contender:
    call: Callable[[], Tensor]
    check: Callable[[Tensor], float]
    """Raises if an answer is wrong, and otherwise gives its largest error."""


def _contenders(n: int, heads: int, batch: int, hasher: Hasher, seed: int) -> dict[str, _Contender]:
    query, key, value = random_inputs(n, heads=heads, dim=hasher.dim, seed=seed, batch=batch)

    def softmax(name: str, is_causal: bool) -> _Contender:
        return _Contender(
            lambda: scaled_dot_product_attention(query, key, value, is_causal=is_causal),
            lambda out: check_answer(LABELS[name], out, softmax_weights(query, key, is_causal=is_causal), value),
        )

    def anna(name: str, is_causal: bool) -> _Contender:
        return _Contender(
            lambda: anna_attention(query, key, value, hasher, is_causal=is_causal),
            lambda out: check_answer(
                LABELS[name], out, collision_counts(query, key, hasher, is_causal=is_causal), value
            ),
        )

    return {
        "softmax": softmax("softmax", is_causal=False),
        "causal_softmax": softmax("causal_softmax", is_causal=True),
        "anna": anna("anna", is_causal=False),
        "causal_anna": anna("causal_anna", is_causal=True),
        "floor": _Contender(copy_floor(query, key, value), lambda out: (out - value).abs().max().item()),
    }


def _measure(contenders: dict[str, _Contender], enough: float) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    errors: dict[str, float] = {}
    with torch.no_grad():
        for name, contender in contenders.items():
            seconds, out = timed(contender.call)
            errors[name] = contender.check(out)
            # Softmax attention has nothing to warm up, and at many tokens it takes too long to be run twice.
            if seconds > _SLOW and "softmax" in name:
                times[name] = [seconds]
        times |= runs_in_turns(
            {name: contender.call for name, contender in contenders.items() if not times[name]}, enough=enough
        )
    medians = {name: statistics.median(runs) for name, runs in times.items()}
    ratio = {
        "softmax / ANNA": medians["softmax"] / medians["anna"],
        "causal softmax / causal ANNA": medians["causal_softmax"] / medians["causal_anna"],
        "ANNA / floor": medians["anna"] / medians["floor"],
    }
    return {
        "seconds": medians,
        "runs": {name: len(runs) for name, runs in times.items()},
        "largest_error": errors,
        "ratio": ratio,
    }
