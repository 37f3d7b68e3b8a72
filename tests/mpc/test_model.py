"""Limits are law: every breach is found and named, and a step that peeks is caught."""

import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annattn import errors, mpc
from annattn.errors import InputError, LimitError, ShardingError
from annattn.mpc import (
    Limits,
    Mail,
    PerMachine,
    Protocol,
    RoundLoad,
    Trace,
    as_words,
    check_sharding,
    real_words,
    run,
    word_reals,
)
from annattn.mpc.protocols import Sort, Sum

BREACHES = {
    "OutboxError": (lambda m, inbox: [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)], 4, 5),
    "InboxError": (lambda m, inbox: [(3, 1)] * (2 if m < 2 else 1), 4, 5),
    "WordError": (lambda m, inbox: [(m, 256 if m == 1 else 255)], 255, 256),
    "DestinationError": (lambda m, inbox: [(7 if m == 1 else m, 1)], 5, 7),
    "PartnersError": (lambda m, inbox: [(0, 1), (2, 1), (4, 1), (1, 1)] if m == 1 else [], 2, 3),
}


def breaking(rule, when: int = 2) -> PerMachine:
    def function(round, machine, inbox):  # noqa: A002
        return rule(machine, inbox) if round == when else [(machine, word) for _, (word,) in inbox]

    return PerMachine(function, rounds=4, limits=Limits(machines=6, memory_words=4, word_bits=8, partners=2))


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_names_round_machine_limit_and_amount(name):
    rule, limit, amount = BREACHES[name]
    with pytest.raises(getattr(errors, name), match=f"{amount}.*{limit}") as caught:
        run(breaking(rule), range(9))
    error = caught.value
    assert isinstance(error, LimitError)
    assert (error.round, error.limit, error.amount) == (2, limit, amount)
    assert error.machine == {"OutboxError": 0, "InboxError": 3}.get(name, 1)


def test_a_record_costs_as_many_words_as_it_has():
    with pytest.raises(errors.OutboxError) as caught:
        run(breaking(lambda m, inbox: [(3, (1, 2)), (4, (1, 2)), (5, (1, 2))] if m == 1 else [(m, (1, 2))]), range(9))
    assert (caught.value.machine, caught.value.amount) == (1, 6)


def test_hearing_from_too_many_machines_is_a_breach_too():
    with pytest.raises(errors.PartnersError) as caught:
        run(breaking(lambda m, inbox: [(4, 1)]), range(12))
    assert (caught.value.machine, caught.value.amount) == (4, 3)


def test_a_negative_destination_is_a_breach():
    with pytest.raises(errors.DestinationError) as caught:
        run(breaking(lambda m, inbox: [(-1, 1)]), range(9))
    assert caught.value.amount == -1


def test_mail_to_oneself_has_no_partner():
    run(breaking(lambda m, inbox: [(m, 1), ((m + 1) % 3, 2), ((m + 2) % 3, 2)]), range(9))


class Forger(Protocol):
    limits = Limits(machines=3, memory_words=4)
    rounds = 1

    def __init__(self, src: int) -> None:
        self.src = src

    def step(self, round, mail):  # noqa: A002
        return Mail([0], [self.src], [[1]])


@pytest.mark.parametrize("src", [2, 3, -1])
def test_a_machine_without_mail_stays_silent(src):
    with pytest.raises(errors.SourceError) as caught:
        run(Forger(src), [5])
    assert caught.value.machine == src


@pytest.mark.parametrize(("words", "name"), [([300], "WordError"), (list(range(9)) * 3, "DestinationError")])
def test_the_input_is_held_to_the_limits(words, name):
    with pytest.raises(getattr(errors, name), match="the input"):
        run(breaking(lambda m, inbox: []), words)


def test_exactly_the_limit_is_allowed_everywhere():
    everything_to_one = PerMachine(
        lambda _, machine, inbox: [(0, word) for _, (word,) in inbox],
        rounds=2,
        limits=Limits(machines=4, memory_words=8, word_bits=3),
    )
    result = run(everything_to_one, [7] * 8)
    assert result.output.tolist() == [7] * 8
    assert result.trace.loads[1].inbox == 8


