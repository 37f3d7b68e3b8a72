"""`annattn demo`: hash, attend, check, and print what it costs."""

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from annattn import anna_attention, exact_match_attention, softmax_attention
from annattn.lsh import Hasher, Hyperplane

__all__ = ["demo"]

_HEAD_DIM = 64


def demo(*, seed: int = 0, longest: int = 16_384) -> None:
    """Compare ANNA with softmax attention on random tokens, after checking a sample of its answers pair by pair.

    Example: annattn demo --longest 32768

    Args:
        seed: decides the tokens and the hash functions.
        longest: the largest number of tokens tried.
    """
    console = Console()
    hasher = Hyperplane(_HEAD_DIM).sample(tables=8, hashes=8, seed=seed)
    table = Table(title="One head, dim 64, 8 tables of 8 hyperplane hashes; milliseconds")
    for column in ("tokens", "softmax", "ANNA", "causal ANNA", "EMA", "softmax / ANNA", "largest error"):
        table.add_column(column, justify="right")
    sizes = [1024 * 2**step for step in range(11) if 1024 * 2**step <= max(longest, 1024)]
    for n in track(sizes, description="attending", console=console, transient=True):
        query, key, value = _tokens(n, seed)
        error = _largest_error(query, key, value, hasher)
        softmax = _milliseconds(lambda q=query, k=key, v=value: softmax_attention(q, k, v, beta=1.0))
        anna = _milliseconds(lambda q=query, k=key, v=value: anna_attention(q, k, v, hasher))
        causal = _milliseconds(lambda q=query, k=key, v=value: anna_attention(q, k, v, hasher, is_causal=True))
        exact = _milliseconds(lambda q=query, k=key, v=value: exact_match_attention(q, k, v))
        times = (softmax, anna, causal, exact)
        table.add_row(f"{n:,}", *(f"{t:,.1f}" for t in times), f"{softmax / anna:.1f}x", f"{error:.1e}")
    console.print(table)
    console.print("largest error: against the sum over all pairs, on 64 of the queries, computed in float64")


def _tokens(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries near some keys, so that hashing has neighbours to find."""
    generator = torch.Generator().manual_seed(seed)
    key = torch.randn(1, 1, n, _HEAD_DIM, generator=generator)
    near = key[:, :, torch.randperm(n, generator=generator)]
    query = near + 0.3 * torch.randn(key.shape, generator=generator)
    return query, key, torch.randn(1, 1, n, _HEAD_DIM, generator=generator)


def _largest_error(query: Tensor, key: Tensor, value: Tensor, hasher: Hasher) -> float:
    some = query[:, :, :: max(1, query.shape[2] // 64)]
    counts = (hasher(some)[..., :, None, :] == hasher(key)[..., None, :, :]).sum(-1).double()
    expected = counts @ value.double() / counts.sum(-1, keepdim=True).clamp(min=1)
    return (anna_attention(some, key, value, hasher).double() - expected).abs().max().item()


def _milliseconds(run: Callable[[], object], least: float = 0.2) -> float:
    """Median time of a call, over at least three calls and `least` seconds, after one to warm up."""
    run()
    times: list[float] = []
    while len(times) < 3 or sum(times) < least:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)
