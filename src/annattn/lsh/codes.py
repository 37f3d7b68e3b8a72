"""What an integer code means: a bucket, or one of two reasons why there is none."""

__all__ = ["CODE_BITS", "IGNORED", "NO_BUCKET"]

CODE_BITS = 63
"""A code of at most this many bits fits a non-negative int64."""

NO_BUCKET = -1
"""The code of a row whose bucket is unknown, one with NaN or infinity: whoever might have met it gets NaN."""

IGNORED = -2
"""The code of a row that takes no part, such as a masked key: it changes nothing."""
