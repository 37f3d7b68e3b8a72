"""The benchmark's short version: every contender runs, after its answer was found right, and results are written."""

import json

import pytest
from benchmarks import __main__ as bench
from benchmarks import contenders
from benchmarks.memory import extra_memory

from annattn.errors import AnnattnError


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
