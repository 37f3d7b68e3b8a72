"""Input and output in the files of a folder, and protocols whose input and output can be cut into parts."""

import numpy as np
import pytest

from annattn.errors import AnnattnError, InputError
from annattn.mpc import PartFiles, PerMachine, run, with_partners
from annattn.mpc.delivery import deliver
from annattn.mpc.engines.shards import cut_into_shards, machines_of_shard
from annattn.mpc.model import Limits, Mail
from annattn.mpc.part_files import new_folder, write_part
from annattn.mpc.parts.stages import join_mail
from annattn.mpc.protocols import PROTOCOLS, Problem, Sort

TAKE_PARTS = [name for name in PROTOCOLS if PROTOCOLS[name](20, 3 * PROTOCOLS[name].least_memory(20)).takes_parts]
GIVE_PARTS = [name for name in PROTOCOLS if PROTOCOLS[name](20, 3 * PROTOCOLS[name].least_memory(20)).gives_parts]


def small(name: str) -> Problem:
    return PROTOCOLS[name](20, PROTOCOLS[name].least_memory(20))


def test_these_protocols_can_be_cut():
    assert {"Sort", "KHop", "InductionHead", "Join", "PrefixSum", "Sum"} <= set(TAKE_PARTS)
    assert {"Sort", "KHop", "InductionHead", "Join", "PrefixSum", "Permute"} <= set(GIVE_PARTS)


@pytest.mark.parametrize("name", TAKE_PARTS)
@pytest.mark.parametrize("partners", [None, 3])
def test_an_input_placed_part_by_part_is_the_input_placed_at_once(name, partners):
    problem = small(name)
    protocol = problem if partners is None else with_partners(problem, partners)
    words = problem.sample(np.random.default_rng(0))
    for cuts in ([], [0, 7], [1, 2, 3], [5, 5, 19], list(range(1, 20))):
        starts = [0, *cuts]
        parts = [
            protocol.scatter_part(part, start, len(words))
            for start, part in zip(starts, np.split(words, cuts), strict=True)
            if len(part)
        ]
        whole, joined = protocol.scatter(words), join_mail(*parts)
        for column in ("dest", "src", "words"):
            assert np.array_equal(getattr(whole, column), getattr(joined, column))


@pytest.mark.parametrize("name", GIVE_PARTS)
@pytest.mark.parametrize("partners", [None, 3])
def test_an_output_read_part_by_part_is_the_output_read_at_once(name, partners):
    problem = small(name)
    protocol = problem if partners is None else with_partners(problem, partners)
    words = problem.sample(np.random.default_rng(0))
    mail = deliver(protocol.scatter(words), protocol.limits.machines)
    for round_ in range(protocol.rounds):
        mail = deliver(protocol.step(round_, mail), protocol.limits.machines)
    for shards in (1, 2, 3, 7):
        pieces = [part for part in cut_into_shards(mail, protocol.limits.machines, shards) if len(part)]
        joined = np.concatenate([protocol.gather_part(part) for part in pieces])
        assert joined.tobytes() == np.ascontiguousarray(protocol.gather(mail)).tobytes()


@pytest.mark.parametrize("machines", [1, 2, 5, 12])
@pytest.mark.parametrize("shards", [1, 2, 3, 5, 9])
def test_shards_are_stretches_of_the_machines(machines, shards):
    number = np.arange(machines)[::-1].copy()
    parts = cut_into_shards(Mail(number, number, number[:, None]), machines, shards)
    for shard, part in enumerate(parts):
        assert sorted(part.dest.tolist()) == list(machines_of_shard(shard, machines, shards))


def test_a_step_that_reads_or_places_everything_cannot_be_cut():
    limits = Limits(machines=2, memory_words=4)
    keep = PerMachine(lambda round, machine, inbox: [], rounds=1, limits=limits)  # noqa: A006
    placing = PerMachine(lambda round, machine, inbox: [], rounds=1, limits=limits, scatter=lambda rows: [])  # noqa: A006
    assert (keep.takes_parts, keep.gives_parts) == (True, True)
    assert (placing.takes_parts, placing.gives_parts) == (False, True)


