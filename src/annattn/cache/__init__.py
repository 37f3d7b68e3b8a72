"""Decode caches."""

from annattn.cache.bucket_cache import BucketCache, Snapshot
from annattn.cache.window_cache import WindowCache

__all__ = ["BucketCache", "Snapshot", "WindowCache"]
