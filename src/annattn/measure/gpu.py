"""What the GPU kernels should cost: bytes and operations against a GPU's peaks. Predicted, not measured."""

from dataclasses import dataclass

__all__ = ["GPUS", "Cost", "Gpu", "attention_costs", "crossing", "predicted_seconds", "softmax_seconds"]


@dataclass(frozen=True)
class Gpu:
    """Peaks that the maker states: bytes per second, and float32 and bfloat16 operations per second."""

    bandwidth: float
    float32: float
    bfloat16: float


GPUS = {
    "A100": Gpu(bandwidth=2.039e12, float32=19.5e12, bfloat16=312e12),
    "H100": Gpu(bandwidth=3.35e12, float32=67e12, bfloat16=989e12),
}
"""The SXM models with 80 GB."""

_LAUNCH = 5e-6  # seconds that a launch takes at least
_PASSES = 2  # of a radix sort over 16-bit codes
_FLASH = 0.6  # share of the bfloat16 peak that softmax attention is taken to reach


@dataclass(frozen=True)
class Cost:
    """Bytes moved, float32 operations and launches of one kind of kernel over a whole call."""

    bytes: float
    operations: float = 0
    launches: int = 1


def attention_costs(
    n: int, *, dim: int = 64, tables: int = 8, hashes: int = 8, is_causal: bool = False
) -> dict[str, Cost]:
    """The cost of each kernel of one head's forward pass over n queries and keys in float32, all caches missed.

    >>> costs = attention_costs(1024)
    >>> costs["hash"].operations == 2 * 2 * 1024 * 64 * 64
    True
    """
    row, lines = 4 * dim, n * tables
    return {
        "hash": Cost(2 * n * row + 2 * 8 * lines, 2 * 2 * n * dim * tables * hashes, launches=2),
        # Narrow, sort pairs of a 16-bit code and a 64-bit index, widen.
        "sort": Cost(lines * (8 + 2 + _PASSES * 2 * (2 + 8) + 2 + 8 + 8 + 4), launches=2 * _PASSES + 4),
        # Two binary searches over codes and times; their upper levels stay in the cache, about eight steps do not.
        "find": Cost(lines * (8 + 2 * 8 * 8 + 8)),
        "add": Cost(lines * (row + 8 + 4 + (row if is_causal else 0)), lines * dim, launches=3),
        "read": Cost(lines * (row + 8) + 3 * n * row, lines * dim),
    }


def predicted_seconds(costs: dict[str, Cost], gpu: Gpu) -> float:
    """The time of these kernels one after the other, each limited by bytes, operations or launches.

    >>> predicted_seconds({"copy": Cost(bytes=2.039e12)}, GPUS["A100"])
    1.0
    """
    return sum(max(x.bytes / gpu.bandwidth, x.operations / gpu.float32, x.launches * _LAUNCH) for x in costs.values())


def softmax_seconds(n: int, gpu: Gpu, *, dim: int = 64, is_causal: bool = False) -> float:
    """The time of one head of softmax attention in bfloat16 by FlashAttention: a fixed share of the peak."""
    operations = 4 * n * n * dim / (2 if is_causal else 1)
    return max(operations / (_FLASH * gpu.bfloat16), _LAUNCH)


def crossing(gpu: Gpu, *, is_causal: bool = False) -> int:
    """The first power of two of tokens at which ANNA, one head, is predicted to be faster than softmax attention.

    >>> crossing(GPUS["A100"]) > 1024
    True
    """
    n = 64
    while predicted_seconds(attention_costs(n, is_causal=is_causal), gpu) >= softmax_seconds(
        n, gpu, is_causal=is_causal
    ):
        n *= 2
    return n
