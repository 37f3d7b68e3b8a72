"""The decode cache."""

from annattn.cache.bucket_cache import BucketCache

__all__ = ["BucketCache"]
