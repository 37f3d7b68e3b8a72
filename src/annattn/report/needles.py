"""Facts hidden in real text, read back at many lengths with the model that comes with the library."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from annattn.data import standard_library
from annattn.experiments.text import Haystack, ask, load_text_model
from annattn.experiments.text.needles import FACT
from annattn.experiments.text.trained import TEXT_MODELS
from annattn.measure import Progress, silent

__all__ = ["DEPTHS", "needles"]

DEPTHS = 10
"""Into how many parts a text is cut to tell where facts came back from."""


def needles(*, lengths: tuple[int, ...], seed: int = 0, progress: Progress = silent) -> dict[str, Any]:
    """The share of facts that come back, in all and by their depth, and the seconds of reading; nothing is trained.

    The text is the source of Python's standard library, which this model was not trained on. A quarter of its bytes
    are facts, of which there are at most 4,096.

    >>> found = needles(lengths=(2048,))
    >>> found["rows"][0]["facts"], found["rows"][0]["right"] > 0.5
    (13, True)
    """
    model, notes = load_text_model(TEXT_MODELS / "needle")
    text, rows = _library_text(max(lengths)), []
    ask(model, Haystack.make(text[: min(lengths)], 1, seed))  # kernels are loaded before anything is timed
    for at, n in enumerate(lengths):
        progress(at / len(lengths), f"{n:,} bytes")
        hay = Haystack.make(text[:n], min(4096, n // FACT // 4), seed)
        start = time.perf_counter()
        answers = ask(model, hay)
        seconds = time.perf_counter() - start
        part = np.minimum(hay.depth * DEPTHS, DEPTHS - 1).astype(int)
        by_depth = [answers.is_right[part == d] for d in range(DEPTHS)]
        rows.append(
            {
                "tokens": n,
                "facts": len(hay.facts),
                "right": answers.share,
                "by_depth": [float(there.mean()) if there.size else None for there in by_depth],
                "seconds": seconds,
                "state_bytes": answers.state_bytes,
            }
        )
    return {"trained_at": notes["recipe"]["length"], "seed": seed, "command": notes["command"], "rows": rows}


def _library_text(n: int) -> NDArray[np.uint8]:
    """The first n bytes of the standard library's source."""
    found = bytearray()
    for _, source in standard_library():
        found += source
        if len(found) >= n:
            break
    return np.frombuffer(bytes(found[:n]), np.uint8)
