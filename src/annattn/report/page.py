"""The page: results in, one self-contained HTML file out."""

import json
import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from annattn.drawing import Axis, Line, chart
from annattn.errors import InputError
from annattn.measure import LABELS
from annattn.report.benchmarks import scale_chart
from annattn.report.comparison import error_text, frontier_chart

__all__ = ["headlines", "page", "percent", "power", "right_share", "seconds", "times"]

_FOLDER = Path(__file__).parent
_KINDS = {"softmax": "plain", "causal_softmax": "plain", "anna": "accent", "causal_anna": "accent", "floor": "faint"}
_SHORT = {**LABELS, "floor": "copying"}


def page(results: Mapping[str, Any]) -> str:
    """One HTML file with all figures, tables and scripts in it; it loads nothing from the network.

    The results come from `make_results` or `read_results`. A part that was not measured has no section.
    """
    try:
        import jinja2
    except ModuleNotFoundError:
        raise InputError(
            "report", given="no jinja2", expected="it to be installed", hint="pip install 'annattn[report]'"
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "percent": percent,
        "seconds": seconds,
        "times": times,
        "power": power,
        "right": right_share,
    }
    environment.filters["error_text"] = error_text
    environment.filters["log2"] = math.log2
    environment.filters["count"] = "{:,}".format
    environment.filters["keys_per_bucket"] = keys_per_bucket
    try:
        return environment.get_template("page.html").render(
            results,
            headlines=headlines(results),
            labels=LABELS,
            speed_charts=[_speed_chart(results["speed"], width) for width in (760, 345)] if "speed" in results else [],
            error_charts=_error_charts(results["models"]) if "models" in results else [],
            frontier_charts=_frontier_charts(results.get("comparison")),
            scale_charts=[scale_chart(results["scale"], width=w) for w in (760, 345)] if "scale" in results else [],
            data=_for_script(results),
            css=(_FOLDER / "page.css").read_text(encoding="utf-8"),
            js=(_FOLDER / "page.js").read_text(encoding="utf-8"),
        )
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, jinja2.UndefinedError) as wrong:
        raise InputError("results", given=f"{wrong!r}", expected="everything that `annattn demo` measures") from None


