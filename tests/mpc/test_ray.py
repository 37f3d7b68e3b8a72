"""What is particular to the Ray engine: shards, clusters, and workers that die. The rest is in test_engines.py."""

import os

import numpy as np
import pytest

from annattn.errors import AnnattnError, InputError
from annattn.mpc import Limits, Mail, PerMachine, Protocol, run, with_partners
from annattn.mpc.engines import ray as ray_engine
from annattn.mpc.protocols import Sort

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("cluster")]


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2, 4, 9])
def test_the_number_of_shards_changes_nothing(shards):
    sort = Sort(200, 80, width=2)
    protocol = with_partners(sort, 3)
    words = sort.sample(np.random.default_rng(0))
    here, there = run(protocol, words), run(protocol, words, engine="ray", shards=shards)
    assert np.array_equal(here.output, there.output)
    assert here.trace == there.trace


def lifted(rule, rounds=2):
    def function(round, machine, inbox):  # noqa: A002
        return rule(machine) if round == rounds - 2 else [(machine, word) for _, (word,) in inbox]

    return PerMachine(function, rounds=rounds, limits=Limits(machines=6, memory_words=4))


def test_what_a_step_raises_says_where_it_was_raised():
    with pytest.raises(ZeroDivisionError) as caught:
        run(lifted(lambda m: 1 // 0), range(9), engine="ray")
    assert "test_ray.py" in str(caught.value.__cause__)


@pytest.mark.parametrize("shards", [0, 2.5, "3"])
def test_a_number_of_shards_that_makes_no_sense_is_refused(shards):
    with pytest.raises(InputError, match="shards: got"):
        run(Sort(20, 20), range(20), engine="ray", shards=shards)


def test_a_cluster_that_cannot_be_reached_is_named(monkeypatch):
    def refuse(**_):
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        AnnattnError, match=r"cannot use the cluster at 192\.0\.2\.1:6379: ConnectionError: nobody there"
    ):
        run(Sort(20, 20), range(20), engine="ray", address="192.0.2.1:6379")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ray.exceptions.AuthenticationError("the token is missing\nset RAY_AUTH_TOKEN"),
            "AuthenticationError: the token",
        ),
        (RuntimeError("Version mismatch: the cluster has Ray 1\nthis process 2"), "RuntimeError: Version mismatch"),
        (ValueError("no such address"), "ValueError: no such address"),
    ],
)
def test_what_ray_says_when_it_refuses_is_passed_on_in_one_line(monkeypatch, error, said):
    def refuse(**_):
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        AnnattnError, match=f"engine 'ray' cannot start Ray, or use the cluster it found: {said}"
    ) as caught:
        run(Sort(20, 20), range(20), engine="ray")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        ray.exceptions.NodeDiedError("the node of the task died\nits logs are there"),
        ray.exceptions.LocalRayletDiedError(),
        ray.exceptions.AuthenticationError("the token expired"),
        ray.exceptions.OutOfMemoryError("a worker was killed: memory is low\nrefer to the docs"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_cluster_that_fails_during_the_run_says_why_in_one_line(monkeypatch, error):
    def lost(_):
        raise error

    monkeypatch.setattr(ray, "get", lost)
    with pytest.raises(
        AnnattnError, match=f"engine 'ray' stopped: {type(error).__name__}: .*; engine 'local'"
    ) as caught:
        run(Sort(20, 20), range(20), engine="ray")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_a_step_may_scribble_on_its_mail_in_a_single_shard():
    class Scribbler(Protocol):
        limits = Limits(machines=2, memory_words=4)
        rounds = 3

        def step(self, round, mail):  # noqa: A002
            mail.words[:] += np.uint64(1)
            return Mail(mail.dest, mail.dest, mail.words)

    assert run(Scribbler(), [1, 2, 3], engine="ray", shards=1).output.tolist() == [4, 5, 6]


def test_a_step_that_always_kills_its_worker_comes_to_an_end(monkeypatch):
    monkeypatch.setattr(ray_engine, "RETRIES", 1)
    with pytest.raises(AnnattnError, match="round 0: a worker died in the same step 2 times"):
        run(lifted(lambda m: os.kill(os.getpid(), 9)), range(9), engine="ray", shards=2)


@pytest.mark.slow
def test_a_killed_worker_changes_nothing_but_the_time(tmp_path):
    mark = str(tmp_path / "killed")

    def function(round, machine, inbox):  # noqa: A002
        if round == 2 and machine == 3 and not os.path.exists(mark):
            with open(mark, "w"):
                pass
            os.kill(os.getpid(), 9)
        return [((machine + round) % 5, word + 1) for _, (word,) in inbox]

    protocol = PerMachine(function, rounds=5, limits=Limits(machines=5, memory_words=4))
    there = run(protocol, range(20), engine="ray", shards=3)
    assert os.path.exists(mark)
    here = run(protocol, range(20))
    assert np.array_equal(here.output, there.output)
    assert here.trace == there.trace
