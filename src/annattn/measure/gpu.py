"""What the GPU kernels should cost: bytes and operations against a GPU's peaks. Predicted, not measured."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf

__all__ = [
    "GPUS",
    "Cost",
    "Gpu",
    "attention_costs",
    "crossing",
    "decode_costs",
    "gradient_costs",
    "predicted_seconds",
    "softmax_seconds",
    "window_costs",
]


@dataclass(frozen=True)
class Gpu:
    """Peaks that the maker states: bytes per second, operations per second by kind, and processors to share them."""

    bandwidth: float
    float64: float
    float32: float
    tf32: float
    bfloat16: float
    processors: int


GPUS = {
    "A100": Gpu(2.039e12, float64=9.7e12, float32=19.5e12, tf32=156e12, bfloat16=312e12, processors=108),
    "H100": Gpu(3.35e12, float64=34e12, float32=67e12, tf32=494e12, bfloat16=989e12, processors=132),
}
"""The SXM models with 80 GB; products of tensor cores without sparsity."""

_LAUNCH = 5e-6  # seconds that a launch takes at least
_PASSES = 2  # of a radix sort over 16-bit codes
_FLASH = 0.6  # share of the bfloat16 peak that softmax attention is taken to reach
_TRIPLE = 3  # products of tf32 that make one of float32
_TURN, _COLUMNS = 32, 64  # columns of a block: of the gradient for queries and keys, and of the window
_TILE = 32  # queries, and keys, of a program of the window


@dataclass(frozen=True)
class Cost:
    """Bytes moved, operations by kind, launches and programs of one kind of kernel over a whole call."""

    bytes: float
    operations: float = 0
    launches: int = 1
    tf32: float = 0
    float64: float = 0
    programs: float = inf

    def seconds(self, gpu: Gpu) -> float:
        """The time if bytes, operations or launches, whichever takes longest, is all that takes time."""
        # Fewer programs than processors leave some of them idle.
        share = min(1.0, self.programs / gpu.processors)
        work = (self.bytes / gpu.bandwidth, self.operations / gpu.float32, self.tf32 / gpu.tf32)
        return max(*(x / share for x in (*work, self.float64 / gpu.float64)), self.launches * _LAUNCH)


def attention_costs(
    n: int, *, dim: int = 64, tables: int = 8, hashes: int = 8, is_causal: bool = False
) -> dict[str, Cost]:
    """The cost of each kernel of one head's forward pass over n queries and keys in float32, all caches missed.

    >>> costs = attention_costs(1024)
    >>> costs["hash"].operations == 2 * 2 * 1024 * 64 * 64
    True
    """
    row, lines = 4 * dim, n * tables
    hashing = Cost(2 * n * row + 2 * 8 * lines, 2 * 2 * n * dim * tables * hashes, launches=2)
    return {"hash": hashing, **_sum_costs(n, dim, tables, is_causal)}


def _sum_costs(n: int, width: int, tables: int, is_causal: bool) -> dict[str, Cost]:
    row, lines = 4 * width, n * tables
    return {
        "sort": _sort_cost(lines),
        # Two binary searches over codes and times; their upper levels stay in the cache, about eight steps do not.
        "find": Cost(lines * (8 + 2 * 8 * 8 + 8)),
        "add": Cost(lines * (row + 8 + 4 + (row if is_causal else 0)), lines * width, launches=3),
        "read": Cost(lines * (row + 8) + 3 * n * row, lines * width),
    }


def _sort_cost(lines: int) -> Cost:
    # Narrow, sort pairs of a 16-bit code and a 64-bit index, widen.
    return Cost(lines * (8 + 2 + _PASSES * 2 * (2 + 8) + 2 + 8 + 8 + 4), launches=2 * _PASSES + 4)


def gradient_costs(
    n: int, *, dim: int = 64, tables: int = 8, is_causal: bool = False, only_values: bool = False
) -> dict[str, Cost]:
    """The same of the backward pass: sums for the values, outer products along buckets for queries and keys.

    Buckets are taken to hold many more rows than the 16 that are multiplied at a time.

    >>> costs = gradient_costs(1024)
    >>> costs["turns"].tf32 == 3 * 2 * 8 * 1024 * 4 * 64 * 64
    True
    """
    row = 4 * dim
    values = {f"values: {name}": cost for name, cost in _sum_costs(n, dim, tables, is_causal).items()}
    costs = {"divide": Cost(2 * n * row + 8 * n), **values}
    if only_values:
        return costs
    # Per table and direction: sources and targets are sorted, and each block of columns reads its part of the rows.
    lines, sort = 2 * n * tables, _sort_cost(2 * 2 * n * tables)
    blocks = ceil(dim / _TURN)
    return {
        **costs,
        "lengths": Cost(2 * 6 * n * row, launches=12),
        "turns: sort": Cost(sort.bytes, launches=2 * 2 * tables * sort.launches),
        "turns: find": Cost(lines * (8 + 2 * 8 * 8 + 8 + 4 * 12), launches=2 * 3 * tables),
        # Outer products into the bucket's sum, and that sum times every row: 2·dim·dim operations each.
        "turns": Cost(
            lines * blocks**2 * (5 * 4 * _TURN + 32), tf32=_TRIPLE * lines * 4 * dim * dim, launches=2 * tables * blocks
        ),
    }


def decode_costs(
    *, heads: int = 32, share: int = 1, batch: int = 1, dim: int = 64, tables: int = 8, hashes: int = 8,
    history: int = 32,
) -> dict[str, Cost]:  # fmt: skip
    """One step of a cache of one layer, with `share` query heads per key head; every program reads all normals.

    >>> decode_costs()["step"].launches
    1
    """
    programs, row = batch * heads, 8 * dim
    buckets = tables * (row + 8)
    ring = history * tables * 8 + row
    normals = 4 * dim * tables * hashes
    moved = 2 * buckets + 2 * ring / max(history, 1) + share * (buckets + ring) + (1 + share) * (normals + 4 * dim)
    return {
        "step": Cost(
            programs * moved, float64=programs * (1 + share) * 2 * dim * tables * hashes, programs=programs, launches=1
        )
    }


def window_costs(
    n: int, *, window: int = 256, dim: int = 64, is_causal: bool = True, backward: bool = False
) -> dict[str, Cost]:
    """The window's softmax of one head in float32, forward or backward, every program reading all keys of its band.

    >>> costs = window_costs(1024, window=64)
    >>> costs["window"].tf32 == 3 * 1024 * (64 + 31) * 4 * 64
    True
    """
    row, side = 4 * dim, window if is_causal else 2 * window - 1
    pairs, blocks = n * (side + _TILE - 1), ceil(dim / _COLUMNS)
    walked = pairs / _TILE * 2 * row * blocks
    scores = pairs * 2 * dim * blocks
    if not backward:
        return {"window": Cost(2 * n * row + walked, tf32=_TRIPLE * (scores + 2 * pairs * dim))}
    return {
        "levels": Cost(3 * n * row, launches=3),
        "window: queries": Cost(3 * n * row + walked, tf32=_TRIPLE * (2 * scores + 2 * pairs * dim)),
        "window: keys": Cost(4 * n * row + walked, tf32=_TRIPLE * (2 * scores + 4 * pairs * dim)),
    }


def predicted_seconds(costs: dict[str, Cost], gpu: Gpu) -> float:
    """The time of these kernels one after the other.

    >>> predicted_seconds({"copy": Cost(bytes=2.039e12)}, GPUS["A100"])
    1.0
    """
    return sum(cost.seconds(gpu) for cost in costs.values())


def softmax_seconds(n: int, gpu: Gpu, *, dim: int = 64, is_causal: bool = False, backward: bool = False) -> float:
    """The time of one head of softmax attention in bfloat16 by FlashAttention: a fixed share of the peak.

    Its backward pass has five products for the two of the forward pass.
    """
    operations = 4 * n * n * dim / (2 if is_causal else 1) * (2.5 if backward else 1)
    return max(operations / (_FLASH * gpu.bfloat16), _LAUNCH)


def crossing(gpu: Gpu, *, is_causal: bool = False, training: bool = False) -> int:
    """The first power of two of tokens at which ANNA, one head, is predicted to be faster than softmax attention.

    >>> crossing(GPUS["A100"]) > 1024
    True
    """

    def seconds(n: int, costs: Callable[..., dict[str, Cost]]) -> float:
        return predicted_seconds(costs(n, is_causal=is_causal), gpu)

    n = 64
    while True:
        anna, softmax = seconds(n, attention_costs), softmax_seconds(n, gpu, is_causal=is_causal)
        if training:
            anna += seconds(n, gradient_costs)
            softmax += softmax_seconds(n, gpu, is_causal=is_causal, backward=True)
        if anna < softmax:
            return n
        n *= 2
