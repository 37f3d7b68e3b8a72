"""`annattn attend`: the library's answer, from files, whatever the pieces it is worked out in."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import annattn as aa
from tests.outofcore.arrays import numbers, save

SHAPES = {2: (), 3: (3,), 4: (2, 4)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("axes", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_result_is_the_librarys_bit_for_bit(axes, causal, folder, command):
    tensors = save(*SHAPES[axes])
    hasher = aa.lsh.Hyperplane(8).sample(tables=4, hashes=3, seed=7)
    options = ("--tables", 4, "--hashes", 3, "--seed", 7, *(["--causal"] if causal else []))
    code, out, _ = command("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy", *options)
    assert code == 0
    assert out.startswith(f"out.npy: float32 {(*SHAPES[axes], 50, 5)}")
    expected = aa.anna_attention(*tensors, hasher, is_causal=causal)
    assert np.array_equal(np.load("out.npy"), expected.numpy().reshape(*SHAPES[axes], 50, 5))


@pytest.mark.parametrize(
    ("options", "attend"),
    [
        (("--mechanism", "exact_match"), aa.exact_match_attention),
        (("--mechanism", "exact_match", "--causal"), lambda *x: aa.exact_match_attention(*x, is_causal=True)),
        (("--mechanism", "softmax", "--beta", "3", "--tables", 10**12), lambda *x: aa.softmax_attention(*x, beta=3.0)),
        (
            ("--mechanism", "latest_match", "--hashes", "2"),
            lambda q, k, v: aa.latest_match_attention(q, k, v, aa.lsh.Hyperplane(8).sample(tables=8, hashes=2)),
        ),
        (
            ("--family", "cross_polytope", "--hashes", "1"),
            lambda q, k, v: aa.anna_attention(q, k, v, aa.lsh.CrossPolytope(8).sample(tables=8, hashes=1)),
        ),
        (
            ("--family", "euclidean", "--width", "9", "--hashes", "2"),
            lambda q, k, v: aa.anna_attention(q, k, v, aa.lsh.Euclidean(8, 9.0).sample(tables=8, hashes=2)),
        ),
    ],
)
def test_every_mechanism_and_family(options, attend, folder, command):
    query, key, value = save(2, 3)
    query[..., ::2, :] = key[..., ::2, :]
    np.save("q.npy", query.numpy())
    assert command("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy", *options)[0] == 0
    assert np.array_equal(np.load("out.npy"), attend(query, key, value).numpy())


def test_a_masked_key_may_hold_anything(folder, command):
    query, key, value = save(2, 3)
    mask = torch.from_numpy(numbers(2, 50) > 0)
    key[~mask[:, None].expand(2, 3, 50)] = torch.nan
    np.save("k.npy", key.numpy())
    np.save("mask.npy", mask.numpy())
    assert (
        command("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy", "--key-mask", "mask.npy", "--hashes", 3)[0] == 0
    )
    expected = aa.anna_attention(query, key, value, aa.lsh.Hyperplane(8).sample(tables=8, hashes=3), key_mask=mask)
    assert np.array_equal(np.load("out.npy"), expected.numpy())
    assert np.isfinite(np.load("out.npy")).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("files", [1, 3])
def test_safetensors(dtype, files, folder, command):
    tensors: dict[str, torch.Tensor] = {
        name: x.to(dtype) for name, x in zip(("query", "key", "value"), save(2, 3), strict=True)
    }
    if files == 1:
        save_file(tensors, "all.safetensors")
        names = ["all.safetensors"]
    else:
        names = [f"{name}.safetensors" for name in tensors]
        for name, tensor in tensors.items():
            save_file({name: tensor}, f"{name}.safetensors")
    code, out, _ = command("attend", *names, "-o", "out.safetensors", "--hashes", 3, "--json")
    assert code == 0
    assert json.loads(out)["shape"] == [2, 3, 50, 5]
    hasher = aa.lsh.Hyperplane(8).sample(tables=8, hashes=3)
    expected = aa.anna_attention(tensors["query"], tensors["key"], tensors["value"], hasher)
    assert torch.equal(load_file("out.safetensors")["output"], expected)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8"])
def test_any_layout_of_numbers_in_a_file(order, kind, folder, command):
    native = np.dtype(kind).newbyteorder("=")
    query, key, value = save(2, 3, dtype=str(native))
    for name in "qkv":
        np.save(f"{name}.npy", np.asarray(np.load(f"{name}.npy").astype(kind), order=order))
    assert command("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy", "--hashes", 3)[0] == 0
    expected = aa.anna_attention(query, key, value, aa.lsh.Hyperplane(8).sample(tables=8, hashes=3))
    assert np.load("out.npy").dtype == native
    assert np.array_equal(np.load("out.npy"), expected.numpy())


PEAKS = """
import resource, sys
from annattn.cli import main
for folder in ("small_heads", "small_rows", "heads", "rows"):
    files = [f"{folder}/{name}.npy" for name in "qkv"]
    sys.argv = ["annattn", "attend", *files, "-o", f"{folder}/out.npy", "--memory", "16", "--json"]
    try:
        main()
    except SystemExit as left:
        assert left.code == 0
    sys.stderr.write(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}\\n")
