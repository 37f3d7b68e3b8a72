"""Corpora: what is packed is what was in the package, whole, checked, and split without a leak."""

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from annattn.data import CORPORA, Arrived, Corpus, data_folder, fetch, load
from annattn.data.corpora import Package
from annattn.errors import InputError
from annattn.files import held

FILES = {f"tiny/{number}.py": f"# file {number}\n".encode() * (number + 1) for number in range(40)}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that stands for the package index, with one wheel; gives the wheel's path."""
    place = tmp_path / "index"
    place.mkdir()
    wheel = place / "tiny_text-1.0-py3-none-any.whl"
    about = {
        "tiny_text-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-text\nVersion: 1.0\n",
        "tiny_text-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny_text-1.0.dist-info/RECORD": b"",
        "tiny/ignored.txt": b"not this",
    }
    with zipfile.ZipFile(wheel, "w") as file:
        for name, data in (FILES | about).items():
            file.writestr(name, data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    monkeypatch.setenv("ANNATTN_DATA", str(tmp_path / "kept"))
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    package = Package("tiny-text", "1.0", sha256, wheel.stat().st_size, is_wheel=True)
    monkeypatch.setitem(CORPORA, "tiny", Corpus("tiny", (package,), members=r"tiny/.*\.py"))
    return wheel


@pytest.fixture
def plain(tmp_path, monkeypatch):
    """A corpus of one file that is known by its checksum."""
    data = bytes(range(256)) * 10
    monkeypatch.setenv("ANNATTN_DATA", str(tmp_path / "kept"))
    corpus = Corpus("plain", (), sha256=hashlib.sha256(data).hexdigest())
    monkeypatch.setitem(CORPORA, "plain", corpus)
    (tmp_path / "plain.gz").write_bytes(gzip.compress(data))
    return tmp_path / "plain.gz", data


@pytest.mark.slow
def test_a_package_from_the_index_is_packed_and_every_file_lies_in_one_split(index):
    seen: list[Arrived] = []
    text = fetch("tiny", report=seen.append)
    found = {split: bytes(text.part(split)).split(b"\0") for split in text.splits}
    found = {split: [one for one in documents if one] for split, documents in found.items()}
    assert sorted(one for documents in found.values() for one in documents) == sorted(FILES.values())
    assert all(found.values())
    assert 0.8 < len(text.part("train")) / len(text.data) < 0.95
    assert seen[-1].doing == "packing"
    assert seen[-1].done == seen[-1].total == len(text.data)
    assert [one.name for one in data_folder().iterdir() if "partial" in one.name] == []
    index.unlink()  # it is there now, so the index is not asked again
    assert fetch("tiny").sha256 == text.sha256


@pytest.mark.slow
def test_another_file_of_the_same_name_is_refused_before_it_is_opened(index, monkeypatch):
    wanted = CORPORA["tiny"].packages[0]
    other = dataclasses.replace(wanted, sha256="0" * 64)
    monkeypatch.setitem(CORPORA, "tiny", dataclasses.replace(CORPORA["tiny"], packages=(other,)))
    with pytest.raises(InputError, match=r"tiny-text 1\.0: ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"):
        fetch("tiny")
    assert not list(data_folder().glob("tiny.*s*"))  # neither bytes nor json


@pytest.mark.slow
def test_a_package_that_arrived_before_a_stop_is_not_downloaded_again(index, monkeypatch):
    folder = data_folder() / "tiny.partial"
    folder.mkdir(parents=True)
    index.rename(folder / index.name)  # nothing is left on the index
    text = fetch("tiny")
    assert len(text.data) == sum(map(len, FILES.values())) + len(FILES) - 1
    assert not folder.exists()


@pytest.mark.slow
def test_a_missing_package_says_what_to_do(index):
    index.unlink()
    with pytest.raises(InputError, match=r"tiny-text 1\.0: ERROR.*annattn data tiny --file FILE"):
        fetch("tiny")


def test_a_file_at_hand_serves_if_its_checksum_is_right(plain):
    path, data = plain
    text = fetch("plain", file=path)
    assert bytes(text.data) == data
    assert text.splits == {"train": (0, 2304), "validation": (2304, 2432), "test": (2432, 2560)}


def test_a_file_with_one_byte_changed_is_refused_and_leaves_nothing(plain):
    path, data = plain
    path.write_bytes(gzip.compress(data[:-1] + b"x"))
    with pytest.raises(InputError, match=r"plain.gz with the SHA-256 .*expected"):
        fetch("plain", file=path)
    assert not list(data_folder().iterdir())
    with pytest.raises(InputError, match="run: annattn data plain"):
        load("plain")


def test_a_full_disk_leaves_nothing_but_what_was_there(plain, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path, data = plain
    data_folder().mkdir()
    (data_folder() / "other").write_text("mine")
    for place in ("replacing", "write_json", "_single"):
        with monkeypatch.context() as patched:
            patched.setattr(f"annattn.data.fetching.{place}", full)
            with pytest.raises(OSError, match="No space left"):
                fetch("plain", file=path)
        assert not [one for one in data_folder().iterdir() if "partial" in one.name]
    kept = data_folder() / "plain.partial" / "package.whl"  # what had arrived is not fetched twice
    kept.parent.mkdir()
    kept.write_bytes(b"whole")
    with monkeypatch.context() as patched:
        patched.setattr("annattn.data.fetching.replacing", full)
        with pytest.raises(OSError, match="No space left"):
            fetch("plain", file=path)
    assert kept.read_bytes() == b"whole"
    assert bytes(fetch("plain", file=path).data) == data
    assert {one.name for one in data_folder().iterdir()} == {"other", "plain.bytes", "plain.json"}


def test_damage_is_noticed_on_loading(plain):
    path, data = plain
    fetch("plain", file=path)
    kept = data_folder() / "plain.bytes"
    for damaged in (data[:-1] + b"x", data[:-1], b"", data + b"x"):
        kept.write_bytes(damaged)
        for read in (load, fetch):
            with pytest.raises(InputError, match=r"damaged.*delete it and plain.json beside it"):
                read("plain")
    kept.write_bytes(data)
    about = data_folder() / "plain.json"
    known = json.loads(about.read_text())
    for broken in (
        "{",
        "{}",
        "[" * 100_000,
        json.dumps(known | {"splits": {"train": [0, 9999]}}),
        json.dumps(known | {"splits": {"train": [0, 2560], "validation": [2304, 2432], "test": [2432, 2560]}}),
        json.dumps(known | {"splits": {"train": [0, 2304], "validation": [2304, 2304], "test": [2304, 2560]}}),
        about.read_text().replace("2304", "1e999"),
    ):
        about.write_text(broken)
        with pytest.raises(InputError, match="damaged"):
            load("plain")
    about.write_text(json.dumps(known))
    assert bytes(load("plain").data) == data


WHOLE = gzip.compress(bytes(99), mtime=0)


@pytest.mark.parametrize(
    "damaged", [b"", b"no gzip", WHOLE[:-9], WHOLE[:12] + b"x" * 9], ids=["empty", "other", "cut", "garbled"]
)
def test_a_damaged_gzip_is_named_and_leaves_nothing(plain, damaged):
    plain[0].write_bytes(damaged)
    with pytest.raises(InputError, match=r"plain.gz(, damaged, expected a whole .gz| with the SHA-256)"):
        fetch("plain", file=plain[0])
    assert not list(data_folder().glob("plain.bytes"))


def test_a_device_is_no_corpus(plain):
    with pytest.raises(InputError, match="/dev/zero, which is no file"):
        fetch("plain", file=Path("/dev/zero"))


def test_of_two_processes_that_pack_one_waits_for_nothing_and_says_who_packs(plain):
    path, data = plain
    with held(data_folder() / "plain.partial"), pytest.raises(InputError, match="in use by process"):
        fetch("plain", file=path)
    assert bytes(fetch("plain", file=path).data) == data


def test_what_another_process_packed_meanwhile_is_not_packed_again(plain, monkeypatch):
    path, data = plain
    fetch("plain", file=path)
    packed = (data_folder() / "plain.bytes").stat().st_ino

    @contextlib.contextmanager
    def later(folder):
        (data_folder() / "hidden.json").rename(data_folder() / "plain.json")
        yield

    (data_folder() / "plain.json").rename(data_folder() / "hidden.json")
    monkeypatch.setattr("annattn.data.fetching.held", later)
    assert bytes(fetch("plain", file=path).data) == data
    assert (data_folder() / "plain.bytes").stat().st_ino == packed


def test_excerpts_are_of_their_split_and_the_same_for_the_same_seed(plain):
    text = fetch("plain", file=plain[0])
    rows = text.sample("validation", 50, 100, seed=(3, 1))
    assert rows.dtype == np.int64
    assert (rows == text.sample("validation", 50, 100, seed=(3, 1))).all()
    part = bytes(text.part("validation"))
    assert all(bytes(row.astype(np.uint8)) in part for row in rows)
    assert len({row[0] for row in rows.tolist()}) > 10
    assert text.sample("validation", 2, 128, seed=0)[:, 0].tolist() == [0, 0]  # the whole split fits
    with pytest.raises(InputError, match="at most 128"):
        text.sample("validation", 1, 129, seed=0)


def test_the_standard_library_has_no_tests_in_it_and_is_split_by_file(tmp_path):
    text = fetch("python", folder=tmp_path)
    about = json.loads((tmp_path / "python.json").read_text())
    assert about["source"].startswith("Python 3.")
    assert about["documents"] > 200
    assert b"def namedtuple(" in bytes(text.data)  # collections
    assert b"class TestSuite(" in bytes(text.data)  # unittest is a module and no test
    assert b"class TestDecimal" not in bytes(text.data)
    first, last = text.splits["validation"]
    assert text.data[first] == text.data[last] == 0  # the byte between two files


def test_the_command_lists_gets_and_refuses(plain, tmp_path, monkeypatch, capsys):
    from annattn.cli.data import data

    data(as_json=True)
    assert {one["corpus"]: one["is_here"] for one in json.loads(capsys.readouterr().out)} == dict.fromkeys(
        CORPORA, False
    )
    data("plain", file=plain[0], as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["bytes"], told["train"], told["sha256"]) == (2560, 2304, CORPORA["plain"].sha256)
    with pytest.raises(InputError, match="did you mean enwik8"):
        data("enwik")