class Peeking(Protocol):
    """Each machine sends the largest word of all machines, or only the number of them."""

    limits = Limits(machines=4, memory_words=4)
    rounds = 3

    def __init__(self, peek) -> None:
        self.peek = peek

    def step(self, round, mail):  # noqa: A002
        words = mail.words.copy()
        if round == 1:
            words[:, 0] = self.peek(mail)
        return Mail(mail.dest, mail.dest, words)


PEEKS = {
    "the largest word": lambda mail: mail.words.max(),
    "the first record": lambda mail: mail.words[0, 0],
    "how many there are": lambda mail: len(mail),
    "a record's number": lambda mail: np.arange(len(mail)),
}


@pytest.mark.parametrize("peek", PEEKS)
def test_a_step_that_peeks_at_other_machines_is_found(peek):
    with pytest.raises(ShardingError, match="round 1, machine") as caught:
        check_sharding(Peeking(PEEKS[peek]), range(9))
    assert caught.value.round == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_one_machine_that_looks_at_one_other_among_many_is_found(seed):
    class Spy(Peeking):
        limits = Limits(machines=1000, memory_words=1)

    def peek(mail):
        words = mail.words[:, 0].copy()
        words[mail.dest == 700] = mail.words[mail.dest == 4, 0].sum()
        return words

    with pytest.raises(ShardingError, match="round 1, machine 700"):
        check_sharding(Spy(peek), range(1, 1001), cuts=1, seed=seed)


@pytest.mark.parametrize("alone", [0, 2, 300])
def test_as_many_machines_are_tried_alone_as_asked_for(alone):
    tried = []

    class Recorder(Peeking):
        limits = Limits(machines=512, memory_words=1)
        rounds = 1

        def step(self, round, mail):  # noqa: A002
            tried.append(np.unique(mail.dest).tolist())
            return Mail(mail.dest, mail.dest, mail.words)

    check_sharding(Recorder(None), range(512), cuts=0, alone=alone)
    single = [machines[0] for machines in tried if len(machines) == 1]
    assert len(single) == len(set(single)) == alone


def test_a_step_that_remembers_outside_its_mail_is_found():
    calls = []

    def remember(mail):
        calls.append(1)
        return len(calls)

    with pytest.raises(ShardingError):
        check_sharding(Peeking(remember), range(9))


def test_a_step_that_sends_in_anothers_name_is_found():
    class Impostor(Peeking):
        def step(self, round, mail):  # noqa: A002
            return Mail([1], [0], mail.words[:1])

    with pytest.raises(ShardingError, match="from a shard it was not in"):
        check_sharding(Impostor(None), range(9))


def test_a_step_that_drops_mail_of_other_machines_is_found():
    class Dropper(Peeking):
        def step(self, round, mail):  # noqa: A002
            return Mail(mail.dest[:1], mail.dest[:1], mail.words[:1])

    with pytest.raises(ShardingError):
        check_sharding(Dropper(None), range(9))


def test_a_step_whose_records_widen_with_the_number_of_machines_is_found():
    class Widening(Peeking):
        def step(self, round, mail):  # noqa: A002
            width = 2 if len(mail) > 1 and round == 0 else 1
            return Mail(mail.dest, mail.dest, np.repeat(mail.words[:, :1], width, axis=1))

        def scatter(self, words):
            return Mail(range(len(words)), range(len(words)), words)

    with pytest.raises(ShardingError, match="records of 1 words in its shard, 2 with all machines"):
        check_sharding(Widening(None), range(4))


def test_a_step_that_changes_its_mail_in_place_does_not_confuse_the_check():
    def scribble(mail):
        mail.words[:] = 0
        return 1

    check_sharding(Peeking(scribble), range(9))


@pytest.mark.parametrize("words", [[-1], [1.5], ["a"], [[[1]]], [[1], [2, 3]], [2**64], 5, None])
def test_inputs_that_are_not_words_are_refused(words):
    with pytest.raises(InputError, match="words: got"):
        run(Sum(1, 2), words)


def test_an_unknown_engine_is_refused():
    with pytest.raises(InputError, match="'local', 'ray'"):
        run(Sum(1, 2), [1], engine="cloud")


