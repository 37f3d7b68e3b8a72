"""Files that are written whole or not at all: under another name first, then renamed."""

import contextlib
import errno
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from annattn.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["as_json", "held", "read_json", "replacing", "resolved", "write_bytes", "write_json", "write_text"]


def read_json(path: Path, name: str, expected: str) -> dict[str, Any]:
    """What a JSON file holds; InputError, with what was expected of `name`, if that is not a file of names and values.

    >>> read_json(Path("nothing"), "results", "the results file of `annattn demo`")
    Traceback (most recent call last):
    annattn.errors.InputError: results: got nothing, expected a file that exists
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(name, given=str(path), expected="a file that exists") from None
    except (OSError, ValueError, RecursionError) as wrong:
        raise InputError(name, given=str(path), expected=expected, hint=str(wrong)) from None
    if not isinstance(found, dict):
        raise InputError(name, given=str(path), expected=expected)
    return found


def resolved(path: Path) -> Path:
    """Where a path leads, through all links; InputError if they lead in a circle.

    >>> resolved(Path("/")) == Path("/")
    True
    """
    try:
        # Not `resolve`, which raises for a circle in some versions of Python, and not in others.
        return path.resolve(strict=True)
    except FileNotFoundError:
        return path.resolve()
    except (RuntimeError, OSError) as wrong:
        if isinstance(wrong, OSError) and wrong.errno != errno.ELOOP:
            return path.resolve()
        raise InputError("file", given=str(path), expected="a name, not a link that leads back to itself") from None


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
    path = resolved(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        # Closing writes what is still held back, so it may fail as writing does.
        with partial.open("wb") as file:
            yield file
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """A folder that no other process holds meanwhile; InputError if one does. Made if it is not there.

    What a process that was killed had written in part is deleted: nobody else writes in a folder that is held.

    The operating system lets go for a process that dies, so there is no lock left to clean up; where it has no such
    locks (Windows, some network disks), nothing is held.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, held(Path(folder)):
    ...     [one.name for one in Path(folder).iterdir()]
    ['lock']
    """
    _make_folder(folder)
    if fcntl is None:
        yield
        return
    path = folder / "lock"
    while True:
        with _opened(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _who_holds(folder, path) from None
            except OSError:  # a disk without locks
                yield
                return
            # Whoever held it before may have deleted the file after we opened it.
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue
            try:
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}")
                file.flush()
                for left in folder.glob(".*.partial"):  # by a process that was killed while it held the folder
                    left.unlink(missing_ok=True)
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError("folder", given=f"{folder}, a file or inside one", expected="a folder") from None


def _opened(path: Path) -> IO[str]:
    try:
        return path.open("a+")
    except FileNotFoundError:  # whoever held the folder before may have removed it
        _make_folder(path.parent)
        return path.open("a+")


def _who_holds(folder: Path, path: Path) -> InputError:
    who = ""
    with contextlib.suppress(OSError, ValueError):
        who = " ".join(path.read_text(errors="replace").split())[:200]
    return InputError(
        "folder",
        given=f"{folder}, which is in use by {who or 'another process'}",
        expected="one that nobody else writes to",
        hint="wait for that process or stop it, or choose another folder; "
        f"if there is no such process, on this machine or another that shares the disk, delete {path}",
    )


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
