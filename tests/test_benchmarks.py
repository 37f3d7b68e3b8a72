"""The benchmark's short version: every contender runs, after its answer was found right, and results are written."""

import json

import pytest
from benchmarks import __main__ as bench
from benchmarks import contenders
from benchmarks.measure import exponent


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
    with pytest.raises(AssertionError):
        contenders.CONTENDERS["anna"].make(1024)


def test_the_exponent_of_a_power_law_is_its_power():
    sizes = [10, 100, 1000]
    assert exponent(sizes, [n**1.5 for n in sizes]) == pytest.approx(1.5)
