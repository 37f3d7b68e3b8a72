"""What the contenders of the comparison cost: time per token of one layer, and bytes of state in decoding."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from annattn.attention import (
    AnnaConfig,
    AttentionConfig,
    BasedConfig,
    LatestMatchConfig,
    PerformerConfig,
    PolySketchConfig,
    ScatterbrainConfig,
    SlidingWindowConfig,
    WindowConfig,
)
from annattn.cache import BucketCache, WindowCache
from annattn.experiments.comparison.contenders import CONTENDERS
from annattn.measure.machine import describe_machine
from annattn.measure.progress import Progress, silent
from annattn.measure.timing import median_seconds
from annattn.seeds import derive_seed

__all__ = ["LENGTHS", "contender_costs", "state_bytes"]

LENGTHS = (1024, 16_384)
HEADS, HEAD_DIM = 2, 32
_NUMBER = 4  # bytes of float32


def contender_costs(
    *, reads: int = 16, lengths: Sequence[int] = LENGTHS, progress: Progress = silent
) -> dict[str, Any]:
    """For every contender, in the sizes for queries that look at `reads` keys: seconds per token, and bytes of state.

    The time is that of one layer's attention, forward, batch 1, two heads of 32; causal, but for contenders without a
    causal form; the smaller of two medians, taken one after the other of all contenders, so that a moment's disturbance
    does not count. State is what must be kept of n tokens to decode the next one, in one layer.

    >>> found = contender_costs(lengths=(64,))["contenders"]
    >>> found["softmax"]["state_bytes"], found["linformer"]["state_bytes"]
    ({'64': 32768}, {'64': None})
    """
    found: dict[str, Any] = {}
    jobs = [(name, n) for _ in range(2) for name in CONTENDERS for n in lengths]
    for at, (name, n) in enumerate(jobs):
        progress(at / len(jobs), f"{CONTENDERS[name].title}, {n:,} tokens")
        config = CONTENDERS[name].layers(2, n, reads)[-1]
        here = found.setdefault(name, {"seconds_per_token": {}, "state_bytes": {}})
        before = here["seconds_per_token"].get(str(n), math.inf)
        here["seconds_per_token"][str(n)] = min(before, _seconds(config, n) / n)
        here["state_bytes"][str(n)] = state_bytes(config, n)
    return {"reads": reads, "heads": HEADS, "head_dim": HEAD_DIM, "machine": describe_machine(), "contenders": found}


def _seconds(config: AttentionConfig, n: int) -> float:
    query, key, value = torch.randn(3, 1, HEADS, n, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    attend = config.bind(HEAD_DIM)
    with torch.no_grad():
        return median_seconds(
            lambda: attend(query, key, value, config.causal != "never", None), least_runs=3, enough=0.1
        )


def state_bytes(config: AttentionConfig, n: int) -> int | None:
    """Bytes of one layer's state after n random tokens, batch 1, in float32; None without a causal form.

    Tables are counted as they stand in memory. Low rank keeps r · (m + 1) numbers per head, a window its keys and
    values, and everything else all keys and values.

    >>> from annattn.nn import SoftmaxConfig
    >>> state_bytes(SlidingWindowConfig(window=16), 1024), state_bytes(SoftmaxConfig(), 1024)
    (8192, 524288)
    """
    if config.causal == "never":
        return None
    row = HEADS * HEAD_DIM * _NUMBER
    if isinstance(config, AnnaConfig | LatestMatchConfig | WindowConfig):
        return _table_bytes(config, n)
    if isinstance(config, SlidingWindowConfig):
        return 2 * row * min(n, config.window)
    features = _features(config)
    if features is not None:
        window = 2 * row * min(n, config.window) if isinstance(config, ScatterbrainConfig) else 0
        return features * (HEAD_DIM + 1) * HEADS * _NUMBER + window
    return 2 * row * n


def _features(config: AttentionConfig) -> int | None:
    match config:
        case PerformerConfig() | ScatterbrainConfig():
            return config.count
        case PolySketchConfig():
            return config.rank**2
        case BasedConfig():
            return 1 + config.feature_dim + config.feature_dim**2
    return None


def _table_bytes(config: AnnaConfig | LatestMatchConfig | WindowConfig, n: int) -> int:
    key, value = torch.randn(2, 1, HEADS, n, HEAD_DIM, generator=torch.Generator().manual_seed(derive_seed(0, n)))
    hasher = config.hasher(HEAD_DIM, 0, None)
    sizes: dict[str, Any] = {"value_dim": HEAD_DIM, "heads": HEADS, "history": 0}
    if isinstance(config, WindowConfig):
        cache: BucketCache | WindowCache = WindowCache(hasher, window=config.window, combine=config.combine, **sizes)
    else:
        mechanism = "anna" if isinstance(config, AnnaConfig) else "latest_match"
        cache = BucketCache(hasher, mechanism=mechanism, **sizes)
    cache.step(key, key, value)
    return cache.nbytes
