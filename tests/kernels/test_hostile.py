"""Threads, forks, poisoned memory, read-only caches: right answers all the same."""

import contextlib
import errno
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import annattn as aa
from annattn.kernels import hash_pair
from annattn.kernels.numba import compiled, memory, openmp
from annattn.kernels.numba.threads import run_pieces

HASHER = aa.lsh.Hyperplane(8).sample(tables=4, hashes=5, seed=0)


def inputs(n: int = 3000, seed: int = 0):
    query, key, value = torch.randn(3, 1, 2, n, 8, generator=torch.Generator().manual_seed(seed))
    return query, key, value


def test_several_python_threads_at_once_get_the_answers_of_one(monkeypatch):
    monkeypatch.setattr(memory, "_WORTH_KEEPING", 1000)  # so that they pass memory to one another
    cases = [(inputs(seed=seed), causal) for seed in range(4) for causal in (False, True)]

    def attend(case):
        (query, key, value), is_causal = case
        return aa.anna_attention(query, key, value, HASHER, is_causal=is_causal)

    alone = [attend(case) for case in cases]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for got, expected in zip(pool.map(attend, cases), alone, strict=True):
                assert torch.equal(got, expected)


def _attend_in_child(queue, case):
    torch.set_num_threads(2)
    query, key, value = case
    queue.put(aa.anna_attention(query, key, value, HASHER).numpy())


# Python warns that forking a process with threads may deadlock; that it does not here is what is tested.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")
def test_a_forked_child_can_attend_after_its_parent_has():
    case = inputs()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        expected = aa.anna_attention(*case, HASHER)
    finally:
        torch.set_num_threads(threads)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_attend_in_child, args=(queue, case))
    child.start()
    got = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert np.array_equal(got, expected.numpy())


def test_work_buffers_full_of_nan_do_not_show(monkeypatch):
    def poisoned(*shape, dtype=torch.int64):
        return torch.full(shape, torch.nan if dtype.is_floating_point else -(2**60), dtype=dtype)

    case = inputs()
    wide = aa.lsh.Hyperplane(8).sample(tables=3, hashes=40, seed=0)
    expected = [
        aa.anna_attention(*case, hasher, is_causal=causal) for hasher in (HASHER, wide) for causal in (False, True)
    ]
    uneven = aa.anna_attention(case[0], case[1][:, :, :100], case[2][:, :, :100], HASHER, is_causal=True)
    exact = aa.exact_match_attention(case[0].round(), case[1].round(), case[2])
    monkeypatch.setattr(memory, "empty", poisoned)
    again = [
        aa.anna_attention(*case, hasher, is_causal=causal) for hasher in (HASHER, wide) for causal in (False, True)
    ]
    for a, b in zip(expected, again, strict=True):
        assert torch.equal(a, b)
    again_uneven = aa.anna_attention(case[0], case[1][:, :, :100], case[2][:, :, :100], HASHER, is_causal=True)
    assert torch.equal(again_uneven, uneven)
    assert torch.equal(aa.exact_match_attention(case[0].round(), case[1].round(), case[2]), exact)


