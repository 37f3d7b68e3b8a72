"""The comparison of efficient attentions on the page: error against cost, and the table of errors."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from annattn.drawing import Axis, Point, Theme, scatter
from annattn.errors import InputError
from annattn.experiments.comparison import frontier, mean_error
from annattn.files import read_json

__all__ = ["PANELS", "error_text", "frontier_chart", "panel_columns", "panel_points", "read_comparison"]

PANELS = {
    True: ("tasks in order", ("induction", "recall", "k_hop_1", "k_hop_2", "k_hop_3", "k_hop_4")),
    False: ("tasks without order", ("match2", "sum", "listops")),
}
"""What the two charts may average over: for causal tasks and for others, their title and columns."""
_LONG = "16384"
_SPOKEN_KINDS = {"anna": "accent", "reference": "plain", "part": "faint"}


def read_comparison(path: Path) -> dict[str, Any]:
    """The file `comparison.json` that `annattn compare` wrote; anything else is refused."""
    expected = "the comparison.json of `annattn compare`"
    found = read_json(path, "comparison", expected)
    if not {"columns", "rows", "costs", "profile"} <= found.keys():
        raise InputError("comparison", given=str(path), expected=expected)
    try:  # whatever the page makes of it
        _check_numbers(found)
        for is_causal in PANELS:
            frontier_chart(found, is_causal=is_causal, width=760)
        for column in found["columns"]:
            f"{column['title']}{column['guess']:.3f}".join(
                f"{row['title']}{error_text(row['cells'][column['name']])}" for row in found["rows"]
            )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as wrong:
        given = f"{path}, damaged"
        raise InputError("comparison", given=given, expected=expected, hint=repr(wrong)) from None
    return found


def _check_numbers(comparison: Mapping[str, Any]) -> None:
    """Raise ValueError unless errors are shares, and times are times."""
    cells = [cell for row in comparison["rows"] for cell in row["cells"].values() if "error" in cell]
    shares = [cell["error"] for cell in cells] + [column["guess"] for column in comparison["columns"]]
    if not all(0 <= share <= 1 for share in shares) or not all(0 <= cell["spread"] < math.inf for cell in cells):
        raise ValueError("an error that is no share")
    costs = {} if comparison["costs"] is None else comparison["costs"]["contenders"]
    if not all(0 < x < math.inf for cost in costs.values() for x in cost["seconds_per_token"].values()):
        raise ValueError("a time that is none")


def error_text(cell: Mapping[str, Any]) -> str:
    """A cell of the table in words.

    >>> error_text({"error": 0.0312, "spread": 0.0, "seeds": 1}), error_text({"not_run": True})
    ('0.031', 'not run')
    >>> error_text({"missing": "no causal form"})
    'no causal form'
    """
    if "missing" in cell:
        return cell["missing"]
    if "error" not in cell:
        return "not run"
    spread = f" ± {cell['spread']:.3f}" if cell["seeds"] > 1 else ""
    return f"{cell['error']:.3f}{spread}"


def panel_columns(comparison: Mapping[str, Any], *, is_causal: bool) -> dict[str, str]:
    """The columns of a panel, and their titles, in which every contender that can take part has run."""
    rows = comparison["rows"]
    return {
        column["name"]: column["title"]
        for column in comparison["columns"]
        if column["name"] in PANELS[is_causal][1] and not any("not_run" in row["cells"][column["name"]] for row in rows)
    }


def panel_points(comparison: Mapping[str, Any], *, is_causal: bool) -> dict[str, tuple[float, float]]:
    """Time per token at 16,384 in microseconds, and mean error over the columns of a panel, of whoever has them all."""
    columns = list(panel_columns(comparison, is_causal=is_causal))
    found = {}
    for row in comparison["rows"]:
        error = mean_error(row, columns)
        if error is not None and comparison["costs"] is not None:
            seconds = comparison["costs"]["contenders"][row["name"]]["seconds_per_token"][_LONG]
            found[row["name"]] = (1e6 * seconds, error)
    return found


def frontier_chart(comparison: Mapping[str, Any], *, is_causal: bool, width: int, theme: Theme = "page") -> str | None:
    """Mean error against time per token, with the frontier drawn; None before a column of the panel is complete."""
    points = panel_points(comparison, is_causal=is_causal)
    if len(points) < 2:
        return None
    best = frontier(points)
    rows = {row["name"]: row for row in comparison["rows"]}
    drawn = [
        Point(rows[name]["title"], *at, kind=_SPOKEN_KINDS.get(rows[name]["kind"], "plain"), is_frontier=name in best)
        for name, at in points.items()
    ]
    costs, errors = [at[0] for at in points.values()], [at[1] for at in points.values()]
    ticks = [value for d in range(-2, 4) for value in (10.0**d, 2 * 10.0**d, 5 * 10.0**d)]
    first = max((value for value in ticks if value <= min(costs)), default=ticks[0])
    last = min((value for value in ticks if value >= max(costs)), default=ticks[-1])
    ticks = [value for value in ticks if first <= value <= last]
    top = max(0.1, math.ceil(10 * max(errors)) / 10)
    step = 0.1 if top <= 0.6 else 0.2
    title = ", ".join(panel_columns(comparison, is_causal=is_causal).values())
    return scatter(
        drawn,
        Axis(
            "microseconds per token at 16,384 tokens, logarithmic", [(value, f"{value:g}") for value in ticks], log=True
        ),
        Axis(
            f"mean error, {title}", [(step * k, f"{100 * step * k:.0f} %") for k in range(round(top / step + 0.49) + 1)]
        ),
        title=f"Mean error against time per token, {PANELS[is_causal][0]}: {title}",
        description="On the frontier: " + ", ".join(rows[name]["title"] for name in best) + ".",
        width=width,
        height=430,
        theme=theme,
    )
