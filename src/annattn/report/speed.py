"""Part 1, speed: ANNA, torch's softmax attention and the copy floor against the number of tokens."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from annattn.attention import anna_attention
from annattn.errors import AnnattnError, InputError
from annattn.lsh import Hasher, Hyperplane
from annattn.report.progress import Progress, silent

__all__ = ["LABELS", "faster_from", "lengths", "speed"]

LABELS = {
    "softmax": "softmax",
    "causal_softmax": "softmax, causal",
    "anna": "ANNA",
    "causal_anna": "ANNA, causal",
    "floor": "copying q, k, v and the output",
}

_SLOW = 1.0  # seconds from which one run is enough
_LEAST = 0.15  # seconds that faster ones run in all
_CHECKED = 16  # queries


def lengths(longest: int, shortest: int = 1024) -> list[int]:
    """Doubled lengths, from the shortest as far as the longest.

    >>> lengths(5000)
    [1024, 2048, 4096]
    """
    if longest < shortest:
        raise InputError("longest", given=longest, expected=f"at least {shortest}")
    return [shortest * 2**step for step in range(int(math.log2(longest / shortest)) + 1)]


def speed(
    sizes: Sequence[int],
    *,
    tables: int = 8,
    hashes: int = 8,
    dim: int = 64,
    heads: int = 1,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Median seconds of each contender at each length, its answer checked on sampled queries before it is timed.

    Contenders of one length are timed turn and turn about, so that whatever else the machine does falls on all.

    >>> found = speed([256], tables=2, hashes=4, dim=16)
    >>> sorted(found["rows"][0]["seconds"]) == sorted(LABELS)
    True
    """
    for name, value in (("heads", heads), ("dim", dim)):
        if value < 1:
            raise InputError(name, given=value, expected="an integer of at least 1")
    hasher = Hyperplane(dim).sample(tables=tables, hashes=hashes, seed=seed)
    progress(0, "compiling kernels, the first time")
    _measure(_contenders(64, heads, hasher, seed), least=0)  # compiled and warm before anything counts
    rows, done = [], 0.0
    for n in sizes:
        progress(done, f"{n:,} tokens")
        rows.append({"tokens": n, **_measure(_contenders(n, heads, hasher, seed), least=_LEAST)})
        # Most of the time goes into softmax attention, which is quadratic.
        done += (n / max(sizes)) ** 2 / sum((m / max(sizes)) ** 2 for m in sizes)
    return {
        "settings": {"tables": tables, "hashes": hashes, "dim": dim, "heads": heads, "seed": seed},
        "checked": _CHECKED,
        "rows": rows,
        "faster_from": faster_from(rows),
    }


def faster_from(rows: Sequence[dict[str, Any]]) -> int | None:
    """The first measured length from which ANNA is faster than softmax attention, there and at all longer ones.

    >>> row = lambda n, anna: {"tokens": n, "seconds": {"anna": anna, "softmax": 1.0}}
    >>> faster_from([row(1, 0.5), row(2, 2.0), row(4, 0.9), row(8, 0.1)])
    4
    """
    found = None
    for row in reversed(rows):
        if row["seconds"]["anna"] >= row["seconds"]["softmax"]:
            break
        found = row["tokens"]
    return found


@dataclass(frozen=True)
class _Contender:
    call: Callable[[], Tensor]
    error: Callable[[Tensor], float]
    """Largest difference from the direct answer, in float64, on the sampled queries."""


def _contenders(n: int, heads: int, hasher: Hasher, seed: int) -> dict[str, _Contender]:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, heads, n, hasher.dim, generator=generator) for _ in range(3))
    some = torch.arange(0, n, max(1, n // _CHECKED))[:_CHECKED]
    hidden = torch.arange(n) > some[:, None]

    def error_of(weights: Callable[[bool], Tensor], is_causal: bool) -> Callable[[Tensor], float]:
        def error(out: Tensor) -> float:
            pairs = weights(is_causal)
            expected = pairs @ value.double() / pairs.sum(-1, keepdim=True).clamp(min=1e-300)
            return (out[:, :, some].double() - expected).abs().max().item()

        return error

    def counts(is_causal: bool) -> Tensor:
        # A table at a time: all tables at once would not fit at a million tokens.
        asked, held = hasher(query[:, :, some]), hasher(key)
        pairs = torch.zeros(1, heads, len(some), n, dtype=torch.float64)
        for table in range(asked.shape[-1]):
            pairs += asked[..., :, None, table] == held[..., None, :, table]
        return pairs.masked_fill(hidden, 0) if is_causal else pairs

    def exponentials(is_causal: bool) -> Tensor:
        scores = query[:, :, some].double() @ key.double().mT / math.sqrt(hasher.dim)
        return (scores.masked_fill(hidden, -math.inf) if is_causal else scores).softmax(-1)

    def softmax(is_causal: bool) -> _Contender:
        return _Contender(
            lambda: scaled_dot_product_attention(query, key, value, is_causal=is_causal),
            error_of(exponentials, is_causal),
        )

    def anna(is_causal: bool) -> _Contender:
        return _Contender(
            lambda: anna_attention(query, key, value, hasher, is_causal=is_causal), error_of(counts, is_causal)
        )

    sources = (query, key, value, value.clone())
    copies = tuple(torch.empty_like(x) for x in sources)

    def copy() -> Tensor:
        for source, target in zip(sources, copies, strict=True):
            target.copy_(source)
        return copies[-1]

    return {
        "softmax": softmax(False),
        "causal_softmax": softmax(True),
        "anna": anna(False),
        "causal_anna": anna(True),
        "floor": _Contender(copy, lambda out: (out - value).abs().max().item()),
    }


def _measure(contenders: dict[str, _Contender], least: float) -> dict[str, Any]:
    times: dict[str, list[float]] = {}
    errors: dict[str, float] = {}
    with torch.no_grad():
        for name, contender in contenders.items():
            seconds, out = _timed(contender.call)
            errors[name] = contender.error(out)
            if not errors[name] < 1e-4:
                raise AnnattnError(f"{LABELS[name]}: an answer is wrong by {errors[name]:.1e}, so it is not timed")
            # Softmax attention has nothing to warm up, and at many tokens takes too long to be run twice.
            times[name] = [seconds] if seconds > _SLOW and "softmax" in name else []
        left = [name for name, known in times.items() if not known]
        while left:
            for name in left:
                times[name].append(_timed(contenders[name].call)[0])
            left = [name for name in left if len(times[name]) < 3 or sum(times[name]) < least]
    found = {name: statistics.median(known) for name, known in times.items()}
    ratio = {
        "softmax / ANNA": found["softmax"] / found["anna"],
        "causal softmax / causal ANNA": found["causal_softmax"] / found["causal_anna"],
        "ANNA / floor": found["anna"] / found["floor"],
    }
    return {
        "seconds": found,
        "runs": {name: len(known) for name, known in times.items()},
        "largest_error": errors,
        "ratio": ratio,
    }


def _timed(call: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.perf_counter()
    out = call()
    return time.perf_counter() - start, out
