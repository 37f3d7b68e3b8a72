"""Sorting by samples: right for every input, exact loads in the end, rounds linear in 1/ε, bad seeds rare."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from annattn.errors import InboxError, OutboxError
from annattn.mpc import Mail, check_sharding, run, with_partners
from annattn.mpc.delivery import deliver
from annattn.mpc.model import spread
from annattn.mpc.parts import samplesort, sorting
from annattn.mpc.parts.samplesort import MOST, Samplesort, plan_samplesort
from annattn.mpc.parts.sorting import can_sort, plan_sort
from annattn.mpc.parts.stages import in_order
from annattn.mpc.protocols import AnnaAttention, ExactMatchAttention, InductionHead, Join, KHop, Sort
from annattn.theorems.fewest import fewest

N, CAPACITY = 6000, 300


def keys_of(kind: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    place = np.arange(n)
    return {
        "sorted": place,
        "reversed": place[::-1].copy(),
        "equal": place * 0,
        "two": place % 2,
        "few": rng.integers(0, 7, n),
        "one in front of many": (place > 0).astype(int),
        "interleaved": place % 77 * n + place,
        "random": rng.integers(0, 2**63, n),
    }[kind]


KINDS = ["sorted", "reversed", "equal", "two", "few", "one in front of many", "interleaved", "random"]


def sort(plan: Samplesort, keys: np.ndarray) -> tuple[np.ndarray, int]:
    """The order it finds, and the largest number of records that any machine sends or receives."""
    words = np.column_stack([keys.astype(np.uint64), np.arange(len(keys), dtype=np.uint64)])
    mail, most = spread(words, plan.rows), 0
    for i in range(plan.rounds):
        sent = plan.step(i, mail, (0, 1))
        mail = deliver(sent, plan.machines)
        most = max(most, np.bincount(sent.src).max(), np.bincount(mail.dest).max())
    assert np.array_equal(np.bincount(mail.dest), np.bincount(np.arange(len(keys)) // plan.rows))
    return in_order(mail, (0, 1)).words[:, 1].astype(np.int64), int(most)


@pytest.fixture
def only_samples(monkeypatch):
    """Columnsort refuses, so that every protocol sorts by samples."""
    monkeypatch.setattr(sorting, "can_columnsort", lambda n, capacity: False)


@pytest.mark.parametrize("kind", KINDS)
def test_any_input_is_sorted_within_the_capacity_and_lands_exactly_by_rank(kind):
    plan = plan_samplesort(N, CAPACITY)
    assert plan is not None
    assert plan.levels > 1
    keys = keys_of(kind, N)
    order, most = sort(plan, keys)
    assert np.array_equal(order, np.argsort(keys, kind="stable"))
    assert most <= CAPACITY


@pytest.mark.parametrize("present", [0, 1, 5, 200, 5000])
def test_fewer_records_than_planned_are_sorted_too(present):
    plan = plan_samplesort(N, CAPACITY)
    assert plan is not None
    keys = keys_of("random", present)
    if present:
        order, most = sort(plan, keys)
        assert np.array_equal(order, np.argsort(keys, kind="stable"))
        assert most <= CAPACITY


@pytest.mark.slow
def test_bad_seeds_are_as_rare_as_estimated_or_rarer():
    keys, most = keys_of("few", N), []
    for seed in range(100):
        plan = plan_samplesort(N, CAPACITY, seed)
        assert plan is not None
        order, largest = sort(plan, keys)
        assert np.array_equal(order, np.argsort(keys, kind="stable"))
        most.append(largest)
    # At a failure of 1/1000 or less, two failures in a hundred have a chance of 1/200 or less.
    assert sum(largest > CAPACITY for largest in most) <= 1


def test_a_seed_that_does_not_fit_is_an_error_and_never_a_wrong_answer(only_samples):
    protocol = Sort(N, 2 * CAPACITY)
    protocol.limits = replace(protocol.limits, memory_words=2 * protocol.plan.rows)
    with pytest.raises((InboxError, OutboxError)):
        run(protocol, protocol.sample(np.random.default_rng(0)))


def slots_of(plan: Samplesort, n: int) -> np.ndarray:
    """The slot of each record of the input, as an adversary who knows the seed works it out."""
    place = np.arange(n)
    return np.random.default_rng([plan.seed, plan.rows * plan.buckets]).permutation(plan.rows * plan.buckets)[place]


@pytest.mark.parametrize("largest", [False, True])
def test_an_adversary_who_knows_the_seed_gets_an_error_and_other_seeds_sort_the_same_input(largest, only_samples):
    """The smallest or largest keys are put where the first samples are drawn, so one bucket gets nearly all records."""
    protocol = Sort(N, 2 * CAPACITY)
    plan = protocol.plan
    assert isinstance(plan, Samplesort)
    words, drawn = np.empty(N, np.uint64), slots_of(plan, N) < plan.sample * plan.team
    assert drawn.sum() < N / 4
    words[np.argsort(drawn if largest else ~drawn, kind="stable")] = np.arange(N)
    with pytest.raises(InboxError, match="received"):
        run(protocol, words)
    for seed in range(1, 4):
        assert np.array_equal(run(Sort(N, 2 * CAPACITY, seed=seed), words).output, np.arange(N))


def test_an_adversary_who_searches_greedily_never_gets_a_wrong_answer(only_samples):
    """Two blocks of keys change places for as long as that makes the largest bucket grow."""
    n, room = 1500, 150
    protocol = Sort(n, 2 * room)
    plan, rng = protocol.plan, np.random.default_rng(0)
    assert isinstance(plan, Samplesort)
    assert plan.levels > 1

    def bucket(words: np.ndarray) -> int:
        mail = spread(np.column_stack([words, np.arange(n, dtype=np.uint64)]), plan.rows)
        for i in range(2 + 4 * plan.levels):
            mail = deliver(plan.step(i, mail, (0, 1)), plan.machines)
        return int(np.bincount(mail.dest).max())

    words = rng.permutation(n).astype(np.uint64)
    start = worst = bucket(words)
    for _ in range(120):
        trial = words.copy()
        one, two = rng.integers(0, n - 40, 2)
        trial[one : one + 40], trial[two : two + 40] = words[two : two + 40].copy(), words[one : one + 40].copy()
        if len(np.unique(trial)) == n and (load := bucket(trial)) >= worst:
            words, worst = trial, load
    assert worst > start
    try:
        assert np.array_equal(run(protocol, words).output, np.arange(n))
    except (InboxError, OutboxError):
        assert worst > room
    assert np.array_equal(run(Sort(n, 2 * room, seed=1), words).output, np.arange(n))


@pytest.mark.parametrize("n", [N, N - 77, 50])
def test_what_happens_depends_only_on_which_rank_is_in_which_slot(n):
    """So a bad shuffle is as rare for one input as for another: renaming the places renames the shuffle."""
    plan = plan_samplesort(N, CAPACITY)
    assert plan is not None
    rng, size = np.random.default_rng(n), plan.rows * plan.buckets
    shuffle, before = rng.permutation(size), rng.permutation(n)

    def loads(keys: np.ndarray, shuffle: np.ndarray) -> list[np.ndarray]:
        seen, mail = [], spread(keys.astype(np.uint64)[:, None], plan.rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(samplesort, "_permutation", lambda size, seed: shuffle)
            for i in range(plan.rounds):
                mail = deliver(plan.step(i, mail, (0,)), plan.machines)
                seen.append(np.bincount(mail.dest, minlength=plan.machines))
        return seen[1 : 2 + 4 * plan.levels]

    renamed = shuffle.copy()
    renamed[:n] = shuffle[before]
    some = loads(np.arange(n), shuffle)
    for other, same in zip(loads(before, renamed), some, strict=True):
        assert np.array_equal(other, same)
    assert any(not np.array_equal(other, one) for other, one in zip(loads(before, shuffle), some, strict=True))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(10, 10**7), capacity=st.integers(2, 3000), more=st.integers(1, 500))
def test_more_memory_never_makes_it_impossible_or_slower_by_a_level(n, capacity, more):
    less, greater = plan_samplesort(n, capacity), plan_samplesort(n, capacity + more)
    if less is not None:
        assert greater is not None
        assert greater.capacity <= capacity + more
        if capacity + more < n:
            # Made for at most a quarter less than there is room for, on at most 25 times the machines that hold that.
            assert 3 * greater.machines * (capacity + more) <= 4 * MOST * n


@pytest.mark.parametrize(
    "protocol",
    [
        lambda: Sort(3000, 600),
        lambda: Sort(3000, 900, width=2),
        lambda: InductionHead(3000, 900),
        lambda: KHop(3000, 900, k=5),
        lambda: Join(2000, 900),
        lambda: ExactMatchAttention(1000, 1500),
        lambda: AnnaAttention(500, 1800, tables=2),
    ],
    ids=["Sort", "Sort records", "InductionHead", "KHop", "Join", "ExactMatchAttention", "AnnaAttention"],
)
def test_every_protocol_that_sorts_may_sort_by_samples(protocol, only_samples):
    problem = protocol()
    plan = problem.match.sort if hasattr(problem, "match") else problem.plan
    assert isinstance(plan, Samplesort)
    words = problem.sample(np.random.default_rng(1))
    result = run(problem, words)
    assert problem.agrees(result.output, problem.oracle(words))
    assert result.trace.rounds == problem.round_formula()


@pytest.mark.slow
def test_its_machines_look_only_at_their_own_mail(only_samples):
    problem = Sort(700, 2 * 200, width=1)
    check_sharding(problem, problem.sample(np.random.default_rng(0)), cuts=1, alone=2)


@pytest.mark.slow
def test_it_may_have_few_partners(only_samples):
    problem = Sort(1500, 2 * 250)
    words = problem.sample(np.random.default_rng(0))
    assert np.array_equal(run(with_partners(problem, 6), words).output, problem.oracle(words))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(n=st.integers(3, 10**12), share=st.floats(0.15, 1))
def test_no_plan_is_worse_than_the_best_that_its_conditions_allow(n, share):
    capacity = max(300, int(n**share))
    assume(can_sort(n, capacity))
    plan, best = plan_sort(n, capacity), fewest(n, capacity)
    assert plan.rounds <= best.rounds
    if plan.rounds == best.rounds < 64:
        assert plan.machines <= best.machines


@pytest.mark.parametrize(("n", "capacity"), [(4096, 133), (6000, 166), (20_000, 174)])
def test_with_the_least_memory_samples_suffice_for_every_seed_tried(n, capacity):
    """Some buckets are then drawn as a whole, and all machines are fuller than with more memory."""
    keys = keys_of("few", n)
    for seed in range(5):
        plan = plan_samplesort(n, capacity, seed)
        assert plan is not None
        assert plan.machines * capacity <= MOST * n
        order, most = sort(plan, keys)
        assert np.array_equal(order, np.argsort(keys, kind="stable"))
        assert most <= capacity
    assert plan_samplesort(n, 32) is None


def test_rounds_are_linear_in_one_over_epsilon_down_to_a_tenth():
    inverse = np.array([2, 2.5, 3, 4, 5, 6, 7, 8, 9, 10])
    plans = [plan_samplesort(2**200, int(2 ** (200 / x))) for x in inverse]
    rounds = [plan.rounds for plan in plans if plan is not None]
    slope, start = np.polyfit(inverse, rounds, 1)
    assert slope == pytest.approx(10, abs=1)
    assert np.abs(np.polyval([slope, start], inverse) - rounds).max() <= 6
    assert (rounds <= 10 * inverse).all()


def test_where_columnsort_takes_sixtyfour_rounds_samples_take_fewer():
    assert plan_sort(10**6, 500).rounds == 23


@pytest.mark.slow
def test_records_are_sorted_by_samples_where_columnsort_would_take_64_rounds():
    problem = Sort(300_000, 3 * 390, width=2)
    assert isinstance(problem.plan, Samplesort)
    assert problem.rounds == problem.round_formula() < 64
    records = np.random.default_rng(0).integers(0, 1000, (300_000, 2), dtype=np.uint64)
    expected = records[np.argsort(records[:, 0], kind="stable")]
    assert np.array_equal(run(problem, records).output, expected)


@pytest.mark.parametrize(("bits", "least"), [(20, 266), (40, 723)])
def test_the_least_memory_is_that_of_the_docs(bits, least):
    assert plan_samplesort(2**bits, least - 1) is None
    assert plan_samplesort(2**bits, least) is not None


def test_a_machine_shows_records_at_even_distances_of_its_own():
    plan = plan_samplesort(N, CAPACITY)
    assert plan is not None
    machine = np.repeat([0, 1, 2], [10, 3, 1])
    own = Mail(machine, machine, np.arange(14, dtype=np.uint64)[:, None])
    splitters = plan._spaced(own, np.arange(1, 5), np.zeros(3))
    assert splitters.words[:, 0].tolist() == [2, 4, 6, 8, 10, 11, 11, 12, 13, 13, 13, 13]
    assert splitters.dest.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    shown = plan._spaced(own, np.arange(5), np.array([0.5, 0, 0]))
    assert shown.words[:, 0].tolist() == [1, 3, 5, 7, 9, 10, 11, 12, 13]
