"""Attention over files: the library's answer, whatever the pieces it is worked out in."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import annattn as aa
from annattn.errors import InputError
from annattn.outofcore import attend
from annattn.outofcore.arrays import ArrayFile, OutputFile
from annattn.outofcore.pieces import Inputs, attend_by_heads, attend_by_rows, needs_rows
from tests.outofcore.arrays import numbers, save

FILES = ("q.npy", "k.npy", "v.npy", "out.npy")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_pieces(run, memory: int, key_mask: torch.Tensor | None = None) -> np.ndarray:
    inputs = opened(key_mask)
    done = []
    with OutputFile(Path("out.npy"), inputs.out_shape, inputs.value.dtype).writing() as out:
        run(inputs, memory, out, done.append)
    assert sum(done) == inputs.rows
    return np.load("out.npy")


def opened(key_mask: torch.Tensor | None = None) -> Inputs:
    query, key, value = (ArrayFile.open(what, Path(f"{what[0]}.npy")) for what in ("query", "key", "value"))
    return Inputs(query, key, value, key_mask)


@pytest.mark.parametrize("memory", [1, 20_000, 2**30])
@pytest.mark.parametrize(("leading", "key_heads"), [((), None), ((6,), 2), ((2, 4), 2)])
def test_heads_taken_in_any_number_give_the_same_bits(memory, leading, key_heads, folder):
    tensors = save(*leading, queries=40, key_heads=key_heads)
    hasher = aa.lsh.Hyperplane(8).sample(tables=4, hashes=3)

    def run(inputs, memory, out, progress):
        attend_by_heads(inputs, lambda q, k, v, m: aa.anna_attention(q, k, v, hasher), 4, memory, out, progress)

    expected = aa.anna_attention(*tensors, hasher).numpy().reshape(*leading, 40, 5)
    assert np.array_equal(in_pieces(run, memory), expected)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1, 30_000, 2**30])
@pytest.mark.parametrize(("queries", "keys"), [(50, 50), (20, 50), (50, 20), (50, 1), (1, 50), (0, 50), (50, 0)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_head_cut_into_blocks_gives_the_true_sums(memory, queries, keys, causal, masked, folder):
    query, key, value = save(2, 4, queries=queries, keys=keys, key_heads=2)
    mask = torch.from_numpy(numbers(2, keys) > 0) if masked else None
    hasher = aa.lsh.Hyperplane(8).sample(tables=4, hashes=3)

    def run(inputs, memory, out, progress):
        attend_by_rows(inputs, hasher, causal, memory, out, progress)

    truth = aa.anna_attention(query, key, value.double(), hasher, is_causal=causal, key_mask=mask)
    # The tables hold sums in float64, so all that is left of rounding is the last step to float32.
    np.testing.assert_allclose(in_pieces(run, memory, mask), truth.numpy(), rtol=2**-23, atol=1e-12)


def test_only_a_large_head_with_small_tables_is_cut(folder):
    save(2, 3)
    inputs = opened()
    small, wide = (aa.lsh.Hyperplane(8).sample(tables=4, hashes=z) for z in (3, 20))
    assert needs_rows(inputs, small, 1000)
    assert not needs_rows(inputs, small, 10**6)
    assert not needs_rows(inputs, wide, 1000)


@pytest.mark.parametrize("memory_bytes", [1, 20_000, 2**30])
def test_progress_grows_from_nothing_to_all(memory_bytes, folder):
    save(2, 4, key_heads=2)
    shares = []
    hasher = aa.lsh.Hyperplane(8).sample(tables=4, hashes=3)
    done = attend(*FILES, hasher=hasher, memory_bytes=memory_bytes, progress=shares.append)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert (done.path, done.shape, done.dtype) == (Path("out.npy"), (2, 4, 50, 5), torch.float32)


def test_no_rows_at_all_give_an_empty_file(folder):
    save(2, queries=0, keys=0)
    assert attend(*FILES, mechanism="softmax").shape == (2, 0, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mechanism": "ana"}, "mechanism: got 'ana', expected one of \"anna\""),
        ({"memory_bytes": 0}, "memory_bytes: got 0, expected an integer of at least 1"),
        ({"is_causal": 1}, "is_causal: got 1, expected True or False"),
        ({"hasher": None}, "hasher: got None, expected a hasher for anna"),
        ({"hasher": None, "mechanism": "latest_match"}, "hasher: got None, expected a hasher for latest_match"),
        ({"key_mask": "v.npy"}, "key_mask: got float32 in v.npy, expected bool"),
        ({"key_mask": "short.npy"}, r"shape of key_mask: got \(1, 49\), expected \(n_keys,\) = \(50,\)"),
        ({"value": "nan.npy"}, r"value: got nan at \[2, 7, 4\] of nan.npy, .*; or leave the key out with key_mask"),
        ({"out": "v.npy"}, "output: got v.npy, which is an input"),
    ],
)
def test_a_mistake_is_named_in_the_librarys_words_and_nothing_is_written(options, message, folder):
    _, _, value = save(3)
    np.save("short.npy", np.ones(49, bool))
    value[0, 2, 7, 4] = torch.nan
    np.save("nan.npy", value[0].numpy())
    before = {name: Path(name).stat().st_mtime_ns for name in os.listdir()}
    files = dict(zip(("query", "key", "value", "out"), FILES, strict=True))
    hasher = aa.lsh.Hyperplane(8).sample(tables=4, hashes=3)
    with pytest.raises(InputError, match=message) as error:
        attend(**{**files, "hasher": hasher, **options})
    assert "--" not in str(error.value)
    assert {name: Path(name).stat().st_mtime_ns for name in os.listdir()} == before
