"""The paper's two figures from measured errors: lines over tables for Match2, a heat map for induction heads."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from annattn.drawing import Axis, Line, chart, heat, write_figure

__all__ = ["heat_map", "lines"]


def lines(
    path: Path, title: str, tables: Sequence[int], series: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str
) -> Path:
    """Mean error over the number of tables, one line per series, with its spread as a band; the first stands out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lines(Path(folder) / "a.svg", "Match2", [1, 2], {"z = 1": [(0.5, 0.1), (0.0, 0.0)]}, x_label="tables").name
    'a.svg'
    """
    first = next(iter(series))
    drawn = [
        Line(
            name,
            [(n, mean) for n, (mean, _) in zip(tables, points, strict=True)],
            kind="accent" if name == first else "plain",
            spread=[spread for _, spread in points] if name == first else (),
        )
        for name, points in series.items()
    ]
    top = max(mean + spread for points in series.values() for mean, spread in points)
    step = next(step for step in (0.02, 0.05, 0.1, 0.2, 0.5) if top <= 6 * step)
    ticks = [(step * k, f"{step * k:g}") for k in range(math.ceil(top / step) + 1)]
    x, y = Axis(x_label, [(n, str(n)) for n in tables]), Axis(f"{title}: error, mean of the draws", ticks)
    return write_figure(
        lambda theme: chart(drawn, x, y, title=title, description=x_label, width=760, height=380, theme=theme), path
    )


def heat_map(
    path: Path, title: str, rows: Sequence[int], columns: Sequence[int], errors: Sequence[Sequence[float]]
) -> Path:
    """Mean error for numbers of tables in the first layer (rows) and in the second (columns).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     heat_map(Path(folder) / "a.svg", "Induction heads", [32], [4, 8], [[0.2, 0.1]]).name
    'a.svg'
    """
    top = max(0.3, max(max(row) for row in errors))
    return write_figure(
        lambda theme: heat(
            errors,
            [str(row) for row in rows],
            [str(column) for column in columns],
            words=lambda error: f"{error:.3f}",
            shade=lambda error: error / top,
            title=f"{title}: error, mean of the draws",
            row_label="tables in layer 1",
            column_label="tables in layer 2",
            theme=theme,
        ),
        path,
    )
