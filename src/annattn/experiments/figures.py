"""The paper's two figures from measured errors: lines over tables for Match2, a heat map for induction heads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from annattn.errors import InputError

__all__ = ["heat_map", "lines"]


def lines(
    path: Path, title: str, tables: Sequence[int], series: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str
) -> Path:
    """Mean error over the number of tables, one line per series, with its spread as a band.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lines(Path(folder) / "a.svg", "Match2", [1, 2], {"z = 1": [(0.5, 0.1), (0.0, 0.0)]}, x_label="tables").name
    'a.svg'
    """
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    colours = plt.get_cmap("viridis")
    for at, (name, points) in enumerate(series.items()):
        colour = colours(at / max(1, len(series) - 1) * 0.9)
        means, spreads = [p[0] for p in points], [p[1] for p in points]
        axes.plot(tables, means, marker="o", markersize=4, color=colour, label=name)
        low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
        axes.fill_between(tables, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(title=title, xlabel=x_label, ylabel="error, mean of the draws", ylim=(-0.02, None), xticks=list(tables))
    axes.grid(alpha=0.3)
    axes.legend(title="hashes", frameon=False)
    return _written(figure, path)


def heat_map(
    path: Path, title: str, rows: Sequence[int], columns: Sequence[int], errors: Sequence[Sequence[float]]
) -> Path:
    """Mean error for numbers of tables in the first layer (rows) and in the second (columns).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     heat_map(Path(folder) / "a.svg", "Induction heads", [32], [4, 8], [[0.2, 0.1]]).name
    'a.svg'
    """
    plt = _pyplot()
    size = (1.6 + 0.62 * len(columns), 1.4 + 0.42 * len(rows))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    top = max(0.3, max(max(row) for row in errors))
    image = axes.imshow(errors, cmap="viridis_r", vmin=0, vmax=top, aspect="auto")
    for i, row in enumerate(errors):
        for j, error in enumerate(row):
            dark = error > 0.55 * top
            axes.text(j, i, f"{error:.3f}", ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set(title=title, xlabel="tables in layer 2", ylabel="tables in layer 1")
    axes.set_xticks(range(len(columns)), [str(c) for c in columns])
    axes.set_yticks(range(len(rows)), [str(r) for r in rows])
    figure.colorbar(image, label="error, mean of the draws")
    return _written(figure, path)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise InputError(
            "figures", given="no matplotlib", expected="matplotlib installed", hint="pip install 'annattn[report]'"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "annattn"  # the same picture is the same file
    return plt


def _written(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=120)
    _pyplot().close(figure)
    return path
