"""Bucket primitives: sums and latest members of hash buckets, as torch ops over interchangeable backends."""

from annattn.kernels.codes import IGNORED, spoiled
from annattn.kernels.dispatch import BACKENDS, use_backend
from annattn.kernels.ops import attend, average, collect, equal_rows, hash_pair, latest, latest_mean
from annattn.kernels.slopes import write_slope

__all__ = [
    "BACKENDS",
    "IGNORED",
    "attend",
    "average",
    "collect",
    "equal_rows",
    "hash_pair",
    "latest",
    "latest_mean",
    "spoiled",
    "use_backend",
    "write_slope",
]
