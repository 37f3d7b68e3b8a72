"""A figure as two files: one for light pages, and one for dark ones."""

from collections.abc import Callable
from pathlib import Path

from annattn.drawing.style import Theme
from annattn.files import write_text

__all__ = ["dark_name", "write_figure"]


def dark_name(path: Path) -> Path:
    """Where the dark variant of a figure is.

    >>> dark_name(Path("figures/time.svg")).name
    'time_dark.svg'
    """
    return path.with_name(f"{path.stem}_dark{path.suffix}")


def write_figure(draw: Callable[[Theme], str], path: Path) -> Path:
    """Write what `draw` gives for both themes, each file whole or not at all; returns the light one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_figure(lambda theme: f"<svg>{theme}</svg>", Path(folder) / "new" / "a.svg")
    ...     path.read_text().strip(), dark_name(path).read_text().strip()
    ('<svg>light</svg>', '<svg>dark</svg>')
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(draw("light") + "\n", path)
    write_text(draw("dark") + "\n", dark_name(path))
    return path
