"""The Ray engine gives the local engine's output, trace and errors, and outlives its workers."""

import os

import numpy as np
import pytest

from annattn.errors import AnnattnError, InputError, LimitError
from annattn.mpc import Limits, Mail, PerMachine, Protocol, ray_engine, run, with_partners
from annattn.mpc.protocols import PROTOCOLS, ExactMatchAttention, Sort

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROTOCOLS)
def test_output_and_trace_are_the_local_engines_bit_for_bit(name):
    protocol = PROTOCOLS[name](20, 200)
    words = protocol.sample(np.random.default_rng(0))
    here = run(protocol, words)
    there = run(protocol, words, engine="ray", shards=3)
    assert np.asarray(here.output).tobytes() == np.asarray(there.output).tobytes()
    assert here.trace == there.trace


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2, 4, 9])
def test_the_number_of_shards_changes_nothing(shards):
    sort = Sort(200, 80, width=2)
    protocol = with_partners(sort, 3)
    words = sort.sample(np.random.default_rng(0))
    here, there = run(protocol, words), run(protocol, words, engine="ray", shards=shards)
    assert np.array_equal(here.output, there.output)
    assert here.trace == there.trace


@pytest.mark.parametrize(
    "rule",
    [
        lambda m: [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)],
        lambda m: [(3, 1), (3, 1)],
        lambda m: [(m, 256 if m > 0 else 255)],
        lambda m: [(7 + m, 1)],
        lambda m: [(0, 1), (2, 1), (4, 1), (1, 1)] if m == 1 else [],
        lambda m: [(4, 1)],
    ],
)
def test_errors_are_the_local_engines(rule):
    def function(round, machine, inbox):  # noqa: A002
        return rule(machine) if round == 1 else [(machine, word) for _, (word,) in inbox]

    protocol = PerMachine(function, rounds=3, limits=Limits(machines=6, memory_words=4, word_bits=8, partners=2))
    caught = []
    for engine in ("local", "ray"):
        with pytest.raises(LimitError) as error:
            run(protocol, range(9), engine=engine)
        caught.append((type(error.value), vars(error.value), str(error.value)))
    assert caught[0] == caught[1]


def outcome(protocol, words, engine):
    """What a run gives or raises, to be compared."""
    try:
        result = run(protocol, words, engine=engine)
    except Exception as error:
        return type(error), str(error)
    return np.asarray(result.output).shape, np.asarray(result.output).tobytes(), result.trace


def lifted(rule, rounds=2):
    def function(round, machine, inbox):  # noqa: A002
        return rule(machine) if round == rounds - 2 else [(machine, word) for _, (word,) in inbox]

    return PerMachine(function, rounds=rounds, limits=Limits(machines=6, memory_words=4))


@pytest.mark.parametrize(
    "protocol",
    [
        lifted(lambda m: 1 // 0),
        lifted(lambda m: 1 // (m - 1) and []),
        lifted(lambda m: [(0, 1), (0, (1, 2))]),
        lifted(lambda m: [(m, 1)] if m == 0 else [(m, (1, 2))]),
        lifted(lambda m: []),
        with_partners(lifted(lambda m: [(0, 1)] * 4, rounds=3), 2, memory_words=1000),
    ],
    ids=["raises", "raises on one", "two lengths", "a length a machine", "silence", "inner limit"],
)
def test_whatever_a_step_does_comes_out_as_on_the_local_engine(protocol):
    assert outcome(protocol, range(9), "ray") == outcome(protocol, range(9), "local")


def test_what_a_step_raises_says_where_it_was_raised():
    with pytest.raises(ZeroDivisionError) as caught:
        run(lifted(lambda m: 1 // 0), range(9), engine="ray")
    assert "test_ray.py" in str(caught.value.__cause__)


@pytest.mark.parametrize(("query", "key"), [(np.nan, 1), (np.nan, np.nan)])
def test_attention_in_which_nobody_takes_part(query, key):
    protocol = ExactMatchAttention(3, 60, value_dim=2)
    words = protocol.encode(np.full((3, 1), query), np.full((3, 1), key), np.ones((3, 2)))
    assert outcome(protocol, words, "ray") == outcome(protocol, words, "local")


@pytest.mark.parametrize("shards", [0, 2.5, "3"])
def test_a_number_of_shards_that_makes_no_sense_is_refused(shards):
    with pytest.raises(InputError, match="shards: got"):
        run(Sort(20, 20), range(20), engine="ray", shards=shards)


def test_a_cluster_that_cannot_be_reached_is_named(monkeypatch):
    def refuse(**_):
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(AnnattnError, match=r"cannot use the cluster at 192\.0\.2\.1:6379"):
        run(Sort(20, 20), range(20), engine="ray", address="192.0.2.1:6379")


def test_a_step_may_scribble_on_its_mail():
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
