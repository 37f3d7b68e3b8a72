"""Bucket primitives: sums and latest members of hash buckets, as torch ops over interchangeable backends."""

from annattn.kernels.dispatch import BACKENDS, use_backend
from annattn.kernels.ops import collect, equal_rows, hash_pair, latest

__all__ = ["BACKENDS", "collect", "equal_rows", "hash_pair", "latest", "use_backend"]