"""


@pytest.mark.slow
def test_memory_stays_far_below_the_arrays(folder, process):
    block = numbers(4096, 32)
    shapes = {
        "small_heads": (1, 4096, 32),
        "small_rows": (1, 15 * 4096, 32),
        "heads": (256, 4096, 32),
        "rows": (1, 256 * 4096, 32),
    }
    for name, shape in shapes.items():
        Path(name).mkdir()
        for role in "qkv":
            # Written by the block, so that this process does not hold it either.
            array = np.lib.format.open_memmap(f"{name}/{role}.npy", mode="w+", dtype="float32", shape=shape)
            for part in array.reshape(-1, 4096, 32):
                part[:] = block
    _, errors = (started := process(program=PEAKS)).communicate()
    assert started.returncode == 0, errors
    # Everything counts that the process maps.
    *_, usual, heads, rows = (int(line.split()[1]) for line in errors.splitlines() if line.startswith("peak"))
    sizes = [sum(file.stat().st_size for file in Path(name).iterdir()) >> 20 for name in ("heads", "rows")]
    assert sizes == [512, 512]
    assert rows - usual < 64, f"{usual} MiB for the small ones, then {heads} and {rows} MiB, for {sizes} MiB of arrays"
    # The same keys in every block, so every query finds what it finds in one of them.
    first = np.load("small_heads/out.npy")
    np.testing.assert_allclose(np.load("rows/out.npy", mmap_mode="r")[:, -4096:], first, rtol=1e-5, atol=1e-6)
    assert np.array_equal(np.load("heads/out.npy", mmap_mode="r")[-1:], first)


@pytest.mark.slow
def test_a_run_that_is_told_to_end_leaves_nothing_behind(folder, process):
    save(64, queries=8_000, keys=8_000)
    np.save("out.npy", np.arange(3.0))
    started = process("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy", "--mechanism", "softmax")
    for _ in range(600):
        if any(name.endswith(".partial") for name in os.listdir()):
            break
        time.sleep(0.05)
    started.send_signal(signal.SIGTERM)
    out, errors = started.communicate(timeout=60)
    assert (started.returncode, out, errors) == (130, "", "annattn: interrupted\n")
    assert sorted(os.listdir()) == ["k.npy", "out.npy", "q.npy", "v.npy"]
    assert np.array_equal(np.load("out.npy"), np.arange(3.0))


def test_a_link_stays_a_link_and_what_it_points_to_is_replaced(folder, command):
    save()
    Path("old.npy").write_text("old")
    Path("out.npy").symlink_to("old.npy")
    assert command("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy", "--mechanism", "softmax")[0] == 0
    assert Path("out.npy").is_symlink()
    assert np.load("old.npy").shape == (50, 5)


def truncated(name: str, size: int) -> None:
    Path(name).write_bytes(Path(name).read_bytes()[:size])


def damaged() -> None:
    """Files with one thing wrong each, beside three good ones."""
    query, key, value = save(2, 3)
    np.save("short.npy", value.numpy()[:, :, :7])
    np.save("narrow.npy", key.numpy()[..., :3])
    np.save("flat.npy", np.zeros(3, np.float32))
    np.save("two.npy", key.numpy()[0, 0])
    np.save("whole.npy", key.numpy().astype("int32"))
    np.save("complex.npy", key.numpy().astype("complex64"))
    np.save("words.npy", np.array(["a", "b"]))
    np.save("objects.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    np.save("mask.npy", np.ones((2, 49), bool))
    np.save("counts.npy", np.ones((2, 50)))
    for name, wrong in (("nan", np.nan), ("inf", -np.inf)):
        array = value.numpy().copy()
        array[1, 2, 7, 4] = array[1, 2, 8, 0] = wrong
        np.save(f"{name}.npy", array)
    np.save("cut.npy", value.numpy())
    truncated("cut.npy", 300)
    np.save("stub.npy", value.numpy())
    truncated("stub.npy", 20)
    Path("empty.npy").write_bytes(b"")
    Path("text.npy").write_text("hello")
    save_file({"query": query, "ky": key, "value": value}, "named.safetensors")
    save_file({"query": query, "key": key, "value": value}, "cut.safetensors")
    truncated("cut.safetensors", 900)
    Path("folder.npy").mkdir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nowhere.npy k.npy v.npy", "query: got nowhere.npy, which does not exist"),
        ("folder.npy k.npy v.npy", "query: got folder.npy, a folder"),
        ("q.npz k.npy v.npy", "q.npz, expected a file name that ends in .npy or .safetensors; save each array"),
        ("q.npy k.npy", "input files: got 2 of them"),
        ("q.npy", "input files: got 1 of them"),
        ("q.npy k.npy short.npy", "value: got (batch, heads, n) = (2, 3, 7), expected the key's (2, 3, 50)"),
        ("q.npy narrow.npy v.npy", "key dim: got 3, expected the query's 8"),
        ("flat.npy k.npy v.npy", "shape of query: got (3,), expected (n, dim), (heads, n, dim) or"),
        ("q.npy two.npy v.npy", "shape of key: got (50, 8), expected 4 axes"),
        ("q.npy whole.npy v.npy", "key: got int32 in whole.npy, expected float16"),
        ("q.npy complex.npy v.npy --mechanism exact_match", "key: got complex64 in complex.npy"),
        ("q.npy k.npy whole.npy --mechanism exact_match", "value: got int32 in whole.npy"),
        ("q.npy words.npy v.npy", "words.npy"),
        ("q.npy objects.npy v.npy", "objects.npy, expected a complete .npy file"),
        (
            "q.npy k.npy nan.npy",
            "value: got nan at [1, 2, 7, 4] of nan.npy, expected finite numbers; or leave the key out with --key-mask",
        ),
        ("q.npy k.npy inf.npy", "value: got -inf at [1, 2, 7, 4] of inf.npy, expected finite numbers"),
        ("q.npy k.npy cut.npy", "value: got cut.npy, expected a complete .npy file"),
        ("q.npy k.npy stub.npy", "value: got stub.npy, expected a complete .npy file"),
        ("q.npy k.npy empty.npy", "value: got empty.npy, expected a complete .npy file"),
        ("q.npy k.npy text.npy", "value: got text.npy, expected a complete .npy file"),
        ("named.safetensors", "did you mean ky?"),
        ("cut.safetensors", "cut.safetensors, expected a complete .safetensors file"),
        (
            "q.npy k.npy v.npy --key-mask mask.npy",
            "shape of --key-mask: got (2, 49), expected (batch, n_keys) = (2, 50)",
        ),
        (
            "q.npy k.npy v.npy --key-mask counts.npy",
            "--key-mask: got float64 in counts.npy, expected bool, True where a key takes part",
        ),
        ("q.npy k.npy v.npy --mechanism ana", 'Did you mean "anna"?'),
        ("q.npy k.npy v.npy --tabels 3", "Did you mean --tables?"),
        ("q.npy k.npy v.npy --tables 2.5", "'2.5' is not an integer"),
        ("q.npy k.npy v.npy --tables 0", "tables: got 0"),
        ("q.npy k.npy v.npy --tables 0 --mechanism softmax", "tables: got 0"),
        (f"q.npy k.npy v.npy --tables {10**30}", "more than 64 bits"),
        (f"q.npy k.npy v.npy --tables {10**18}", "heads times tables times hashes times dim: got 64000000000000000000"),
        ("q.npy k.npy v.npy --memory 0", "--memory: got 0, expected an integer of at least 1"),
        ("q.npy k.npy v.npy --width 3", "--width: got 3 with hyperplane"),
        ("q.npy k.npy v.npy -o v.npy", "output: got v.npy, which is an input"),
        ("q.npy k.npy v.npy -o ./folder.npy/../q.npy", "which is an input"),
        ("q.npy k.npy v.npy -o folder.npy", "output: got folder.npy, expected a file"),
        ("q.npy k.npy v.npy -o no/out.npy", "output: got no/out.npy, expected a file in a folder that exists"),
        ("q.npy k.npy v.npy -o out.txt", "output: got out.txt, expected a file name that ends in"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, folder, command):
    damaged()
    before = {name: Path(name).stat().st_mtime_ns for name in os.listdir()}
    words = arguments.split()
    code, out, errors = command("attend", *words, *([] if "-o" in words else ["-o", "out.npy"]))
    assert (code, out) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert {name: Path(name).stat().st_mtime_ns for name in os.listdir()} == before


def test_a_full_disk_is_one_line_and_leaves_nothing(folder, command, monkeypatch):
    save(2, 3)

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    code, _, errors = command("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy")
    assert (code, errors) == (1, "annattn: the disk is full\n")
    assert sorted(os.listdir()) == ["k.npy", "q.npy", "v.npy"]


def test_a_folder_that_may_not_be_written_is_one_line(folder, command):
    save(2, 3)
    Path("closed").mkdir(mode=0o500)
    # Root may write anywhere but where the kernel has no files to make.
    closed = "/sys" if os.geteuid() == 0 else "closed"
    code, _, errors = command("attend", "q.npy", "k.npy", "v.npy", "-o", f"{closed}/out.npy")
    assert code == 2
    assert errors.startswith("annattn: Permission denied")
    assert len(errors.splitlines()) == 1