def test_memory_is_used_again_only_when_nobody_looks_at_it_any_more():
    size = memory._WORTH_KEEPING // 8
    first = memory.empty(size)
    first.fill_(1)
    part, address = first.numpy()[3:5], first.data_ptr()
    del first
    second = memory.empty(size).fill_(2)
    assert second.data_ptr() != address
    assert part.tolist() == [1, 1]
    del part
    third = memory.empty(size // 2, 2)
    assert third.data_ptr() == address
    assert memory.empty(size).data_ptr() not in (address, second.data_ptr())


def test_memory_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(memory, "_kept", deque())
    monkeypatch.setattr(memory, "KEPT", 3 * memory._WORTH_KEEPING)
    held = [memory.empty(memory._WORTH_KEEPING // 8) for _ in range(5)]
    last = held[-1].data_ptr()
    while held:
        held.pop(0)
    assert sum(block.room.nbytes for block in memory._kept) == memory.KEPT
    assert memory.empty(memory._WORTH_KEEPING // 8).data_ptr() == last
    memory.empty(memory.KEPT)  # eight times too large to keep: nothing makes way for it
    assert sum(block.room.nbytes for block in memory._kept) == memory.KEPT


@pytest.mark.parametrize("is_causal", [False, True])
def test_one_bucket_for_all_and_one_for_each(is_causal):
    n = 5000
    same = torch.ones(1, 1, n, 8)
    value = torch.randint(-9, 10, (1, 1, n, 2), generator=torch.Generator().manual_seed(0)).float()
    out = aa.anna_attention(same, same, value, HASHER, is_causal=is_causal)
    running = value.double().cumsum(2) / torch.arange(1, n + 1)[:, None]
    expected = running if is_causal else running[:, :, -1:].expand_as(running)
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)
    apart = torch.arange(n, dtype=torch.float64).reshape(1, 1, n, 1)
    assert torch.equal(aa.exact_match_attention(apart, apart, value, is_causal=is_causal), value)
    fine = aa.lsh.Euclidean(1, width=1e-3).sample(tables=3, hashes=1, seed=0)
    assert torch.equal(aa.anna_attention(apart, apart, value, fine, is_causal=is_causal), value)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 63, 64, 65, 130])
@pytest.mark.parametrize("is_causal", [False, True])
def test_values_of_any_width_and_layout(width, is_causal):
    query, key, _ = inputs(200)
    wide = torch.randint(-9, 10, (1, 2, 200, 300), generator=torch.Generator().manual_seed(1)).float()
    for value in (
        wide[..., 3 : 3 + width],
        wide[..., : 2 * width : 2],
        wide[:, :1, :, :width].expand(1, 2, 200, width),
    ):
        got = aa.anna_attention(query, key, value, HASHER, is_causal=is_causal)
        with aa.kernels.use_backend("torch"):
            expected = aa.anna_attention(query, key, value.contiguous(), HASHER, is_causal=is_causal)
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_an_error_in_a_piece_of_work_reaches_the_caller():
    def work(piece):
        if piece == 3:
            raise KeyError("piece three")

    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with pytest.raises(KeyError, match="piece three"):
                run_pieces(work, 8)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_a_cache_directory_that_cannot_be_written_is_no_obstacle(tmp_path):
    # A file where the directory should be: nobody, not even root, can write below it.
    blocked = tmp_path / "file"
    blocked.write_text("")
    program = (
        "import torch, annattn as aa; h = aa.lsh.Hyperplane(4).sample(tables=2, hashes=2);"
        "x = torch.ones(1, 1, 3, 4); print(aa.anna_attention(x, x, x, h).sum().item())"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(blocked / "below")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "12.0"


def _tiny_kernel(path):
    """A kernel from a file of its own, as a new process would find it."""
    spec = importlib.util.spec_from_file_location("tiny_kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.double


@pytest.mark.slow
def test_damaged_files_of_compiled_kernels_are_replaced_and_a_full_disk_is_no_obstacle(tmp_path, monkeypatch, capsys):
    source = tmp_path / "tiny.py"
    source.write_text(
        "from annattn.kernels.numba.compiled import kernel\n\n\n@kernel\ndef double(x):\n    return 2 * x\n"
    )
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path / "kept"))
    assert _tiny_kernel(source)(3) == 6
    files = [path for path in (tmp_path / "kept").rglob("*") if path.suffix in (".nbi", ".nbc")]
    assert len(files) == 2
    for damaged in files:
        for size in (0, 10, damaged.stat().st_size - 1):
            damaged.write_bytes(damaged.read_bytes()[:size])
            assert _tiny_kernel(source)(3) == 6
            assert damaged.stat().st_size > size  # mended

    # What another file says may be inlined: after an upgrade nothing is taken over from before.
    before = files[0].stat().st_mtime_ns
    monkeypatch.setattr(compiled, "_sources", lambda _: "another version")
    assert _tiny_kernel(source)(3) == 6
    assert files[0].stat().st_mtime_ns > before

    def too_little(*_):
        raise MemoryError

    whole = {path: path.read_bytes() for path in files}
    with monkeypatch.context() as patched:
        patched.setattr("numba.core.caching.IndexDataCacheFile.load", too_little)
        with pytest.raises(MemoryError):
            _tiny_kernel(source)(3)
    assert {path: path.read_bytes() for path in files} == whole  # nothing was wrong with them

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    for name in ("_said", "_saved", "_unsaved", "_said_saved"):
        monkeypatch.setattr(compiled, name, threading.Event())
    compiled._said.set()
    compiled._saved.set()  # there was room for another one
    with compiled.say_if_slow():
        assert _tiny_kernel(source)(2.5) == 5.0
    assert capsys.readouterr().err == ""  # nobody is told that they were kept
    compiled._unsaved.clear()
    with compiled.say_if_slow():
        pass
    assert "kept on disk" in capsys.readouterr().err


def test_flushed_denormals_change_no_code_for_any_number_of_threads():
    rows = torch.randn(1, 4, 4096, 8, generator=torch.Generator().manual_seed(0)) * 1e-40
    expected, threads = HASHER(rows), torch.get_num_threads()
    try:
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor has no such setting")
        for number in (1, 2):
            torch.set_num_threads(number)
            assert torch.equal(hash_pair(HASHER, rows, rows)[0], expected)
            assert (torch.tensor([1e-40]) * 1).item() == 0  # the caller's setting is as it was
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def test_a_kernel_is_known_by_all_files_that_it_is_made_of(monkeypatch):
    def changed(name: str, of: str) -> bool:
        before = compiled._sources.__wrapped__(kernels[of])
        with monkeypatch.context() as patched:
            digest = compiled._digest
            patched.setattr(compiled, "_digest", lambda path: b"new" if path.stem == name else digest(path))
            return compiled._sources.__wrapped__(kernels[of]) != before

    kernels = {path.stem: str(path) for path in Path(compiled.__file__).parent.glob("*.py")}
    for name, of in (("rows", "fold"), ("simd", "fold"), ("fold", "decode"), ("rows", "decode"), ("sums", "sums")):
        assert changed(name, of), (name, of)
    assert changed("tables", "fold")  # constants of kernels/tables.py
    assert not changed("gradient", "fold")
    assert not changed("decode", "rows")


@pytest.mark.parametrize("borrowed", [True, False])
def test_every_piece_is_done_once_and_an_error_of_one_is_raised(borrowed, monkeypatch):
    if not borrowed:
        monkeypatch.setattr(openmp, "_start", None)
    threads, caller, came = torch.get_num_threads(), threading.get_ident(), threading.Event()

    def work(piece: int) -> None:
        # The others wait for the caller, or they might have done everything before it came.
        if threading.get_ident() == caller:
            came.set()
        assert came.wait(60), "the caller does nothing"
        done[piece] += 1
        if piece == bad:
            raise ValueError("broken on purpose")

    try:
        torch.set_num_threads(3)
        for bad in (-1, 5):
            came.clear()
            done = [0] * 50
            with contextlib.nullcontext() if bad < 0 else pytest.raises(ValueError, match="on purpose"):
                run_pieces(work, 50, "a test", borrowed)
            assert came.is_set()
            assert max(done) == 1
            assert bad >= 0 or min(done) == 1
    finally:
        torch.set_num_threads(threads)


def test_torchs_threads_and_others_give_the_same_to_the_bit(monkeypatch):
    case, threads = inputs(), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for is_causal in (False, True):
            borrowed = aa.anna_attention(*case, HASHER, is_causal=is_causal)
            with monkeypatch.context() as patched:
                patched.setattr(openmp, "_start", None)
                assert torch.equal(aa.anna_attention(*case, HASHER, is_causal=is_causal), borrowed)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only there is GNU's library looked for")
def test_the_library_found_is_the_one_that_torch_uses():
    used = {Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines() if "gomp" in line}
    # torch of PyPI brings one. Were it not found, small calls would be slow, and nothing else would tell.
    assert (openmp._find() is not None) == bool(used)