@pytest.mark.parametrize("column", [[0.5], np.array([2**63 + 1], np.uint64), [2**70], ["a"]])
def test_machine_numbers_that_are_not_whole_are_refused(column):
    with pytest.raises(InputError, match=r"Mail\.dest"):
        Mail(column, [0], [[1]])
    with pytest.raises(InputError, match=r"Mail\.src"):
        Mail([0], column, [[1]])


def test_bits_of_real_numbers_are_made_from_real_numbers_and_read_from_words():
    for wrong in ([1j], ["1.5"]):
        with pytest.raises(InputError, match="real numbers"):
            real_words(wrong)
    for wrong in ([1.5], [-1]):
        with pytest.raises(InputError, match="non-negative integers"):
            word_reals(wrong)


def test_options_the_engine_does_not_have_are_refused():
    with pytest.raises(InputError, match="option: got 'shards'"):
        run(Sum(1, 2), [1], shards=3)


def test_what_is_not_a_protocol_is_refused():
    with pytest.raises(InputError, match="protocol: got"):
        run(Sum, [1])  # type: ignore[arg-type]


WRONG_LIMITS = [
    {"machines": 0},
    {"machines": 2.5},
    {"memory_words": 0},
    {"memory_words": "8"},
    {"word_bits": 65},
    {"partners": 0},
    {"partners": 2.5},
]


@pytest.mark.parametrize("limits", WRONG_LIMITS)
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(InputError):
        Limits(**{"machines": 1, "memory_words": 1, **limits})


@pytest.mark.parametrize(
    ("dest", "src", "words"),
    [([0, 1], [0], [[1], [2]]), ([0], [0, 1], [[1], [2]]), ([0], [0], [[[1]]]), ([0], [0], [[]])],
)
def test_mail_of_unequal_columns_is_refused(dest, src, words):
    with pytest.raises(InputError, match=r"Mail\."):
        Mail(dest, src, words)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=64)))
def test_real_words_lose_nothing(values):
    words = real_words(values)
    assert word_reals(words).tobytes() == np.array(values, np.float64).tobytes()
    assert as_words(words) is words


def test_errors_survive_a_trip_to_another_process():
    given_errors = [
        errors.InboxError(round=1, machine=2, limit=3, amount=4),
        errors.ShardingError(round=1, machine=2, detail="x"),
        errors.LeastMemoryError("Sort", n=5, memory_words=1, least=4),
    ]
    for error in given_errors:
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), type(copy), vars(copy)) == (str(error), type(error), vars(error))


def test_progress_is_told_once_per_round(capsys):
    seen = []
    run(Sum(9, 2), range(9), progress=lambda load, rounds: seen.append((load.round, rounds)))
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]
    run(Sum(9, 2), range(9), progress=True)
    assert capsys.readouterr().err.count("\n") == 4


def test_the_trace_counts_what_was_moved():
    trace = run(Sum(9, 3), range(9)).trace
    assert [load.words for load in trace.loads] == [3, 1]
    assert [load.inbox for load in trace.loads] == [3, 1]
    assert [load.busiest for load in trace.loads] == [0, 0]
    assert "2 rounds, 4 words moved" in trace.summary()
    assert trace == run(Sum(9, 3), range(9)).trace
    assert trace != run(Sum(9, 4), range(9)).trace


@pytest.mark.slow
def test_the_trace_draws_a_row_per_round_and_a_column_per_machine():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    protocol = Sort(50, 40, width=2)
    axes = run(protocol, protocol.sample(np.random.default_rng(0))).trace.plot()
    assert axes.images[0].get_array().shape == (protocol.rounds, protocol.limits.machines)


def test_a_run_without_rounds_has_nothing_to_draw():
    pytest.importorskip("matplotlib")
    still = PerMachine(lambda *_: [], rounds=0, limits=Limits(machines=2, memory_words=4))
    with pytest.raises(errors.AnnattnError, match="nothing to draw"):
        run(still, [1, 2]).trace.plot()


class Scribbler(Protocol):
    """Adds one to every word, on the paper it came on."""

    limits = Limits(machines=2, memory_words=4)
    rounds = 3

    def step(self, round, mail):  # noqa: A002
        mail.words[:] += np.uint64(1)
        return Mail(mail.dest, mail.dest, mail.words)


