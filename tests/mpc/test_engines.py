"""Every engine of ENGINES gives what machines run one at a time give, and enforces the limits."""

import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from annattn import errors
from annattn.errors import InputError
from annattn.mpc import ENGINES, Engine, Limits, Mail, PerMachine, Protocol, run, with_partners
from annattn.mpc.engines import engine_named
from annattn.mpc.protocols import PROTOCOLS, ExactMatchAttention, Sort

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=list(ENGINES))
def engine(request, ready):
    ready(request.param)
    return request.param


def one_machine_at_a_time(protocol: Protocol, words: Any) -> tuple[Any, list[dict[int, int]], list[dict[int, int]]]:
    """The model, literally: the output, and per round the words each machine sent and received.

    Inboxes are lists, each ordered by sender; every machine gets a call of `step` of its own.
    """
    first = protocol.scatter(np.array(words, np.uint64))
    records = list(zip(first.dest.tolist(), first.src.tolist(), first.words.tolist(), strict=True))
    sent, received = [], []
    for round_ in range(protocol.rounds):
        records.sort(key=lambda record: record[:2])
        outgoing = []
        for machine in sorted({dest for dest, _, _ in records}):
            mail = protocol.step(round_, as_mail([record for record in records if record[0] == machine]))
            outgoing += zip(mail.dest.tolist(), mail.src.tolist(), mail.words.tolist(), strict=True)
        records = outgoing
        sent.append(words_at([src for _, src, _ in records], records))
        received.append(words_at([dest for dest, _, _ in records], records))
    records.sort(key=lambda record: record[:2])
    return protocol.gather(as_mail(records)), sent, received


def as_mail(records: list[tuple[int, int, list[int]]]) -> Mail:
    if not records:
        return Mail([], [], [])
    dest, src, words = zip(*records, strict=True)
    return Mail(dest, src, np.array(words, np.uint64))


def words_at(machines: list[int], records: list[tuple[int, int, list[int]]]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for machine, (_, _, words) in zip(machines, records, strict=True):
        total[machine] += len(words)
    return dict(total)


def nonzero(load: np.ndarray) -> dict[int, int]:
    return {int(machine): int(load[machine]) for machine in np.flatnonzero(load)}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_output_and_trace_are_those_of_machines_run_one_at_a_time_and_of_the_local_engine(name, engine):
    protocol = PROTOCOLS[name](20, 3 * PROTOCOLS[name].least_memory(20))
    words = protocol.sample(np.random.default_rng(0))
    output, sent, received = one_machine_at_a_time(protocol, words)
    result = run(protocol, words, engine=engine)
    assert np.asarray(result.output).tobytes() == np.asarray(output).tobytes()
    assert [nonzero(load.sent) for load in result.trace.loads] == sent
    assert [nonzero(load.received) for load in result.trace.loads] == received
    assert result.trace == run(protocol, words).trace


BREACHES = {
    "OutboxError": (lambda m: [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)], 0, 4, 5),
    "InboxError": (lambda m: [(3, 1)] * (2 if m < 2 else 1), 3, 4, 5),
    "WordError": (lambda m: [(m, 256 if m == 1 else 255)], 1, 255, 256),
    "DestinationError": (lambda m: [(7 if m == 1 else m, 1)], 1, 5, 7),
    "PartnersError": (lambda m: [(0, 1), (2, 1), (4, 1), (1, 1)] if m == 1 else [], 1, 2, 3),
}


def breaking(rule) -> PerMachine:
    """A protocol that obeys its limits in rounds 0 and 2, and the rule in round 1."""

    def function(round, machine, inbox):  # noqa: A002
        return rule(machine) if round == 1 else [(machine, word) for _, (word,) in inbox]

    return PerMachine(function, rounds=3, limits=Limits(machines=6, memory_words=4, word_bits=8, partners=2))


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_names_round_machine_limit_and_amount(name, engine):
    rule, machine, limit, amount = BREACHES[name]
    with pytest.raises(getattr(errors, name)) as caught:
        run(breaking(rule), range(9), engine=engine)
    error = caught.value
    assert (error.round, error.machine, error.limit, error.amount) == (1, machine, limit, amount)


@pytest.mark.parametrize("words", [[300], list(range(9)) * 3])
def test_the_input_is_held_to_the_limits(words, engine):
    with pytest.raises(errors.LimitError, match="the input"):
        run(breaking(lambda m: []), words, engine=engine)


def test_a_machine_without_mail_stays_silent(engine):
    class Forger(Protocol):
        limits = Limits(machines=3, memory_words=4)
        rounds = 1

        def step(self, round, mail):  # noqa: A002
            return Mail([0], [2], [[1]])

    with pytest.raises(errors.SourceError) as caught:
        run(Forger(), [5], engine=engine)
    assert caught.value.machine == 2


def outcome(protocol, words, engine):
    """What a run gives or raises, to be compared."""
    try:
        result = run(protocol, words, engine=engine)
    except Exception as error:
        return type(error), str(error), vars(error)
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
        breaking(lambda m: [(3, 1), (3, 1)]),
        breaking(lambda m: [(m, 256 if m > 0 else 255)]),
        breaking(lambda m: [(7 + m, 1)]),
        breaking(lambda m: [(4, 1)]),
    ],
    ids=[
        "raises",
        "raises on one",
        "two lengths",
        "a length per machine",
        "silence",
        "inner limit",
        "full inbox",
        "large words",
        "no such machines",
        "many senders",
    ],
)
def test_whatever_a_step_does_comes_out_as_on_the_local_engine(protocol, engine):
    assert outcome(protocol, range(9), engine) == outcome(protocol, range(9), "local")


@pytest.mark.parametrize(("query", "key"), [(np.nan, 1), (np.nan, np.nan)])
def test_attention_in_which_nobody_takes_part(query, key, engine):
    protocol = ExactMatchAttention(3, 60, value_dim=2)
    words = protocol.encode(np.full((3, 1), query), np.full((3, 1), key), np.ones((3, 2)))
    assert run(protocol, words, engine=engine).output.tolist() == [[0, 0]] * 3


def test_a_step_may_scribble_on_its_mail_and_the_input_stays(engine):
    class Scribbler(Protocol):
        limits = Limits(machines=2, memory_words=4)
        rounds = 3

        def step(self, round, mail):  # noqa: A002
            mail.words[:] += np.uint64(1)
            return Mail(mail.dest, mail.dest, mail.words)

    words = np.array([1, 2, 3], np.uint64)
    assert run(Scribbler(), words, engine=engine).output.tolist() == [4, 5, 6]
    assert words.tolist() == [1, 2, 3]


def test_progress_is_told_once_per_round(engine):
    seen = []
    result = run(Sort(20, 20), range(20), engine=engine, progress=lambda load, rounds: seen.append((load, rounds)))
    assert seen == [(load, result.trace.rounds) for load in result.trace.loads]


def test_an_option_it_does_not_have_is_refused(engine):
    with pytest.raises(InputError, match=f"option: got 'speed', expected one that the engine '{engine}' has"):
        run(Sort(20, 20), range(20), engine=engine, speed=3)


@pytest.mark.parametrize("name", ENGINES)
def test_an_entry_is_an_engine(name):
    assert issubclass(engine_named(name), Engine)


def test_the_local_engine_imports_nothing_of_ray():
    program = (
        "import sys\n"
        "from annattn.mpc import run\n"
        "from annattn.mpc.protocols import Sum\n"
        "run(Sum(5, 2), range(5))\n"
        "assert not [name for name in sys.modules if name.split('.')[-1] == 'ray'], 'ray was imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
