"""The decode cache beside a softmax cache: bytes, appending and a step, `python -m benchmarks.cache`.

12 heads of dimension 64, 32 tables of 12 hashes. A softmax cache holds float32 keys and values. Beside the seconds of
appending by the clock stand those of both processors: the library's own, and the system's, which are spent on pages of
memory that are touched for the first time.
"""

import argparse
import os
import statistics
import time

import torch
from rich.console import Console
from rich.table import Table

import annattn as aa

HEADS, DIM, TABLES, HASHES = 12, 64, 32, 12
LENGTHS = (1, 64, 1_024, 4_096, 16_384, 65_536, 262_144)
_STEPS = 200
_PIECE = 65_536


def tokens(n: int, seed: int) -> torch.Tensor:
    """Queries, keys and values of n tokens."""
    return torch.randn(3, 1, HEADS, n, DIM, generator=torch.Generator().manual_seed(seed))


def measure(n: int, hasher: aa.lsh.Hasher) -> dict[str, float]:
    """Bytes, seconds of appending, and seconds of a step at context n, after the answer was found right."""
    cache = aa.BucketCache(hasher, heads=HEADS, value_dim=DIM)
    seconds = own = system = 0.0
    for first in range(0, n, _PIECE):
        _, key, value = tokens(min(_PIECE, n - first), seed=first)
        begin, before = time.perf_counter(), os.times()
        cache.append(key, value)
        seconds, after = seconds + time.perf_counter() - begin, os.times()
        own, system = own + after.user - before.user, system + after.system - before.system
    query, new_key, new_value = tokens(_STEPS, seed=2**31)
    if n <= _PIECE:
        _, key, value = tokens(n, seed=0)
        expected = aa.anna_attention(query, key, value, hasher)
        torch.testing.assert_close(cache.attend(query), expected, rtol=1e-4, atol=1e-5)
    held, steps = cache.nbytes, []
    for at in range(_STEPS):
        one = [x[:, :, at : at + 1].contiguous() for x in (query, new_key, new_value)]
        begin = time.perf_counter()
        cache.step(*one)
        steps.append(time.perf_counter() - begin)
    return {
        "bytes": held, "append": seconds, "own": own, "system": system, "step": statistics.median(steps),
        "least": min(steps),
    }  # fmt: skip


def main() -> None:
    """Print a row per length."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache", description=__doc__)
    parser.add_argument("lengths", type=int, nargs="*", default=LENGTHS, help="tokens; by default up to 262,144")
    lengths = parser.parse_args().lengths
    hasher = aa.lsh.Hyperplane(DIM).sample(tables=TABLES, hashes=HASHES, seed=0)
    dense = HEADS * TABLES * 2**HASHES * 8 * (DIM + 1)
    measure(64, hasher)  # compiled and warm before anything counts
    table = Table(
        "tokens", "cache MB", "/ softmax cache", "/ dense tables", "append s",
        "processor s, own", "system", "step ms", "least step ms",
    )  # fmt: skip
    for n in lengths:
        found = measure(n, hasher)
        softmax = 2 * 4 * HEADS * DIM * n
        table.add_row(
            f"{n:,}", f"{found['bytes'] / 1e6:.2f}", f"{found['bytes'] / softmax:.2f}", f"{found['bytes'] / dense:.3f}",
            f"{found['append']:.3f}", f"{found['own']:.2f}", f"{found['system']:.2f}", f"{1e3 * found['step']:.3f}",
            f"{1e3 * found['least']:.3f}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
