"""`annattn doctor`: every backend is right, absent for a reason, or found out."""

import json

from annattn.kernels import BACKENDS, dispatch
from annattn.kernels.torch.backend import TorchBackend


def test_every_backend_is_right_or_says_why_it_is_not_here(command, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    code, out, _ = command("doctor", "--json")
    found = json.loads(out)
    assert code == 0
    assert set(found["backends"]) == set(BACKENDS)
    assert found["backends"]["numba"]["state"] == found["backends"]["torch"]["state"] == "right"
    if found["gpu"] is None:
        assert found["backends"]["triton"]["state"] == "not here"
        assert found["backends"]["triton"]["why"]
    assert found["machine"]["threads"] >= 1
    assert set(found["kernels"]) == {"numba", "triton"}


class _Wrong(TorchBackend):
    def bucket_mean(self, inputs):
        mean, count = super().bucket_mean(inputs)
        return 1.01 * mean, count


def test_a_wrong_backend_is_found_out(command, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setitem(dispatch._loaded, "numba", _Wrong())
    code, out, _ = command("doctor")
    assert code == 1
    assert "backend numba: wrong: AnnattnError: numba: an answer is wrong by" in out
    assert "backend torch: right on cpu" in out
