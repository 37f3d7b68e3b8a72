"""Few partners: no legal input breaks the memory, neither patterns that congest nor an adversary who searches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annattn.errors import InboxError, InputError
from annattn.mpc import Limits, Mail, Protocol, check_sharding, run, with_partners
from annattn.mpc.partners import PartneredProtocol, excess, plan_phases


class Relation(Protocol):
    """Machine i sends its j-th word, in each of two rounds, to machine to[i][j]; a negative number sends nothing."""

    rounds = 1

    def __init__(self, to: np.ndarray, width: int = 1) -> None:
        self.to, self.width = to, width
        self.limits = Limits(len(to), to.shape[1] * width)

    def scatter(self, words):
        machine, slot = np.nonzero(self.to >= 0)
        value = (machine * self.to.shape[1] + slot).astype(np.uint64)
        return Mail(machine, machine, np.repeat(value[:, None], self.width, axis=1))

    def step(self, round, mail):  # noqa: A002
        machine, slot = np.divmod(mail.words[:, 0].astype(np.int64), self.to.shape[1])
        return Mail(self.to[machine, slot], mail.dest, mail.words)


def patterns(machines: int, s: int) -> dict[str, np.ndarray]:
    """Relations that fill every outbox and every inbox, and two that send everything into one range."""
    i, j = np.divmod(np.arange(machines * s), s)
    root = int(machines**0.5)
    bits = max(1, (machines - 1).bit_length())
    reverse = np.array([int(f"{x:0{bits}b}"[::-1], 2) for x in range(2**bits)])
    rng = np.random.default_rng(0)
    transpose = np.where(i < root * root, i % root * root + i // root, i)
    random = np.repeat(np.arange(machines), s)
    rng.shuffle(random)
    third, number = max(1, machines // 3), j * machines + i
    chosen = {
        "all to all": (i + j) % machines,
        "spread": (i + j * max(1, machines // s)) % machines,
        "neighbour": (i + 1) % machines,
        "reversal": machines - 1 - i,
        "transpose": transpose,
        "bit reversal": np.where(reverse[i] < machines, reverse[i], -1),
        "random": random,
        "nothing": np.full(machines * s, -1),
        "one inbox": np.where(number < s, machines - 1, -1),
        "one range": np.where(number < third * s, number % third, -1),
        "one range, dealt": np.where(j == i % s, j, -1) if machines <= s * s else np.where(j == 0, i // s, -1),
    }
    return {name: to.reshape(machines, s) for name, to in chosen.items()}


def legal(to: np.ndarray) -> bool:
    return np.bincount(to[to >= 0], minlength=len(to)).max() <= to.shape[1]


def load_of(thrifty: PartneredProtocol) -> int:
    return run(thrifty, [0]).trace.largest_load


def check(to: np.ndarray, partners: int, width: int = 1) -> None:
    assert legal(to)
    protocol = Relation(to, width)
    thrifty = with_partners(protocol, partners)
    result = run(thrifty, [0])
    assert np.array_equal(result.output, run(protocol, [0]).output)
    packet = thrifty.header + min(thrifty.piece, width)
    h = to.shape[1] * -(-width // min(thrifty.piece, width))
    assert result.trace.largest_load <= (h + thrifty.excess) * packet <= thrifty.limits.memory_words


NAMES = list(patterns(4, 2))
SIZES = [(2, 3, 2), (27, 4, 2), (64, 8, 7), (64, 64, 3), (81, 16, 2), (100, 5, 4), (256, 8, 2)]
LARGE = [(1000, 9, 9), (1024, 8, 31), (1024, 16, 3), (3000, 4, 2), (4096, 4, 7)]


@pytest.mark.parametrize(("machines", "s", "partners"), SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_no_pattern_breaks_the_proven_load(name, machines, s, partners):
    check(patterns(machines, s)[name], partners)


@pytest.mark.slow
@pytest.mark.parametrize(("machines", "s", "partners"), LARGE)
@pytest.mark.parametrize("name", NAMES)
def test_no_pattern_breaks_the_proven_load_on_thousands_of_machines(name, machines, s, partners):
    check(patterns(machines, s)[name], partners)


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2, 3, 13, 101, 997, 1729, 3001])
def test_odd_numbers_of_machines_of_one_word_or_three_with_any_number_of_partners(machines):
    """No power of the base; with few partners, with partners for two hops, and with more than there are machines."""
    for s in (1, 3):
        for partners in sorted({2, max(2, int(machines**0.5)), machines + 3}):
            for name in ("nothing", "one inbox", "reversal", "random", "bit reversal"):
                check(patterns(machines, s)[name], partners)


def test_the_memory_covers_the_proven_load_for_every_number_of_machines_words_and_partners():
    for machines in (*range(1, 260), *range(260, 5000, 97)):
        for s, width in ((1, 1), (2, 2), (7, 3), (64, 5), (1000, 1000)):
            for partners in (2, 3, 9, 70, 5000):
                protocol = Relation(np.zeros((1, s // width), np.int64), width)
                protocol.limits = Limits(machines, s)
                thrifty = with_partners(protocol, partners)
                piece = min(thrifty.piece, width)
                packets = s // width * -(-width // piece)
                assert (packets + thrifty.excess) * (thrifty.header + piece) <= thrifty.limits.memory_words
                assert thrifty.base - 1 <= partners
                assert thrifty.limits.machines >= machines


@pytest.mark.parametrize("width", [2, 3, 7, 40])
@pytest.mark.parametrize("partners", [2, 8])
def test_wide_records_are_cut_so_that_their_excess_fits(width, partners):
    for to in patterns(81, 4).values():
        check(to, partners, width)


def aligned(base: int, s: int, target: int) -> np.ndarray:
    """Made against two digits: every machine has one packet for a range, where dealing sends it to digit `target`."""
    machines, middle = base * base, base // 2
    to = np.full((machines, s), -1)
    room = np.full(machines, s)
    below, above = np.arange(middle * base), np.arange((middle + 1) * base, machines)
    for machine in range(machines):
        # Dealing starts at the machine's own digit, and packets are dealt in the order of their destinations.
        index = (target - machine) % base
        if index >= s:
            continue
        groups = [(below, index), (np.arange(middle * base, (middle + 1) * base), 1), (above, s - index - 1)]
        chosen = [group[np.argsort(-room[group], kind="stable")[:count]] for group, count in groups]
        chosen = np.concatenate([part[room[part] > 0] for part in chosen])
        to[machine, : len(chosen)] = chosen
        room[chosen] -= 1
    return to


@pytest.mark.parametrize(("base", "s"), [(3, 6), (8, 8), (8, 16), (16, 16), (32, 8)])
def test_an_adversary_who_aligns_all_dealing_comes_near_the_bound_and_not_beyond(base, s):
    to = aligned(base, s, target=1)
    check(to, base - 1)
    thrifty = with_partners(Relation(to), base - 1)
    if s >= base:
        # Two thirds of the proven load, and far more than the 3s + 32 words that suffice for random inputs.
        assert load_of(thrifty) > 2 * (s + thrifty.excess) * 2 / 3


def greedy(machines: int, s: int, partners: int, tries: int, seed: int) -> tuple[int, PartneredProtocol]:
    """Swap destinations for as long as the largest load grows, starting from a relation that fills all boxes."""
    rng = np.random.default_rng(seed)
    to = patterns(machines, s)["random"].copy()
    worst = load_of(with_partners(Relation(to), partners))
    for _ in range(tries):
        trial = to.copy()
        one, two = rng.integers(0, to.size, (2, max(1, to.size // 50)))
        flat = trial.ravel()
        flat[one], flat[two] = flat[two], flat[one].copy()
        if not legal(trial):
            continue
        load = load_of(with_partners(Relation(trial), partners))
        if load >= worst:
            to, worst = trial, load
    return worst, with_partners(Relation(to), partners)


@pytest.mark.slow
@pytest.mark.parametrize(("machines", "s", "partners"), [(27, 4, 2), (64, 8, 3), (64, 8, 7), (125, 25, 4)])
def test_an_adversary_who_searches_greedily_never_breaks_the_memory(machines, s, partners):
    for seed in range(3):
        worst, thrifty = greedy(machines, s, partners, tries=150, seed=seed)
        assert worst <= (s + thrifty.excess) * (1 + thrifty.header) <= thrifty.limits.memory_words


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_relation_of_any_size_breaks_the_proven_load(data):
    """The whole relation is drawn: each machine's packets, and how many of them go into a range that may be small."""
    machines, s = data.draw(st.integers(1, 120)), data.draw(st.integers(1, 9))
    partners, width = data.draw(st.integers(2, 12)), data.draw(st.integers(1, 5))
    base = with_partners(Relation(np.zeros((machines, s), np.int64)), partners).base
    room, to = np.full(machines, s), np.full((machines, s), -1)
    step, start = data.draw(st.integers(1, machines)), data.draw(st.integers(0, machines - 1))
    favoured = data.draw(st.sampled_from([1, base, base**2, machines]))
    for machine in range(machines):
        # Next to the machine's own number times a step: shifts, transposes and reversals are among these.
        near = (start + machine * step // favoured * favoured + np.arange(machines)) % machines
        chosen = near[np.argsort(-np.minimum(room[near], 1), kind="stable")][:s]
        chosen = chosen[room[chosen] > 0]
        to[machine, : len(chosen)] = chosen
        np.subtract.at(room, chosen, 1)
    check(to, partners, width)


def test_dealing_in_the_order_of_sending_would_send_a_whole_range_to_one_machine():
    """Every base-th packet of a machine is for the same range, so only the order of destinations spreads them."""
    base = 4
    i, j = np.indices((base**2, base**3))
    check((i + j) % base * base + j // base % base, base - 1)


def test_without_dealing_a_transpose_breaks_the_memory():
    thrifty = with_partners(Relation(np.repeat(np.arange(4096).reshape(64, 64).T.reshape(-1, 1), 32, axis=1)), 3)
    thrifty.schedule = [hop for hop in thrifty.schedule if not hop[0]]
    with pytest.raises(InboxError):
        run(thrifty, [0])


def test_phases_take_the_fewest_rounds_that_fit():
    assert plan_phases(4, 1, 0) == (1,)
    assert plan_phases(4, 5, 0) == (1,) * 5
    assert plan_phases(4, 5, 10**9) == (5,)

    def every(digits):
        return [()] if digits == 0 else [(g, *rest) for g in range(1, digits + 1) for rest in every(digits - g)]

    def hops(phases):
        return sum(sum(phases[i:]) - 1 + g for i, g in enumerate(phases))

    for spare in (0, 50, 100, 500, 3000):
        fits = [
            phases
            for phases in every(6)
            if all(g == 1 or excess(3, sum(phases[i:]), g) <= spare for i, g in enumerate(phases))
        ]
        assert hops(plan_phases(3, 6, spare)) == min(map(hops, fits))


def test_the_rounds_lie_between_a_straight_line_and_half_a_square():
    for partners, digits in [(2, 7), (3, 6), (4, 5), (7, 4), (63, 2)]:
        protocol = Relation(patterns(2048, 4)["reversal"])
        least = with_partners(protocol, partners)
        assert least.digits == digits
        assert least.round_formula() == least.rounds
        assert 2 * digits - 1 <= least.rounds <= digits * (digits + 1) // 2
        assert with_partners(protocol, partners, memory_words=10**6).rounds == 2 * digits - 1


def test_the_rewritten_step_also_minds_its_own_mail():
    check_sharding(with_partners(Relation(patterns(16, 4)["all to all"]), 3), [0])


def test_the_original_limits_still_hold():
    with pytest.raises(InboxError, match=r"received 64 words, but memory_words allows 4"):
        run(with_partners(Relation(np.zeros((16, 4), np.int64)), 3, memory_words=1000), [0])


def test_too_little_memory_is_refused_before_anything_runs():
    with pytest.raises(InputError, match="memory_words: got 16, expected at least"):
        with_partners(Relation(patterns(64, 8)["reversal"]), 3, memory_words=16)


def test_fewer_than_two_partners_are_refused():
    with pytest.raises(InputError, match="partners: got 1"):
        with_partners(Relation(patterns(4, 4)["reversal"]), 1)


@pytest.mark.parametrize("memory", [500, 10**6])
def test_the_memory_that_is_given_is_the_memory_that_is_used(memory):
    assert with_partners(Relation(patterns(64, 8)["reversal"]), 3, memory_words=memory).limits.memory_words == memory
