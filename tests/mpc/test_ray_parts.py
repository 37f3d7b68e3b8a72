"""The Ray engine on data that never passes through the driver: folders, datasets, references and checkpoints."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from tests.mpc.test_part_files import in_folder

from annattn.errors import AnnattnError, InputError, OutboxError, WordError
from annattn.mpc import Limits, PartFiles, PerMachine, run, with_partners
from annattn.mpc.engines import ray as ray_engine
from annattn.mpc.protocols import PROTOCOLS, Sort, Sum

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("cluster")]


@pytest.mark.parametrize("name", ["Sort", "Sum", "KHop", "Permute", "AnnaAttention"])
@pytest.mark.parametrize("parquet", [False, True])
def test_a_folder_in_and_a_folder_out_are_as_arrays_on_the_local_engine(tmp_path, name, parquet):
    protocol = PROTOCOLS[name](20, PROTOCOLS[name].least_memory(20))
    words = protocol.sample(np.random.default_rng(0))
    folder = in_folder(tmp_path / "in", *np.split(words, [3, 3, 11]), parquet=parquet)
    here = run(protocol, words)
    there = run(protocol, folder, engine="ray", shards=3, output=tmp_path / "out")
    assert isinstance(there.output, PartFiles)
    written = there.output.whole()
    assert written.tobytes() == np.ascontiguousarray(here.output).tobytes()
    assert there.trace == here.trace
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2])
def test_a_dataset_goes_in_block_by_block(width):
    data = pytest.importorskip("ray.data")
    sort = Sort(50, 60, width=width)
    words = sort.sample(np.random.default_rng(0))
    columns = words.reshape(50, -1).astype(np.int64)
    rows = [{f"word {i}": int(word) for i, word in enumerate(row)} for row in columns % 2**60]
    dataset = data.from_items(rows, override_num_blocks=4)
    given = (columns % 2**60).astype(np.uint64)
    here = run(sort, given[:, 0] if width == 1 else given)
    there = run(sort, dataset, engine="ray", shards=3)
    assert np.array_equal(here.output, there.output)
    assert here.trace == there.trace
    with pytest.raises(InputError, match="a dataset of Ray, expected an array or a folder for 'local'"):
        run(sort, dataset)
    with pytest.raises(InputError, match="words: got 50 records, expected 60"):
        run(Sort(60, 60, width=width), dataset, engine="ray")


def test_an_output_can_stay_in_the_object_store():
    words = Sort(50, 60).sample(np.random.default_rng(0))
    result = run(Sort(50, 60), words, engine="ray", shards=3, references=True)
    assert all(isinstance(one, ray.ObjectRef) for one in result.output)
    assert np.array_equal(np.concatenate(ray.get(result.output)), np.sort(words))
    (total,) = run(Sum(50, 60), words, engine="ray", references=True).output
    assert ray.get(total) == run(Sum(50, 60), words).output
    with pytest.raises(InputError, match="either references or an output folder"):
        run(Sort(50, 60), words, engine="ray", references=True, output="out")


def test_an_input_that_breaks_a_limit_is_refused_as_on_the_local_engine(tmp_path):
    protocol = PerMachine(lambda r, m, inbox: [], rounds=1, limits=Limits(machines=2, memory_words=4, word_bits=4))
    folder = in_folder(tmp_path / "in", np.array([3, 20], np.uint64), np.array([17], np.uint64))
    for engine in ("local", "ray"):
        with pytest.raises(WordError, match="the input, machine 0: sent the word 20"):
            run(protocol, folder, engine=engine, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_much_input_for_one_machine_is_named_though_it_came_in_parts(tmp_path):
    class OnOne(Sort):
        def scatter_part(self, words, first, records):
            mail = super().scatter_part(words, first, records)
            mail.dest[:] = mail.src[:] = 0
            return mail

    folder = in_folder(tmp_path / "in", *np.split(np.arange(50, dtype=np.uint64), 5))
    for engine in ("local", "ray"):
        with pytest.raises(OutboxError) as caught:
            run(OnOne(50, 20), folder, engine=engine)
        assert (caught.value.round, caught.value.machine, caught.value.amount) == (-1, 0, 50)


def test_words_that_are_none_are_refused_by_the_worker_that_reads_them(tmp_path):
    folder = in_folder(tmp_path / "in", np.array([1, 2]), np.array([3, -4]))
    with pytest.raises(InputError, match="words: got -4, expected non-negative integers"):
        run(Sort(4, 4), folder, engine="ray")


@pytest.mark.parametrize("name", ["Sort", "Permute"])
def test_a_part_that_changes_after_it_was_counted_is_refused_and_leaves_no_output(tmp_path, name):
    protocol = PROTOCOLS[name](20, 60)
    words = protocol.sample(np.random.default_rng(0))
    parts = PartFiles.open(in_folder(tmp_path / "in", *np.split(words, [5, 12])))
    for length in (3, 9):
        np.save(parts.paths[1], words[:length])
        with pytest.raises(InputError, match=f"with {length} records, expected the 7 it had when the run began"):
            run(protocol, parts, engine="ray", output=tmp_path / "out")
    parts.paths[1].unlink()
    for options in ({}, {"checkpoints": tmp_path / "kept"}):
        with pytest.raises(InputError, match=r"part: got .*, expected a.*No such file"):
            run(protocol, parts, engine="ray", output=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


DRIVER = textwrap.dedent(
    """
    import os, sys, json, signal
    import numpy as np
    from pathlib import Path
    from annattn.mpc import run
    from annattn.mpc.protocols import Sort

    folder, last, memory = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    seen = []

    def progress(load, rounds):
        seen.append(load.round)
        if load.round == last:
            os.kill(os.getpid(), signal.SIGKILL)

    result = run(
        Sort(300, memory), folder / "in", engine="ray", shards=3, progress=progress,
        output=folder / "out", checkpoints=folder / "kept", address=sys.argv[4],
    )
    print(json.dumps({"seen": seen, "loads": [load.received.tolist() for load in result.trace.loads]}))
    """
)


def drive(folder, last, address, memory=40):
    return subprocess.run(
        [sys.executable, "-c", DRIVER, str(folder), str(last), str(memory), address],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on_from_the_last_finished_round(tmp_path, cluster):
    address = cluster.get_runtime_context().gcs_address
    sort = Sort(300, 40)
    words = sort.sample(np.random.default_rng(0))
    in_folder(tmp_path / "in", *np.split(words, [100, 250]))
    expected = run(sort, words)
    assert drive(tmp_path, 5, address).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    # The report of round 5 comes with round 6, so the mail before round 5 is what was last known to be whole.
    assert json.loads((tmp_path / "kept" / "run.json").read_text())["round"] == 5

    other = drive(tmp_path, -1, address, memory=41)
    assert other.returncode != 0
    assert "of a run with different limits" in other.stderr

    again = drive(tmp_path, -1, address)
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert told["seen"] == list(range(5, sort.rounds))
    assert told["loads"] == [load.received.tolist() for load in expected.trace.loads]
    assert np.array_equal(PartFiles.open(tmp_path / "out").whole(), expected.output)
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_a_run_that_breaks_a_limit_keeps_its_checkpoint_and_a_damaged_one_is_refused(tmp_path):
    def function(round, machine, inbox):  # noqa: A002
        return [(0, word) for _, (word,) in inbox] if round == 3 else [(machine, word) for _, (word,) in inbox]

    protocol = PerMachine(function, rounds=5, limits=Limits(machines=3, memory_words=4))
    for _ in range(2):
        with pytest.raises(AnnattnError, match="round 3, machine 0: received 9 words"):
            run(protocol, range(9), engine="ray", checkpoints=tmp_path / "kept")
    saved = tmp_path / "kept" / "run.json"
    assert json.loads(saved.read_text())["round"] == 3
    saved.write_text("{")
    with pytest.raises(InputError, match=r"run\.json, damaged or missing, .*; remove the folder to start anew"):
        run(protocol, range(9), engine="ray", checkpoints=tmp_path / "kept")


def test_a_lost_piece_of_a_checkpoint_is_an_error_that_says_what_to_do(tmp_path):
    calls = tmp_path / "calls"

    def function(round, machine, inbox):  # noqa: A002
        if round == 2 and not calls.exists():
            raise ValueError("once")
        return [(machine, word + 1) for _, (word,) in inbox]

    protocol = PerMachine(function, rounds=4, limits=Limits(machines=3, memory_words=4))
    with pytest.raises(ValueError, match="once"):
        run(protocol, range(9), engine="ray", shards=2, checkpoints=tmp_path / "kept")
    calls.write_text("")
    kept = tmp_path / "kept"
    about = json.loads((kept / "run.json").read_text())
    other = (kept / "round-00001" / "shard-00000.npz").read_bytes()
    for name, damaged, said in [
        ("round-00001/shard-00001.npz", None, "expected mail that a run saved; .*No such file"),
        ("round-00001/shard-00001.npz", b"", "expected mail that a run saved"),
        ("round-00001/shard-00001.npz", other, "mail for machines that are not 2 to 2"),
        ("loads-00001.npz", None, "loads-00001.npz, damaged or missing"),
        ("loads-00001.npz", b"rubbish", "loads-00001.npz, damaged or missing"),
        ("loads-00001.npz", other, "loads-00001.npz, damaged or missing"),
        ("run.json", json.dumps({**about, "round": 99}).encode(), "run.json, damaged"),
        ("run.json", json.dumps({**about, "whose": 3}).encode(), "run.json, damaged"),
    ]:
        whole = (kept / name).read_bytes()
        (kept / name).unlink() if damaged is None else (kept / name).write_bytes(damaged)
        with pytest.raises(InputError, match=f"{said}.*remove the folder to start anew"):
            run(protocol, range(9), engine="ray", shards=2, checkpoints=kept)
        (kept / name).write_bytes(whole)
    for shards, words, differs in [(3, range(9), "shards"), (2, range(1, 10), "input")]:
        with pytest.raises(InputError, match=f"kept, of a run with different {differs}, expected an empty folder"):
            run(protocol, words, engine="ray", shards=shards, checkpoints=kept)
    result = run(protocol, range(9), engine="ray", shards=2, checkpoints=tmp_path / "kept")
    assert result.output.tolist() == [number + 4 for number in range(9)]
    assert result.trace == run(protocol, range(9)).trace
    assert not (tmp_path / "kept").exists()


def test_the_driver_reads_reports_of_the_size_of_one_round_whatever_the_shards(monkeypatch):
    protocol = with_partners(Sort(200, 80), 3)
    words = Sort(200, 80).sample(np.random.default_rng(0))
    read = []
    get = ray.get

    def counting(refs):
        found = get(refs)
        for report in found if isinstance(found, list) else []:
            if isinstance(report, ray_engine.Report):
                read.append(report.sent.size + report.received.size)
        return found

    totals = []
    for shards in (2, 6):
        read.clear()
        monkeypatch.setattr(ray, "get", counting)
        run(protocol, words, engine="ray", shards=shards)
        totals.append(sum(read))
    assert totals[0] == totals[1] == 2 * protocol.rounds * protocol.limits.machines + protocol.limits.machines
