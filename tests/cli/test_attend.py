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
from annattn.cli.arrays import Sink, Source
from annattn.cli.streaming import Arrays, attend_by_heads, attend_by_rows, streams

SHAPES = {2: (), 3: (3,), 4: (2, 4)}


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def four(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.reshape((1,) * (4 - x.ndim) + x.shape))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(*leading: int, queries: int = 50, keys: int = 50, dim: int = 8, dtype="float32", key_heads: int | None = None):
    """q.npy, k.npy and v.npy, and what is in them as the library takes it."""
    fewer = leading if key_heads is None else (*leading[:-1], key_heads)
    shapes = ((*leading, queries, dim), (*fewer, keys, dim), (*fewer, keys, 5))
    arrays = [numbers(*shape, seed=at, dtype=dtype) for at, shape in enumerate(shapes)]
    for name, array in zip("qkv", arrays, strict=True):
        np.save(f"{name}.npy", array)
    query, key, value = map(four, arrays)
    return query, key, value


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
        (("--mechanism", "softmax", "--beta", "3"), lambda *x: aa.softmax_attention(*x, beta=3.0)),
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


def in_pieces(run, memory: int, key_mask: torch.Tensor | None = None) -> np.ndarray:
    arrays = opened(key_mask)
    done = []
    with Sink(Path("out.npy"), arrays.out_shape, arrays.value.dtype) as sink:
        run(arrays, memory, sink, done.append)
    assert sum(done) == arrays.rows
    return np.load("out.npy")


def opened(key_mask: torch.Tensor | None = None) -> Arrays:
    query, key, value = (Source.open(what, Path(f"{what[0]}.npy")) for what in ("query", "key", "value"))
    return Arrays(query, key, value, key_mask)


@pytest.mark.parametrize("memory", [1, 20_000, 2**30])
@pytest.mark.parametrize(("leading", "key_heads"), [((), None), ((6,), 2), ((2, 4), 2)])
def test_heads_taken_in_any_number_give_the_same_bits(memory, leading, key_heads, folder):
    tensors = save(*leading, queries=40, key_heads=key_heads)
    hasher = aa.lsh.Hyperplane(8).sample(tables=4, hashes=3)

    def run(arrays, memory, sink, report):
        attend_by_heads(arrays, lambda q, k, v, m: aa.anna_attention(q, k, v, hasher), 4, memory, sink, report)

    expected = aa.anna_attention(*tensors, hasher).numpy().reshape(*leading, 40, 5)
    assert np.array_equal(in_pieces(run, memory), expected)


@pytest.mark.parametrize("memory", [1, 30_000, 2**30])
@pytest.mark.parametrize(("queries", "keys"), [(50, 50), (20, 50), (50, 20), (50, 1), (1, 50), (0, 50), (50, 0)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_head_cut_into_blocks_gives_the_true_sums(memory, queries, keys, causal, masked, folder):
    query, key, value = save(2, 4, queries=queries, keys=keys, key_heads=2)
    mask = torch.from_numpy(numbers(2, keys) > 0) if masked else None
    hasher = aa.lsh.Hyperplane(8).sample(tables=4, hashes=3)

    def run(arrays, memory, sink, report):
        attend_by_rows(arrays, hasher, causal, memory, sink, report)

    truth = aa.anna_attention(query, key, value.double(), hasher, is_causal=causal, key_mask=mask)
    # The tables hold sums in float64, so all that is left of rounding is the last step to float32.
    np.testing.assert_allclose(in_pieces(run, memory, mask), truth.numpy(), rtol=2**-23, atol=1e-12)


def test_only_a_large_head_with_small_tables_is_cut(folder):
    save(2, 3)
    arrays = opened()
    small, wide = (aa.lsh.Hyperplane(8).sample(tables=4, hashes=z) for z in (3, 20))
    assert streams(arrays, small, 1000)
    assert not streams(arrays, small, 10**6)
    assert not streams(arrays, wide, 1000)


def peak(process, *arguments) -> int:
    """MiB that the command held at most, everything it maps included."""
    started = process("attend", *arguments)
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    assert started.returncode == 0, started.communicate()[1]
    started.communicate()
    return used.ru_maxrss // 1024


@pytest.mark.parametrize("shape", [(64, 16_384, 32), (1, 1_048_576, 32)], ids=["many heads", "one head"])
def test_memory_stays_far_below_the_arrays(shape, folder, process):
    for name in "qkv":
        # Made by the block, so that this process does not hold it either.
        array = np.lib.format.open_memmap(f"{name}.npy", mode="w+", dtype="float32", shape=shape)
        for head in array.reshape(64, -1, 32):
            head[:] = numbers(*head.shape)
        del array
    np.save("tiny.npy", numbers(1, 70_000, 32))
    usual = peak(process, "tiny.npy", "tiny.npy", "tiny.npy", "-o", "tiny_out.npy", "--memory", "16")
    large = peak(process, "q.npy", "k.npy", "v.npy", "-o", "out.npy", "--memory", "16")
    size = 4 * os.path.getsize("q.npy") >> 20
    assert size >= 512
    assert large - usual < 64, f"{large} MiB against {usual} MiB, for {size} MiB of arrays"


@pytest.mark.parametrize("ask", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_nothing_behind(ask, folder, process):
    save(64, queries=8_000, keys=8_000)
    np.save("out.npy", np.arange(3.0))
    started = process("attend", "q.npy", "k.npy", "v.npy", "-o", "out.npy", "--mechanism", "softmax")
    for _ in range(600):
        if any(name.endswith(".partial") for name in os.listdir()):
            break
        time.sleep(0.05)
    started.send_signal(ask)
    out, errors = started.communicate(timeout=60)
    assert (started.returncode, out, errors) == (130, "", "annattn: interrupted\n")
    assert sorted(os.listdir()) == ["k.npy", "out.npy", "q.npy", "v.npy"]
    assert np.array_equal(np.load("out.npy"), np.arange(3.0))
