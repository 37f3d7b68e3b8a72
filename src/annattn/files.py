"""Files that are written whole or not at all: under another name first, then renamed."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["as_json", "replacing", "write_bytes", "write_json", "write_text"]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write beside `path` that takes its place when the block ends; if the block raises, nothing is left.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "x") as file:
    ...         _ = file.write(b"whole")
    ...     [(one.name, one.read_bytes()) for one in Path(folder).iterdir()]
    [('x', b'whole')]
    """
    # A link stays one: what it points to is replaced.
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        # Closing writes what is still held back, so it may fail as writing does.
        with partial.open("wb") as file:
            yield file
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()


def write_bytes(data: bytes, path: Path) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as file:
        file.write(data)


def write_text(text: str, path: Path) -> None:
    """Write a text file, UTF-8, whole or not at all."""
    write_bytes(text.encode(), path)


def write_json(data: Any, path: Path) -> None:
    """Write JSON, whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json({"a": 1}, Path(folder) / "x.json")
    ...     json.loads((Path(folder) / "x.json").read_text())
    {'a': 1}
    """
    write_text(as_json(data), path)


def as_json(data: Any) -> str:
    r"""Data as the JSON text this library writes: indented, one line break at the end, and no NaN.

    >>> as_json([1])
    '[\n  1\n]\n'
    """
    return json.dumps(data, indent=2, allow_nan=False) + "\n"
