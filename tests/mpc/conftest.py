import importlib

import pytest


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, or a skip where it is not installed."""
    pytest.importorskip("ray")
    ray = importlib.import_module("ray")
    # A cluster of its own, whatever others on this machine have left or run.
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def ready(request):
    """A function that makes an engine ready to run: Ray needs a cluster."""
    return lambda engine: request.getfixturevalue("cluster") if engine == "ray" else None
