"""Input and output in the files of a folder, for what is too large for one process."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from annattn.errors import AnnattnError, InputError
from annattn.files import replacing
from annattn.mpc.model import Words, as_words

__all__ = ["PartFiles", "new_folder", "read_part", "table_words", "write_part"]

SUFFIXES = (".npy", ".parquet")


@dataclass(frozen=True)
class PartFiles:
    """Words in the files of a folder: NumPy arrays (.npy) or Parquet tables, in the order of their names.

    Only the headers are read when a folder is opened. A row is a record: an array has one or two axes, and the columns
    of a table are the words of a record.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part, words in enumerate(([3, 1], [2])):
    ...         np.save(f"{folder}/part-{part}.npy", np.array(words, np.uint64))
    ...     files = PartFiles.open(folder)
    ...     files.records, files.firsts, files.whole()
    (3, (0, 2), array([3, 1, 2], dtype=uint64))
    """

    paths: tuple[Path, ...]
    lengths: tuple[int, ...]
    width: int

    @classmethod
    def open(cls, folder: str | Path) -> "PartFiles":
        """The part files of a folder; refused if there are none or their records differ in width."""
        folder = Path(folder)
        if not folder.is_dir():
            raise InputError("folder", given=str(folder), expected="a folder of .npy or .parquet files")
        paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))
        if not paths:
            raise InputError("folder", given=f"{folder}, without parts", expected="a folder of .npy or .parquet files")
        shapes = [_shape(path) for path in paths]
        # A part without records has no width of its own.
        widths = {width: path for path, (length, width) in zip(paths, shapes, strict=True) if length}
        if len(widths) > 1:
            given = " and ".join(f"{width} words per record in {path.name}" for width, path in sorted(widths.items()))
            raise InputError("folder", given=given, expected="one width for all parts")
        return cls(tuple(paths), tuple(length for length, _ in shapes), next(iter(widths), 1))

    @property
    def records(self) -> int:
        """The number of records in all parts."""
        return sum(self.lengths)

    @property
    def firsts(self) -> tuple[int, ...]:
        """For each part, how many records come before it."""
        return tuple(accumulate(self.lengths, initial=0))[:-1]

    @staticmethod
    def stamp(path: Path) -> tuple[int, int]:
        """Size and time of the last change, which tell that a part is still what it was."""
        try:
            found = path.stat()
        except OSError as error:
            raise InputError("part", given=str(path), expected="a file that is there", hint=str(error)) from None
        return found.st_size, found.st_mtime_ns

    def whole(self) -> NDArray[Any]:
        """All parts in one array."""
        parts = [read_part(path) for path, length in zip(self.paths, self.lengths, strict=True) if length]
        return np.concatenate(parts) if parts else read_part(self.paths[0])


def read_part(path: Path) -> NDArray[Any]:
    """The rows of one part file, as they were written."""
    if path.suffix == ".parquet":
        return table_words(_parquet().read_table(path))
    return _load(path, None)


def table_words(table: Any) -> Words:
    """The words of a table: one row per record, one word per column; a single column gives single words."""
    columns = [as_words(column.to_numpy(zero_copy_only=False)) for column in map(_one_chunk, table.columns)]
    if not columns:
        raise InputError("table", given="no columns", expected="one column of integers per word of a record")
    return columns[0] if len(columns) == 1 else np.column_stack(columns)


def _one_chunk(column: Any) -> Any:
    if column.null_count:
        raise InputError("table", given=f"{column.null_count} missing values", expected="integers")
    return column.combine_chunks()


def write_part(folder: Path, part: int, rows: NDArray[Any]) -> None:
    """Write one part as a .npy file, whole or not at all."""
    with replacing(folder / f"part-{part:05}.npy") as file:
        np.save(file, rows)


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to write parts into that gets its name when the block ends; refused if something is there already.

    If the block raises, nothing is left.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError("output", given=f"{target}, which is there already", expected="a new or an empty folder")
    unfinished = target.absolute().with_name(f".{target.absolute().name}.unfinished")
    # What a run that was killed left behind.
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise InputError("output", given=str(target), expected="a folder that can be made", hint=str(error)) from None
    try:
        yield unfinished
        if target.exists():
            target.rmdir()
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _shape(path: Path) -> tuple[int, int]:
    """Records and words per record, from the header of a file."""
    if path.suffix == ".parquet":
        try:
            header = _parquet().ParquetFile(path).metadata
        except (OSError, ValueError) as error:
            raise InputError("part", given=str(path), expected="a Parquet file", hint=str(error)) from None
        return header.num_rows, header.num_columns
    shape = _load(path, "r").shape
    if len(shape) not in (1, 2):
        raise InputError("part", given=f"{path} of shape {shape}", expected="one word, or one row of words, per record")
    return shape[0], shape[1] if len(shape) == 2 else 1


def _load(path: Path, mode: Any) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode=mode, allow_pickle=False)
    except (OSError, EOFError, ValueError, SyntaxError) as error:
        raise InputError("part", given=str(path), expected="an array saved by numpy.save", hint=str(error)) from None


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise AnnattnError("Parquet files need the package pyarrow: pip install 'annattn[ray]'") from error
    return parquet
