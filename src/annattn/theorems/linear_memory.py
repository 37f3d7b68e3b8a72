"""Remark on memory: the appendix's "Linear memory ANNA implementation" gives Algorithm 1's output in Õ(mN) space.

Both algorithms are written here with arrays as tables, run under Python's memory tracing, and compared. With the ℓ of
the LSH guarantee, the memory of Algorithm 1 grows with ℓ; that of the other does not. Both hash for one table at a
time, so the trace shows what the remark is about: tables, sums, and the codes of one table.

The 8 in the bound of 8·N·(m+1) numbers is measured: the output, the sums and the values that meet are three rows of
m + 1 numbers per token, and codes, hashing and Python itself add what depends on NumPy and on N.
"""

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annattn.attention import anna_attention, plan, reference
from annattn.lsh import Hasher, Hyperplane
from annattn.theorems.lsh_guarantee import proof_sizes
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_most, exponent, silent

__all__ = ["all_tables", "one_table_at_a_time", "row"]

DIM, RADIUS, APPROXIMATION = 16, 0.1, 12.0
SIZES = {"tiny": (128, 512), "quick": (256, 1024, 2048), "full": (256, 1024, 4096, 8192)}

Reals = NDArray[np.float64]
Attention = Callable[[Tensor, Tensor, Reals, Hasher], Reals]


def all_tables(query: Tensor, key: Tensor, value: Reals, hasher: Hasher) -> Reals:
    """Algorithm 1: fill ℓ tables with sums and counts by the keys' codes, then look up every query in each.

    >>> hasher = Hyperplane(1).sample(tables=2, hashes=1)
    >>> rows = torch.tensor([[1.0], [-1.0]])
    >>> all_tables(rows, rows, np.array([[5.0], [7.0]]), hasher).tolist()
    [[5.0], [7.0]]
    """
    tables = []
    for u in range(hasher.tables):
        codes, slots = np.unique(_codes(hasher, u, key), return_inverse=True)
        tables.append((codes, _sums(slots, len(codes), value)))
    out = np.zeros((len(query), value.shape[1] + 1))
    for u, (codes, sums) in enumerate(tables):
        asked = _codes(hasher, u, query)
        place = np.minimum(np.searchsorted(codes, asked), len(codes) - 1)
        hit = codes[place] == asked
        out[hit] += sums[place[hit]]
    return _mean(out)


def one_table_at_a_time(query: Tensor, key: Tensor, value: Reals, hasher: Hasher) -> Reals:
    """The linear-memory algorithm: each table has buckets for the queries only, and keys add to buckets that exist.

    >>> hasher = Hyperplane(1).sample(tables=2, hashes=1)
    >>> rows = torch.tensor([[1.0], [-1.0]])
    >>> one_table_at_a_time(rows, rows, np.array([[5.0], [7.0]]), hasher).tolist()
    [[5.0], [7.0]]
    """
    out = np.zeros((len(query), value.shape[1] + 1))
    for u in range(hasher.tables):
        codes, slots = np.unique(_codes(hasher, u, query), return_inverse=True)
        offered = _codes(hasher, u, key)
        place = np.minimum(np.searchsorted(codes, offered), len(codes) - 1)
        hit = codes[place] == offered
        out += _sums(place[hit], len(codes), value[hit])[slots]
    return _mean(out)


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Remark and "Linear memory ANNA implementation": the same numbers as Algorithm 1 in O(mN) numbers of memory.

    >>> row("tiny").holds
    True
    """
    trials, bounds, notes = Trials(), [], []
    family = Hyperplane(DIM)
    sizes, found = SIZES[effort], family.sensitivity(RADIUS, APPROXIMATION)
    linear, tabled = [], []
    for n in sizes:
        progress(f"N = {n:,}")
        planned = plan(n, family, RADIUS, APPROXIMATION, proof_sizes(n, found.p1, found.p2)[2])
        hasher = family.sample(tables=planned.tables, hashes=planned.hashes, seed=n)
        generator = torch.Generator().manual_seed(n)
        query = torch.randn(n, DIM, generator=generator, dtype=torch.float64)
        key = query[torch.randperm(n, generator=generator)] + 0.01 * torch.randn(n, DIM, generator=generator)
        value = torch.randint(-1000, 1000, (n, DIM), generator=generator).double()
        few, peak = _traced(one_table_at_a_time, query, key, value, hasher)
        linear.append(peak)
        many, peak = _traced(all_tables, query, key, value, hasher)
        tabled.append(peak)
        parts = (query[None, None], key[None, None], value[None, None], hasher)
        ours = anna_attention(*parts, algorithm="linear_memory")[0, 0].numpy()
        # Sums of small integers are exact in float64, so all ways give the same quotient, bit for bit.
        trials.add(np.array_equal(few, many) and np.array_equal(few, ours))
        if n <= 256:
            some = reference.linear_memory(query[:16], key, value, hasher).numpy()
            trials.add(np.array_equal(few[:16], some))
        bounds.append(at_most("numbers held", linear[-1], 8 * n * (DIM + 1), "8·N·(m+1), 8 measured", f"N = {n:,}"))
        notes.append(f"N = {n}: ℓ = {hasher.tables}; Algorithm 1 holds {tabled[-1] / linear[-1]:.1f} times as much")
    return trials.verdict(
        "Remark: memory Õ(mN), Linear memory ANNA implementation",
        f"one table at a time on {family}, ℓ and z of the LSH guarantee, beside Algorithm 1",
        sizes=sizes,
        bounds=bounds,
        exponents=[exponent("numbers held", sizes, linear, 1.05, "1, and 0.05 for small N")],
        notes=notes,
    )


def _codes(hasher: Hasher, table: int, rows: Tensor) -> NDArray[np.int64]:
    """The codes of one table, by a hasher that has only that table's z functions."""
    chosen = slice(table * hasher.hashes, (table + 1) * hasher.hashes)
    alone = replace(hasher, tables=1, parameters=tuple(drawn[chosen] for drawn in hasher.parameters))
    return np.array(alone(rows)[:, 0].numpy())


def _sums(slots: NDArray[np.int64], buckets: int, value: Reals) -> Reals:
    """A sum of values and a count for every bucket."""
    sums = np.zeros((buckets, value.shape[1] + 1))
    for column in range(value.shape[1]):
        sums[:, column] = np.bincount(slots, value[:, column], minlength=buckets)
    sums[:, -1] = np.bincount(slots, minlength=buckets)
    return sums


def _mean(sums: Reals) -> Reals:
    return sums[:, :-1] / np.maximum(sums[:, -1:], 1.0)


def _traced(attention: Attention, query: Tensor, key: Tensor, value: Tensor, hasher: Hasher) -> tuple[Reals, float]:
    """The output, and the most numbers of eight bytes held at once, not counting the inputs."""
    block = value.numpy().copy()
    gc.collect()
    tracemalloc.start()
    try:
        out = attention(query, key, block, hasher)
        return out, tracemalloc.get_traced_memory()[1] / 8
    finally:
        tracemalloc.stop()
