"""The parts of the report as tables in a terminal, for `demo` and `bench`."""

import base64
from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from annattn.measure import LABELS, MATCH, Accuracy
from annattn.report.page import percent, right_share, seconds, times

__all__ = ["TABLES", "speed_table"]

_SHADES = " ░▒▓█"


def _table(title: str, *numbers: str) -> Table:
    """A table with a column of numbers for each of these headers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for header in numbers:
        table.add_column(header, justify="right")
    return table


def _milliseconds(value: float) -> str:
    value *= 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def speed_table(part: dict[str, Any]) -> Table:
    """The time of one call at every length, beside what the setting is worth there."""
    used = part["settings"]
    batch = f"{used['batch']} × " if used["batch"] > 1 else ""
    table = _table(
        f"Milliseconds per call: {batch}{used['heads']} head{'s' * (used['heads'] * used['batch'] > 1)} "
        f"of width {used['dim']}, "
        f"{used['tables']} table{'s' * (used['tables'] > 1)} of {used['hashes']} hash{'es' * (used['hashes'] > 1)}"
    )
    table.add_column("tokens", justify="right", no_wrap=True)
    for name in LABELS:
        table.add_column("copying" if name == "floor" else LABELS[name], justify="right")
    table.add_column("softmax / ANNA", justify="right", style="bold")
    table.add_column("true match", justify="right")
    setting = {name: used[name] for name in ("dim", "tables", "hashes")}
    for row in part["rows"]:
        cells = (_milliseconds(row["seconds"][name]) for name in LABELS)
        worth = percent(Accuracy.of(row["tokens"], **setting).share)
        table.add_row(f"{row['tokens']:,}", *cells, times(row["ratio"]["softmax / ANNA"]), worth)
    table.caption = (
        "true match: the weight that a key equal to the query gets among random keys;\n"
        f"at cosine {MATCH} a key is missed with probability {Accuracy.of(1, **setting).missed:.1g}"
    )
    table.caption_justify = "left"
    return table


def _attention_pictures(part: dict[str, Any], shown: int = 23) -> Table:
    """The weights of the first layer as trained, one character per weight, for as many tokens as fit a terminal."""
    layer = part["layers"][0]
    used = layer["trained"]
    row = layer["rows"][layer["hashes"].index(used["hashes"])]
    cell = row["cells"][layer["tables"].index(used["tables"])]
    heads = ("softmax", "expected", f"{used['tables']} tables of {used['hashes']}")
    table = _table("Weights of a trained head: rows are queries, columns keys")
    for head in heads:
        table.add_column(head, no_wrap=True, overflow="crop")
    pictures = [_picture(packed, shown) for packed in (row["softmax"], row["expected"], cell["weights"])]
    table.add_row(*pictures)
    table.caption = (
        f"distance of hashed from expected weights: {cell['distance']:.2f}, where 0 is equal and 1 disjoint;\n"
        "expected is the limit of infinitely many tables; a query with an empty row met no key"
    )
    table.caption_justify = "left"
    return table


def _picture(packed: str, shown: int) -> Text:
    """The packed weights of the first queries as shades of grey."""
    weights, lines = base64.b64decode(packed), []
    for query in range(min(shown, int((2 * len(weights)) ** 0.5))):
        start = query * (query + 1) // 2
        # The square root makes small weights visible.
        lines.append("".join(_SHADES[round(4 * (byte / 255) ** 0.5)] for byte in weights[start : start + query + 1]))
    return Text("\n".join(lines), no_wrap=True, overflow="crop")


def _models_table(part: dict[str, Any]) -> Table:
    """Errors with the number of hashes that each layer was trained with; the page also has others."""
    table = _table(f"Wrong tokens, %, by number of tables; mean of {part['draws']} draws; * as trained")
    table.add_column("model", min_width=9)
    every = sorted({count for model in part["models"] for layer in model["layers"] for count in layer["tables"]})
    for count in every:
        table.add_column(str(count), justify="right")
    for model in part["models"]:
        for number, layer in enumerate(model["layers"], 1):
            used = layer["trained"]
            row = layer["errors"][layer["hashes"].index(used["hashes"])]
            cells = {
                count: percent(cell["mean"]).removesuffix(" %") + "*" * (count == used["tables"])
                for count, cell in zip(layer["tables"], row, strict=True)
            }
            where = f", layer {number}" if len(model["layers"]) > 1 else ""
            table.add_row(f"{model['task']}{where}", *(cells.get(count, "") for count in every))
    return table


def _recall_table(part: dict[str, Any]) -> Table:
    title = f"Associative recall, trained at {part['trained_at']} tokens"
    table = _table(title, "tokens", "pairs", "questions", "right", "time")
    for row in part["rows"]:
        cells = (f"{row['tokens']:,}", f"{row['pairs']:,}", f"{row['queries']:,}", right_share(row["right"]))
        table.add_row(*cells, seconds(row["seconds"]))
    return table


def _needles_table(part: dict[str, Any]) -> Table:
    title = f"Facts that come back from real text, trained at {part['trained_at']} bytes"
    table = _table(title, "bytes", "facts", "right", "from the worst tenth", "time")
    for row in part["rows"]:
        worst = min(share for share in row["by_depth"] if share is not None)
        cells = (f"{row['tokens']:,}", f"{row['facts']:,}", right_share(row["right"]), right_share(worst))
        table.add_row(*cells, seconds(row["seconds"]))
    return table


def _theory_table(part: dict[str, Any]) -> Table:
    table = _table(f"{part['k']}-hop of {part['n']} letters: a protocol, and the transformer compiled from it")
    for column in ("", "protocol", "transformer"):
        table.add_column(column)
    sizes = part["sizes"]
    same = sum(one["same"] for one in part["rounds"])
    table.add_row("in parallel", f"{part['machines']} machines", f"{sizes['heads']} heads")
    table.add_row("in sequence", f"{len(part['rounds'])} rounds", f"{sizes['layers']} layers")
    table.add_row("in one place", f"{part['memory_words']} words", f"{sizes['value_width']:,} numbers per value")
    table.add_row(
        "same messages", f"after each of {len(part['rounds'])} rounds", f"after {same} of {len(part['rounds'])} layers"
    )
    table.add_row("right outputs", "", f"{part['equal']} of {part['compared']} words, EMA and ANNA")
    return table


def _theorems_table(part: dict[str, Any]) -> Table:
    table = _table(f"Theorems, {part['effort']} sizes")
    table.add_column("theorem", overflow="fold")
    table.add_column("right outputs", justify="right")
    table.add_column("bounds kept", justify="right")
    table.add_column("holds")
    for row in part["rows"]:
        kept = f"{row['kept']} of {row['kept'] + len(row['broken'])}"
        right = f"{row['equal']:,} of {row['inputs']:,}"
        table.add_row(row["theorem"], right, kept, "yes" if row["holds"] else "[bold]NO[/bold]")
    return table


TABLES: dict[str, Callable[[dict[str, Any]], Table]] = {
    "speed": speed_table,
    "attention": _attention_pictures,
    "models": _models_table,
    "recall": _recall_table,
    "needles": _needles_table,
    "theory": _theory_table,
    "theorems": _theorems_table,
}