@pytest.mark.parametrize("writable", [True, False])
def test_a_step_that_scribbles_on_its_mail_leaves_the_input_alone(writable):
    words = np.array([1, 2, 3], np.uint64)
    words.flags.writeable = writable
    assert run(Scribbler(), words).output.tolist() == [4, 5, 6]
    assert words.tolist() == [1, 2, 3]


def test_a_step_that_gives_no_mail_is_named():
    class Silent(Scribbler):
        def step(self, round, mail):  # type: ignore[override]  # noqa: A002
            return None

    with pytest.raises(InputError, match=r"Silent\.step: got NoneType in round 0, expected a Mail"):
        run(Silent(), [1])


def test_a_run_goes_on_when_nobody_has_anything_to_say():
    silent = PerMachine(lambda *_: [], rounds=3, limits=Limits(machines=2, memory_words=4))
    for words in ([], [[1, 2], [3, 4]]):
        result = run(silent, words)
        assert result.output.shape == (0,)
        assert (result.trace.rounds, result.trace.words) == (3, 0)
        check_sharding(silent, words)


@pytest.mark.parametrize(
    "sent", [None, [3], [(0, 1.5)], [(0.5, 1)], [(0, (1.5,))], [(0, ())], [(0, "12")], [(2**70, 1)]]
)
def test_a_lifted_function_that_gives_something_else_is_told_what_is_wanted(sent):
    lifted = PerMachine(lambda *_: sent, rounds=1, limits=Limits(machines=2, memory_words=4))
    with pytest.raises(InputError, match=r"message: got .* from machine 0 in round 0"):
        run(lifted, [1])


def test_a_lifted_functions_own_errors_are_not_hidden():
    def lazy(*_):
        yield 0, int("x")

    with pytest.raises(ValueError, match="invalid literal"):
        run(PerMachine(lazy, rounds=1, limits=Limits(machines=2, memory_words=4)), [1])


@pytest.mark.parametrize("rounds", [-1, 1.5])
def test_a_number_of_rounds_that_makes_no_sense_is_refused(rounds):
    with pytest.raises(InputError, match="rounds: got"):
        PerMachine(lambda *_: [], rounds=rounds, limits=Limits(machines=2, memory_words=4))


def test_columns_of_the_summary_stay_in_line_when_numbers_are_large():
    loads = tuple(RoundLoad(r, np.array([10 ** (6 * r)]), np.array([5])) for r in range(3))
    lines = Trace(Limits(1, 10**15), loads).summary().splitlines()[1:]
    assert len({len(line) for line in lines}) == 1


def test_messages_of_unequal_length_are_refused():
    with pytest.raises(InputError, match="one length per round"):
        run(breaking(lambda m, inbox: [(0, (1,)), (0, (1, 2))]), range(3))


def test_a_lifted_function_gets_and_gives_messages_of_several_words():
    def swap(round, machine, inbox):  # noqa: A002
        return [(source, words[::-1]) for source, words in inbox]

    lifted = PerMachine(swap, rounds=1, limits=Limits(machines=2, memory_words=4))
    assert run(lifted, [[1, 2], [3, 4]]).output.tolist() == [[2, 1], [4, 3]]


def test_the_ray_engine_without_ray_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(errors.AnnattnError, match=r"pip install 'annattn\[ray\]'"):
        run(Sum(1, 2), [1], engine="ray")


def test_drawing_a_trace_without_matplotlib_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(errors.AnnattnError, match=r"pip install 'annattn\[report\]'"):
        run(Sum(1, 2), [1]).trace.plot()


def test_mpc_imports_no_torch():
    for file in Path(mpc.__file__).parent.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) torch", file.read_text(), re.MULTILINE), file


def test_a_run_says_nothing_unless_it_is_asked_to(capsys):
    protocol = Sum(9, 3)
    run(protocol, range(9))
    assert capsys.readouterr() == ("", "")
    run(protocol, range(9), progress=True)
    assert len(capsys.readouterr().err.splitlines()) == protocol.rounds
