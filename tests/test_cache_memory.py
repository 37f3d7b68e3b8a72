"""What a cache takes of memory beside what it holds."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import annattn as aa
from annattn.errors import InputError, NoMemoryError
from annattn.kernels import use_backend

HASHER = aa.lsh.Hyperplane(16).sample(tables=8, hashes=16)
RESET = Path("/proc/self/clear_refs")  # Linux forgets the largest size so far when "5" is written there


def filled(backend: str, width: int, tokens: int = 4000, **options) -> aa.BucketCache:
    generator = torch.Generator().manual_seed(0)
    with use_backend(backend):
        cache = aa.BucketCache(HASHER, heads=4, value_dim=width, history=0, **options)
    shape = (options.get("batch", 1), 4, tokens)
    cache.append(torch.randn(*shape, 16, generator=generator), torch.randn(*shape, width, generator=generator))
    return cache


def arrays(cache: aa.BucketCache) -> list:
    tables: Any = cache.state._tables
    return [array for head in tables._heads for array in head.arrays()] if hasattr(tables, "_heads") else [tables._sums]


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def main(backend: str, width: int) -> None:
    """Load a cache in this process; writes what that kept, and what it took at its largest."""
    small, tokens = filled(backend, width, 10), 40_000 // width + 4000
    filled(backend, width, 10).load_state_dict(small.state_dict())  # whatever is loaded or compiled once
    saved = filled(backend, width, tokens).state_dict()
    into = filled(backend, width, 10)
    RESET.write_text("5")
    before = status("VmRSS")
    into.load_state_dict(saved)
    sys.stdout.write(f"{status('VmRSS') - before} {status('VmHWM') - before}")


@pytest.mark.slow
@pytest.mark.skipif(not RESET.exists(), reason="only Linux tells the largest size since a moment")
@pytest.mark.parametrize("width", [1, 64])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_loading_takes_little_more_than_what_is_kept(backend, width):
    call = f"from tests.test_cache_memory import main; main({backend!r}, {width})"
    ended = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)
    kept, largest = map(int, ended.stdout.split())
    assert largest <= 1.25 * kept + 2**22


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_rows_that_stay_where_they_are_are_not_copied(backend):
    cache = filled(backend, 4, 100, batch=2)
    before, held = cache.state.state_dict(), arrays(cache)
    cache.reorder([0, 1])
    cache.reorder(torch.tensor([0, 1]))
    assert all(one is other for one, other in zip(arrays(cache), held, strict=True))
    assert all(torch.equal(before[name], tensor) for name, tensor in cache.state_dict().items())


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_rows_that_change_places_share_their_arrays_until_one_changes(backend):
    cache, query = filled(backend, 4, 100, batch=2), torch.randn(2, 4, 1, 16)
    before, size = cache.attend(query), cache.nbytes
    cache.reorder([1, 1])
    assert cache.nbytes <= size
    torch.testing.assert_close(cache.attend(query[[1, 1]]), before[[1, 1]])


@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_what_does_not_fit_in_memory_is_a_sentence(backend, monkeypatch):
    with use_backend(backend):
        with pytest.raises(InputError, match="batch times heads: got 1048577, expected at most"):
            aa.BucketCache(HASHER, batch=2**20 + 1, value_dim=1)
        with pytest.raises(InputError, match="value_dim"):
            aa.BucketCache(HASHER, value_dim=2**31)
        cache = aa.BucketCache(HASHER, value_dim=4)

    def full(*_):
        if backend == "numba":
            raise MemoryError
        torch.empty(2**60)

    saved = cache.state_dict()
    for name, call in {
        "add": lambda: cache.append(torch.randn(1, 1, 9, 16), torch.randn(1, 1, 9, 4)),
        "select": lambda: cache.reset([0]),
        "load": lambda: cache.load_state_dict(saved),
        "twin": lambda: cache.snapshot(),
    }.items():
        with monkeypatch.context() as patched:
            patched.setattr(type(cache.state._tables), name, full)
            with pytest.raises(NoMemoryError, match="do not fit in memory; take fewer tables"):
                call()


@pytest.mark.parametrize("options", [
    {"history": 2**31 - 1, "value_dim": 64}, {"value_dim": 2**31 - 1, "batch": 2**10, "heads": 2**10},
])  # fmt: skip
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_a_cache_that_no_memory_holds_is_refused_before_it_is_made(backend, options, monkeypatch):
    monkeypatch.setattr("annattn.attention.state.choose", lambda *_: pytest.fail("made"))
    with use_backend(backend), pytest.raises(NoMemoryError, match=r"hash tables of values .* GB are more than the"):
        aa.BucketCache(HASHER, **options)
    with use_backend(backend), pytest.raises(NoMemoryError, match=r"hash tables of values .* GB are more than the"):
        aa.WindowCache(HASHER, window=4, **options)


def test_other_errors_stay_what_they_are(monkeypatch):
    cache = aa.BucketCache(HASHER, value_dim=4)

    def broken(*_):
        raise RuntimeError("something else")

    monkeypatch.setattr(type(cache.state._tables), "add", broken)
    with pytest.raises(RuntimeError, match="something else") as caught:
        cache.append(torch.randn(1, 1, 9, 16), torch.randn(1, 1, 9, 4))
    assert not isinstance(caught.value, MemoryError)


@pytest.mark.parametrize("together", [500, 1])
def test_tokens_that_begin_all_alike_do_not_make_later_ones_expensive(together):
    hasher = aa.lsh.Hyperplane(8).sample(tables=4, hashes=40, seed=0)
    generator = torch.Generator().manual_seed(0)
    alike = torch.randn(3, 8, generator=generator)[torch.randint(3, (500,), generator=generator)]
    unlike = torch.randn(10_000, 8, generator=generator)
    value = torch.randn(1, 1, 10_500, 32, generator=generator)
    whole, rest = (aa.attention.BucketState(hasher, value_dim=32) for _ in range(2))
    for state, key, values in (
        (whole, torch.cat([alike, unlike]), value),
        (rest, unlike, value[:, :, 500:]),
    ):
        for start in range(0, len(key), together):
            piece = slice(start, start + together)
            state.fill(key[None, None, piece], values[:, :, piece])
    assert whole.nbytes < 1.5 * rest.nbytes
    query = torch.cat([alike[:20], unlike[:20]])[None, None]
    key = torch.cat([alike, unlike])[None, None]
    torch.testing.assert_close(whole.read(query).mean().float(), aa.anna_attention(query, key, value, hasher))
