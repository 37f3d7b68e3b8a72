"""Attention over a sequence that is cut among processes: the same numbers, over torch.distributed.

The tables of ANNA are sums, so ranks need not exchange keys: each adds up its own, and they exchange the sums.
"""

from annattn.distributed.attention import (
    PATIENCE,
    anna_attention,
    exact_match_attention,
    first_place,
    latest_match_attention,
)
from annattn.distributed.traffic import Exchange, Traffic, counting
from annattn.distributed.window import window_attention

__all__ = [
    "PATIENCE",
    "Exchange",
    "Traffic",
    "anna_attention",
    "counting",
    "exact_match_attention",
    "first_place",
    "latest_match_attention",
    "window_attention",
]
