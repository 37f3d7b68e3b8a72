"""The Ray engine on a real cluster of three nodes that asks for a token, one of which is killed."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

# A process of its own: the tests' process may be connected to another Ray.
CLUSTER = textwrap.dedent(
    """
    import sys
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    others = [cluster.add_node(num_cpus=1) for _ in range(2)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        cluster.remove_node(others.pop(), allow_graceful=False)
        print("killed", flush=True)
    cluster.shutdown()
    """
)

DRIVER = textwrap.dedent(
    """
    import sys
    import numpy as np
    from annattn.errors import AnnattnError
    from annattn.mpc import run
    from annattn.mpc.protocols import Sort

    kill = len(sys.argv) > 2

    def progress(load, rounds):
        if kill and load.round == 3:
            # The test kills a node now, and waits until it is dead.
            print("kill", flush=True)
            sys.stdin.readline()

    sort = Sort(400, 50, width=2)
    words = sort.sample(np.random.default_rng(0))
    try:
        there = run(sort, words, engine="ray", address=sys.argv[1], shards=5, progress=progress)
    except AnnattnError as error:
        sys.exit(f"refused: {error}")
    here = run(sort, words)
    assert here.trace == there.trace and np.array_equal(here.output, there.output)
    import ray, time
    # A short run may end before the cluster has noticed.
    deadline = time.monotonic() + 60
    while kill and sum(node["Alive"] for node in ray.nodes()) == 3 and time.monotonic() < deadline:
        time.sleep(0.5)
    print("equal", sum(node["Alive"] for node in ray.nodes()), flush=True)
    """
)


def environment(token: str) -> dict[str, str]:
    return os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_DEDUP_LOGS": "0"}


def started(program: str, *arguments: str, token: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=environment(token),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.fixture(scope="module")
def nodes():
    """A cluster of three nodes: its address, its token, and a function that kills one of its nodes."""
    token = "a" * 64
    with started(CLUSTER, token=token) as process:
        address = _line_with(process, ":")

        def kill() -> None:
            _tell(process, "kill")
            _line_with(process, "killed")

        yield address, token, kill


def _tell(process: subprocess.Popen, text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def _line_with(process: subprocess.Popen, text: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line.strip()
    raise AssertionError(f"the process ended without {text!r}")


def test_a_cluster_that_asks_for_a_token_is_used_with_it_and_refuses_another(nodes):
    address, token, _ = nodes
    command = [sys.executable, "-c", DRIVER, address]
    ran = subprocess.run(command, env=environment(token), capture_output=True, text=True, timeout=120, check=False)
    assert "equal 3" in ran.stdout, ran.stderr
    ran = subprocess.run(command, env=environment("b" * 64), capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode != 0
    said = [line for line in ran.stderr.splitlines() if line.startswith("refused: ")]
    assert len(said) == 1, ran.stderr
    assert f"engine 'ray' cannot use the cluster at {address}" in said[0]


def test_a_killed_node_changes_nothing_but_the_time(nodes):
    address, token, kill = nodes
    with started(DRIVER, address, "kill", token=token) as process:
        _line_with(process, "kill")
        kill()
        _tell(process, "go on")
        assert _line_with(process, "equal") == "equal 2"
    assert process.returncode == 0
