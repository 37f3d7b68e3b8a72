"""Fast attention by nearest-neighbour hashing, and its equivalence with massively parallel computation."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from annattn import (
        attention,
        compiler,
        distributed,
        errors,
        experiments,
        kernels,
        lsh,
        mpc,
        nn,
        outofcore,
        tasks,
        theorems,
    )
    from annattn.attention import (
        AnnaReport,
        Plan,
        anna_attention,
        check_anna,
        collision_softmax_attention,
        exact_match_attention,
        expected_collision_attention,
        expected_latest_attention,
        latest_match_attention,
        low_rank_attention,
        plan,
        reformer_attention,
        sampled_collision_attention,
        sampled_latest_attention,
        softmax_attention,
        window_attention,
    )
    from annattn.cache import BucketCache, WindowCache

__version__ = "0.1.0"

__all__ = [
    "AnnaReport",
    "BucketCache",
    "Plan",
    "WindowCache",
    "anna_attention",
    "attention",
    "check_anna",
    "collision_softmax_attention",
    "compiler",
    "distributed",
    "errors",
    "exact_match_attention",
    "expected_collision_attention",
    "expected_latest_attention",
    "experiments",
    "kernels",
    "latest_match_attention",
    "low_rank_attention",
    "lsh",
    "mpc",
    "nn",
    "outofcore",
    "plan",
    "reformer_attention",
    "sampled_collision_attention",
    "sampled_latest_attention",
    "softmax_attention",
    "tasks",
    "theorems",
    "window_attention",
]

_FOLDERS = (
    "attention", "cache", "compiler", "data", "distributed", "errors", "experiments", "integrations", "kernels",
    "lsh", "measure", "mpc", "nn", "outofcore", "report", "tasks", "theorems",
)  # fmt: skip


# Names are imported when they are first used: `annattn --help` need not wait seconds for torch.
def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return importlib.import_module(f"annattn.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'annattn' has no attribute {name!r}")
    folder = "annattn.cache" if name in ("BucketCache", "WindowCache") else "annattn.attention"
    found = getattr(importlib.import_module(folder), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