def in_folder(folder, *parts, parquet=False):
    folder.mkdir()
    for number, part in enumerate(parts):
        if parquet:
            pyarrow = pytest.importorskip("pyarrow")
            from pyarrow import parquet as files

            columns = [part] if part.ndim == 1 else part.T
            table = pyarrow.table({f"word {i}": column for i, column in enumerate(columns)})
            files.write_table(table, folder / f"part-{number}.parquet")
        else:
            np.save(folder / f"part-{number}.npy", part)
    return folder


@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize("width", [1, 3])
def test_a_folder_is_read_in_the_order_of_its_names(tmp_path, parquet, width):
    rows = np.random.default_rng(0).integers(0, 2**63, (10, width), dtype=np.uint64)
    words = rows[:, 0] if width == 1 else rows
    files = PartFiles.open(in_folder(tmp_path / "in", words[:4], words[4:4], words[4:], parquet=parquet))
    assert (files.records, files.width, files.firsts) == (10, width, (0, 4, 4))
    assert np.array_equal(files.whole(), words)
    sort = Sort(10, 40, width=width)
    assert np.array_equal(run(sort, tmp_path / "in").output, run(sort, words).output)


def test_an_output_goes_to_a_new_folder_or_nowhere(tmp_path):
    result = run(Sort(5, 4), [5, 1, 4, 1, 3], output=tmp_path / "out")
    assert isinstance(result.output, PartFiles)
    assert result.output.whole().tolist() == [1, 1, 3, 4, 5]
    with pytest.raises(
        InputError, match=r"output: got .*out, which is there already, expected a new or an empty folder"
    ):
        run(Sort(5, 4), [5, 1, 4, 1, 3], output=tmp_path / "out")
    assert PartFiles.open(tmp_path / "out").whole().tolist() == [1, 1, 3, 4, 5]


def test_a_folder_that_was_not_finished_is_not_there(tmp_path):
    def fail():
        with new_folder(tmp_path / "out") as folder:
            write_part(folder, 0, np.arange(3))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def damaged(folder):
    (folder / "part-0.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{")


def blank(folder):
    (folder / "part-0.npy").touch()


def scalar(folder):
    np.save(folder / "part-0.npy", np.uint64(3))


def widths(folder):
    np.save(folder / "part-0.npy", np.zeros((2, 2), np.uint64))
    np.save(folder / "part-1.npy", np.zeros((2, 3), np.uint64))


def objects(folder):
    np.save(folder / "part-0.npy", np.array([object()]), allow_pickle=True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "without parts, expected a folder of .npy or .parquet files"),
        (damaged, "part-0.npy, expected an array saved by numpy.save"),
        (blank, "part-0.npy, expected an array saved by numpy.save"),
        (scalar, "expected one word, or one row of words, per record"),
        (widths, "2 words per record in part-0.npy and 3 words per record in part-1.npy, expected one width"),
        (objects, "part-0.npy, expected an array saved by numpy.save"),
    ],
    ids=["empty", "damaged", "blank", "scalar", "widths", "objects"],
)
def test_a_folder_that_cannot_be_read_is_refused(tmp_path, make, said):
    make(tmp_path)
    for folder in (tmp_path, str(tmp_path)):
        with pytest.raises(InputError, match=said):
            run(Sort(2, 4), folder)


@pytest.mark.parametrize("words", [np.array([1.5, 2.5]), np.array([-1, 2])])
def test_what_is_not_words_is_refused(tmp_path, words):
    with pytest.raises(InputError, match="words: got"):
        run(Sort(2, 4), in_folder(tmp_path / "in", words))


def test_missing_values_of_a_table_are_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"word": pyarrow.array([1, None])}), tmp_path / "part.parquet")
    with pytest.raises(InputError, match="1 missing values"):
        run(Sort(2, 4), tmp_path)


def test_an_input_of_another_size_is_refused_before_it_is_read(tmp_path):
    folder = in_folder(tmp_path / "in", np.arange(3, dtype=np.uint64))
    with pytest.raises(InputError, match="words: got 3 records, expected 5"):
        run(Sort(5, 4), folder)
    with pytest.raises(InputError, match="words: got 1 words per record, expected 2 words per record"):
        run(Sort(3, 40, width=2), folder)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "part.parquet").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(AnnattnError, match="Parquet files need the package pyarrow: pip install"):
        run(Sort(2, 4), tmp_path)
