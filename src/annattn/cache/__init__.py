"""The decode cache."""

from annattn.cache.bucket_cache import BucketCache, Snapshot

__all__ = ["BucketCache", "Snapshot"]