def headlines(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The main findings: pairs of a figure and what it is."""
    found = []
    if "recall" in results:
        part, longest = results["recall"], results["recall"]["rows"][-1]
        found.append(
            (
                right_share(longest["right"]),
                f"right: associative recall over {longest['tokens']:,} tokens, trained at {part['trained_at']}, "
                f"in {seconds(longest['seconds'])}",
            )
        )
    if "needles" in results:
        longest = results["needles"]["rows"][-1]
        what = f"of {longest['facts']:,} facts come back from {longest['tokens']:,} bytes of real text"
        found.append((right_share(longest["right"]), f"{what}, in {seconds(longest['seconds'])}"))
    if "speed" in results:
        longest, used = results["speed"]["rows"][-1], results["speed"]["settings"]
        found.append(
            (
                times(longest["ratio"]["softmax / ANNA"]),
                f"the speed of torch's softmax attention, at {longest['tokens']:,} tokens "
                f"with {used['tables']} tables of {used['hashes']} hashes: {keys_per_bucket(longest, used)} per bucket",
            )
        )
    for model in results["models"]["models"] if "models" in results else ():
        used = " and ".join(f"{one['trained']['tables']}" for one in model["layers"])
        found.append((percent(model["trained"]["mean"]), f"of tokens wrong: {model['task']}, {used} tables"))
    if "theory" in results:
        theory = results["theory"]
        what = f"{theory['k']}-hop outputs right, of transformers compiled from a protocol"
        found.append((f"{theory['equal']} of {theory['compared']}", what))
    if "theorems" in results:
        rows = results["theorems"]["rows"]
        found.append((f"{sum(row['holds'] for row in rows)} of {len(rows)}", "theorems hold: built, run and measured"))
    return found


def keys_per_bucket(row: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """How many keys of random tokens share a bucket of hyperplane hashes on average: what a speed is worth.

    >>> keys_per_bucket({"tokens": 65536}, {"hashes": 8}), keys_per_bucket({"tokens": 256}, {"hashes": 8})
    ('256 keys', '1 key')
    >>> keys_per_bucket({"tokens": 64}, {"hashes": 8})
    'less than 1 key'
    """
    keys = row["tokens"] / 2 ** settings["hashes"]
    if keys < 1:
        return "less than 1 key"
    return "1 key" if keys < 1.5 else f"{keys:,.0f} keys"


def right_share(share: float) -> str:
    """A share of right answers, cut and not rounded, so that it is 100 % only if all are right.

    >>> right_share(0.99996), right_share(1.0)
    ('99.99 %', '100 %')
    """
    return "100 %" if share == 1 else f"{math.floor(1e4 * share) / 100:.2f} %"


def percent(share: float) -> str:
    """A share as a percentage; page.js does the same.

    >>> percent(0.0812), percent(0.0), percent(0.4567), percent(0.0004), percent(1e-6)
    ('8.1 %', '0 %', '46 %', '0.04 %', '< 0.01 %')
    >>> percent(0.00625)  # a tie
    '0.63 %'
    """
    value = 100 * share
    if value == 0:
        return "0 %"
    if value < 0.01:
        return "< 0.01 %"
    # Ties go up, as in JavaScript's toFixed.
    step = Decimal(1 if value >= 10 else "0.1" if value >= 1 else "0.01")
    return f"{Decimal(value).quantize(step, ROUND_HALF_UP)} %"


def seconds(value: float) -> str:
    """A time with its unit.

    >>> seconds(0.00123), seconds(0.0456), seconds(9.8)
    ('1.23 ms', '45.6 ms', '9.80 s')
    """
    if value >= 1:
        return f"{value:.2f} s"
    return f"{1e3 * value:.{2 if value < 0.01 else 1 if value < 0.1 else 0}f} ms"


def times(ratio: float) -> str:
    """A ratio, with at least two digits.

    >>> times(312.4), times(7.12)
    ('312×', '7.1×')
    """
    return f"{ratio:,.0f}×" if ratio >= 20 else f"{ratio:.1f}×"


def power(value: float) -> str:
    """A small number as a digit times a power of ten.

    >>> power(6.2e-08), power(0.0)
    ('6·10⁻⁸', '0')
    """
    if value == 0:
        return "0"
    digit, exponent = f"{value:.0e}".split("e")
    return f"{digit}·10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _speed_chart(part: Mapping[str, Any], width: int) -> str:
    rows = part["rows"]
    narrow = width < 500
    lines = [
        Line(
            _SHORT[name] if narrow else LABELS[name].replace("copying q, k, v and the output", "copying alone"),
            [(row["tokens"], 1e3 * row["seconds"][name]) for row in rows],
            kind=_KINDS[name],
            dashed=name.startswith("causal"),
        )
        for name in LABELS
    ]
    values = [value for line in lines for _, value in line.points]
    decades = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    tokens = [(row["tokens"], _tokens(row["tokens"])) for row in rows]
    last = rows[-1]
    in_words = ", ".join(f"{LABELS[name]} {seconds(last['seconds'][name])}" for name in LABELS)
    return chart(
        lines,
        Axis("tokens, both axes logarithmic", tokens, log=True),
        Axis("milliseconds", [(10.0**d, f"{10.0**d:g}" if d < 3 else f"{10**d:,}") for d in decades], log=True),
        title="Time of one call against the number of tokens",
        description=f"At {last['tokens']:,} tokens: {in_words}.",
        width=width,
        height=380 if narrow else 400,
    )


def _tokens(n: int) -> str:
    return f"{n // 1024}k" if n % 1024 == 0 else f"{n:,}"


def _error_charts(part: Mapping[str, Any]) -> list[dict[str, str]]:
    found = []
    for model in part["models"]:
        for number, layer in enumerate(model["layers"], 1):
            where = f"{model['task']}, layer {number}" if len(model["layers"]) > 1 else model["task"]
            found.append({"title": where, "svg": _error_chart(where, layer)})
    return found


def _error_chart(title: str, layer: Mapping[str, Any]) -> str:
    used = layer["trained"]
    lines = []
    for z, row in zip(layer["hashes"], layer["errors"], strict=True):
        chosen = z == used["hashes"]
        lines.append(
            Line(
                f"{z} hash" + ("es" if z > 1 else ""),
                list(zip(layer["tables"], (cell["mean"] for cell in row), strict=True)),
                kind="accent" if chosen else "plain",
                spread=[cell["spread"] for cell in row] if chosen else (),
                ring=used["tables"] if chosen else None,
            )
        )
    lines.sort(key=lambda line: line.kind == "accent")  # the accented line is drawn last, on top
    highest = max(cell["mean"] + cell["spread"] for row in layer["errors"] for cell in row)
    at = layer["errors"][layer["hashes"].index(used["hashes"])][layer["tables"].index(used["tables"])]
    return chart(
        lines,
        Axis("tables", [(t, str(t)) for t in layer["tables"]], log=True),
        Axis("wrong tokens", _share_ticks(highest)),
        title=f"{title}: wrong tokens against tables, one line per number of hashes",
        description=f"As trained, with {used['tables']} tables of {used['hashes']} hashes: {percent(at['mean'])}.",
        width=345,
        height=290,
    )


def _frontier_charts(comparison: Mapping[str, Any] | None) -> list[str]:
    """Nothing unless the comparison was measured."""
    if comparison is None:
        return []
    charts = (frontier_chart(comparison, is_causal=is_causal, width=760) for is_causal in (True, False))
    return [svg for svg in charts if svg is not None]


def _share_ticks(highest: float) -> Sequence[tuple[float, str]]:
    step = next((step for step in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if highest <= 5 * step), 0.25)
    count = max(1, math.ceil(min(highest, 1.0) / step - 1e-9))
    return [(step * number, f"{100 * step * number:g} %") for number in range(count + 1)]


def _for_script(results: Mapping[str, Any]) -> str:
    """What the interactive parts need, as JSON that cannot end its script element."""
    needed: dict[str, Any] = {name: results.get(name) for name in ("attention", "theory")}
    needed["errors"] = None
    if "attention" in results and "models" in results:
        swept = {model["name"]: model for model in results["models"]["models"]}[results["attention"]["model"]]
        needed["errors"] = [layer["errors"] for layer in swept["layers"]]
    return json.dumps(needed, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
