import os

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("fuzz", settings.get_profile("default"), max_examples=30, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True, scope="session")
def _one_thread_per_worker():
    """Parallel test workers that each use every core would only slow each other down."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
