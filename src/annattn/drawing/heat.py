"""Heat maps as SVG text: a number in every cell, and a colour by it."""

from collections.abc import Callable, Sequence

from annattn.drawing.style import Theme, begin, text

__all__ = ["heat"]

_LETTER, _ROW, _TOP, _BOTTOM = 7.0, 30, 34, 52


def heat(
    cells: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    words: Callable[[float], str],
    shade: Callable[[float], float],
    title: str,
    row_label: str,
    column_label: str,
    width: int = 760,
    theme: Theme = "page",
) -> str:
    """A table of numbers by row and column, shaded.

    Args:
        cells: numbers by row and column; None leaves a cell empty.
        rows: their names.
        columns: their names; a line break begins a second line.
        words: how a number is written.
        shade: from a number to how strong its colour is, up to 1; below 0 it has the other colour.
        title: stands above, and is read to those who cannot see the map.
        row_label: what rows are.
        column_label: what columns are.
        width: in units of which letters have 12.5.
        theme: whose colours.

    >>> drawn = heat([[1.0, None]], ["a"], ["x", "y"], words=str, shade=abs, title="t", row_label="r", column_label="c")
    >>> drawn.count("<rect")
    1
    """
    left = 14 + _LETTER * max(len(row_label), *(len(name) for name in rows))
    step, bottom = (width - 8 - left) / len(columns), _TOP + _ROW * len(rows)
    parts = [begin(width, bottom + _BOTTOM, f"{title}; {row_label} by {column_label}", theme)]
    parts.append(text(0, 14, title, "start", "axis"))
    parts.append(text(left - 8, 30, row_label, "end"))
    for number, (name, row) in enumerate(zip(rows, cells, strict=True)):
        y = _TOP + _ROW * number
        parts.append(text(left - 8, y + _ROW / 2 + 4, name, "end"))
        for at, value in enumerate(row):
            if value is None:
                continue
            strength = max(-1.0, min(1.0, shade(value)))
            kind = "cell warm" if strength < 0 else "cell"
            x = left + step * at
            parts.append(
                f'<rect class="{kind}" x="{x + 1:.1f}" y="{y + 1:.1f}" width="{step - 2:.1f}" height="{_ROW - 2}" '
                f'rx="3" fill-opacity="{0.06 + 0.5 * abs(strength):.3f}"/>'
            )
            parts.append(text(x + step / 2, y + _ROW / 2 + 4, words(value), "middle", "cell-text"))
    for at, name in enumerate(columns):
        for line, part in enumerate(name.split("\n")):
            parts.append(text(left + step * (at + 0.5), bottom + 16 + 14 * line, part, "middle"))
    parts.append(text(left + step * len(columns) / 2, bottom + _BOTTOM - 4, column_label, "middle", "axis"))
    return "".join([*parts, "</svg>"])
