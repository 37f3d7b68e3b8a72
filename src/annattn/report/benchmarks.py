"""What the benchmarks measured, on the page: speed at shapes people use, and what several processes send."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from annattn.drawing import Axis, Line, chart
from annattn.errors import InputError
from annattn.files import read_json

__all__ = ["read_grid", "read_scale", "scale_chart"]


def read_grid(path: Path) -> dict[str, Any]:
    """The file `grid.json` that `python -m benchmarks.grid` wrote; anything else is refused."""
    return _read(path, "grid", "the grid.json of `python -m benchmarks.grid`", {"machine", "results"})


def read_scale(path: Path) -> dict[str, Any]:
    """The file `scale.json` that `python -m benchmarks.context_parallel bytes` wrote; anything else is refused."""
    expected = "the scale.json of `python -m benchmarks.context_parallel bytes`"
    return _read(path, "scale", expected, {"machine", "ranks", "dim", "tables", "hashes", "rows"})


def _read(path: Path, what: str, expected: str, fields: set[str]) -> dict[str, Any]:
    found = read_json(path, what, expected)
    if not fields <= found.keys():
        raise InputError(what, given=str(path), expected=expected)
    return found


def scale_chart(scale: Mapping[str, Any], *, width: int) -> str:
    """Bytes that a process sends against its tokens, for ANNA and for a ring.

    >>> rows = [{"tokens": n, "sent": 400_000, "ring": 768 * n} for n in (16_384, 65_536)]
    >>> "Bytes sent" in scale_chart({"rows": rows}, width=760)
    True
    """
    rows = scale["rows"]
    lines = [
        Line("ring", [(row["tokens"], row["ring"] / 1e6) for row in rows], kind="plain"),
        Line("ANNA", [(row["tokens"], row["sent"] / 1e6) for row in rows], kind="accent"),
    ]
    values = [value for line in lines for _, value in line.points]
    ticks = [10.0**d for d in range(-3, 6) if min(values) / 10 < 10.0**d < 10 * max(values)]
    tokens = [(row["tokens"], f"{row['tokens']:,}") for row in rows]
    last = rows[-1]
    return chart(
        lines,
        Axis("tokens per process, both axes logarithmic", tokens, log=True),
        Axis("megabytes sent", [(value, f"{value:,.10g}") for value in ticks], log=True),
        title="Bytes sent by a process against its tokens",
        description=f"At {last['tokens']:,} tokens ANNA sends {last['sent']:,} bytes, a ring {last['ring']:,}.",
        width=width,
        height=340,
    )
