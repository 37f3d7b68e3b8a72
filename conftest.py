"""Names that docstring examples use without importing them, and which tests are slow for what they share."""

import importlib.util
import os

import pytest
import torch

# Triton decides when it is imported whether its kernels are interpreted; nothing else here uses it.
os.environ["TRITON_INTERPRET"] = "1"
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/annattn/kernels/triton/*"]

# Fixtures that measure, build or start something once for many tests: whoever asks for one first waits for it.
SLOW_FIXTURES = {"built", "cluster", "numbers", "pool", "results"}
# A docstring cannot carry a mark. These examples draw, measure, or sum up a table of probabilities.
SLOW_EXAMPLES = (
    "annattn.data.fetching.",
    "annattn.measure.contender_costs.",
    "annattn.experiments.figures.",
    "annattn.report.",
    "annattn.theorems.",
    "annattn.lsh.cross_polytope_probability.rotation_probability",
    "annattn.lsh.cross_polytope.CrossPolytope.log_slope",
)


def pytest_collection_modifyitems(items):
    """Mark what is slow for its fixtures, and the slow examples."""
    for item in items:
        # A test over all engines asks for the cluster only when Ray's turn comes; Triton's kernels are interpreted.
        asked = SLOW_FIXTURES & set(getattr(item, "fixturenames", ())) or "[ray" in item.name or "triton" in item.name
        if asked or (isinstance(item, pytest.DoctestItem) and item.name.startswith(SLOW_EXAMPLES)):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace["torch"] = torch
