"""Small results, measured once for all tests of the page."""

from typing import Any

import pytest

from annattn.measure import measure_speed
from annattn.report import make_results
from annattn.report.attention import pictures
from annattn.report.models import errors
from annattn.report.needles import needles
from annattn.report.recall import recall
from annattn.report.theorems import rows
from annattn.report.theory import k_hop


@pytest.fixture(scope="session")
def results() -> dict[str, Any]:
    parts = {
        "speed": measure_speed([256, 512], tables=2, hashes=4, dim=16),
        "attention": pictures(tokens=12),
        "models": errors(samples=1, draws=2),
        "recall": recall(lengths=(256, 1024)),
        "needles": needles(lengths=(1024, 2048)),
        "theory": k_hop(n=27, k=2, memory_words=18, words=1),
        "theorems": rows(effort="tiny", names=["match2", "mpc-simulates-ema"]),
    }
    return make_results(parts)
