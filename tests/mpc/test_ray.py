"""The Ray engine gives the local engine's output, trace and errors, and outlives its workers."""

import os

import numpy as np
import pytest

from annattn.errors import LimitError
from annattn.mpc import Limits, Mail, PerMachine, Protocol, run, with_partners
from annattn.mpc.protocols import PROTOCOLS, Sort

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_output_and_trace_are_the_local_engines_bit_for_bit(name):
    protocol = PROTOCOLS[name](20, 200)
    words = protocol.sample(np.random.default_rng(0))
    here = run(protocol, words)
    there = run(protocol, words, engine="ray", shards=3)
    assert np.asarray(here.output).tobytes() == np.asarray(there.output).tobytes()
    assert here.trace == there.trace


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


def test_a_step_may_scribble_on_its_mail():
    class Scribbler(Protocol):
        limits = Limits(machines=2, memory_words=4)
        rounds = 3

        def step(self, round, mail):  # noqa: A002
            mail.words[:] += np.uint64(1)
            return Mail(mail.dest, mail.dest, mail.words)

    assert run(Scribbler(), [1, 2, 3], engine="ray", shards=1).output.tolist() == [4, 5, 6]


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
