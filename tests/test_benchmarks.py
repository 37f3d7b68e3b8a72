"""The benchmark's short version: every contender runs, after its answer was found right, and results are written."""

import json
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from benchmarks import __main__ as bench
from benchmarks import around, contenders, cuda, grid
from benchmarks.memory import extra_memory
from rich.console import Console

import annattn as aa
from annattn.errors import AnnattnError
from annattn.measure import MATCH
from annattn.measure.gpu import GPUS


@pytest.mark.slow
def test_the_short_run_measures_our_contenders_and_writes_results(tmp_path, monkeypatch, capsys):
    ours = {name: contender for name, contender in contenders.CONTENDERS.items() if not contender.is_peer}
    ours["softmax"] = contenders.CONTENDERS["softmax"]
    monkeypatch.setattr(bench, "CONTENDERS", ours)
    monkeypatch.setattr("sys.argv", ["benchmarks", "--quick", "--out", str(tmp_path)])
    bench.main()
    assert "ANNA, causal" in capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["seconds"]) == set(ours)
    assert all(set(known) == {"1024", "2048", "4096", "8192"} for known in results["seconds"].values())
    assert results["machine"]["versions"]["torch"]


def test_a_wrong_answer_is_not_timed(monkeypatch):
    right = contenders.aa.anna_attention
    monkeypatch.setattr(contenders.aa, "anna_attention", lambda *args, **options: 1.01 * right(*args, **options))
    with pytest.raises(AnnattnError, match="ANNA: an answer is wrong by"):
        contenders.CONTENDERS["anna"].make(1024)


@pytest.mark.slow
def test_extra_memory_is_at_least_the_output():
    n = 65_536
    assert extra_memory("anna", n) >= 4 * n * contenders.DIM


def test_without_a_gpu_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["benchmarks", "--device", "cuda"])
    with pytest.raises(SystemExit) as left:
        bench.main()
    assert left.value.code == 1
    assert capsys.readouterr().out.splitlines() == ["there is no CUDA here: torch sees no GPU, so nothing was measured"]


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(not find_spec("triton"), reason="Triton is not installed")
def test_every_call_of_the_gpu_benchmark_runs_and_is_right_in_the_interpreter(monkeypatch, capsys):
    """All but the clock and the CUDA graph; the times mean nothing."""
    monkeypatch.setattr(cuda, "HEADS", 1)
    monkeypatch.setattr(cuda, "hyperplanes", lambda: aa.lsh.Hyperplane(contenders.DIM).sample(tables=1, hashes=2))

    def clock(call):
        call()
        return 0.125

    table = cuda.table_of(cuda.every_row(GPUS["A100"], "cpu", (5,)), clock, "in the interpreter")
    Console(width=100).print(table)
    said = capsys.readouterr().out
    for label in ("ANNA", "ANNA, causal, backward, values", "ANNA, backward, all", "window of 256, backward", "step"):
        assert label in said
    assert said.count("125.000") == len(table.rows) == 10


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(not find_spec("triton"), reason="Triton is not installed")
def test_a_wrong_kernel_is_not_timed(monkeypatch):
    from annattn.kernels.triton.backend import TritonBackend

    right = TritonBackend.band
    monkeypatch.setattr(TritonBackend, "band", lambda self, inputs: [1.01 * x for x in right(self, inputs)])
    with pytest.raises(AssertionError):
        cuda.table_of(cuda._window(GPUS["A100"], "cpu", 20), lambda call: 0.0, "")


@pytest.mark.slow
def test_the_grid_checks_and_times_a_shape():
    found = grid.measure(grid.Shape(batch=2, heads=2, n=40, dim=8, tables=3, hashes=4))
    assert set(found) == set(grid.COLUMNS)
    assert all(times["ratio"] == times["softmax"] / times["ANNA"] for times in found.values())


def test_the_grid_refuses_a_wrong_answer(monkeypatch):
    right = aa.anna_attention
    monkeypatch.setattr(aa, "anna_attention", lambda q, k, v, h, **options: right(q, k, v, h, **options) + 0.01 * v)
    with pytest.raises((AssertionError, AnnattnError)):
        grid.calls(grid.Shape(batch=1, heads=1, n=40, dim=8, tables=3, hashes=4))


def test_the_grid_checks_latest_and_exact_match_too(monkeypatch):
    shape = grid.Shape(batch=2, heads=2, n=40, dim=8, tables=3, hashes=4)
    assert len(grid.match_calls(shape)) == 5
    for name in ("latest_match_attention", "exact_match_attention"):
        right = getattr(aa, name)
        with monkeypatch.context() as patch:
            patch.setattr(aa, name, lambda *inputs, right=right, **options: right(*inputs, **options) + 0.01)
            with pytest.raises(AnnattnError):
                grid.match_calls(shape)


def test_stated_accuracy_is_what_draws_show():
    shape = grid.Shape(batch=1, heads=1, n=500, dim=32, tables=4, hashes=8)
    stated = grid.accuracy_of(shape)
    # The mean of a quotient lies a little above the quotient of the means.
    assert 1 < grid.measured_share(shape) / stated.share < 1.15
    query, noise = torch.randn(2, 4000, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    query = query / query.norm(dim=-1, keepdim=True)
    noise = noise - (noise * query).sum(-1, keepdim=True) * query
    near = MATCH * query + (1 - MATCH**2) ** 0.5 * noise / noise.norm(dim=-1, keepdim=True)
    missed = []
    for seed in range(20):
        hasher = aa.lsh.Hyperplane(32).sample(tables=1, hashes=8, seed=seed)
        missed.append((hasher(query) != hasher(near)).all(-1).double().mean().item())
    one_table = grid.accuracy_of(grid.Shape(1, 1, 500, 32, tables=1, hashes=8)).missed
    assert sum(missed) / 20 == pytest.approx(one_table, rel=0.05)


def test_calls_around_the_grid_are_checked_and_timed(monkeypatch, capsys):
    small = around.Case(n=20, heads=4, key_heads=2, dim=8, value_dim=5, tables=2, hashes=3)
    monkeypatch.setattr(around, "CASES", {"small": small, "large": around.PLAIN})
    monkeypatch.setattr(around, "_ENOUGH", 0)
    monkeypatch.setattr("sys.argv", ["around", "--only", "small"])
    around.main()
    printed = capsys.readouterr().out
    assert "small" in printed
    assert "large" not in printed
    right = around.aa.anna_attention
    monkeypatch.setattr(around.aa, "anna_attention", lambda *args, **options: right(*args, **options) + 0.1)
    with pytest.raises(AssertionError, match="not close"):
        around.main()


@pytest.mark.parametrize(
    "name", ["around", "cache", "context_parallel", "grid", "hashing", "real_text", "shared_hashes", "window"]
)
def test_a_benchmark_has_help_and_measures_nothing_for_it(name, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        import_module(f"benchmarks.{name}").main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")
