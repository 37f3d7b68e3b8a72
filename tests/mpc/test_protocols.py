"""Every protocol of PROTOCOLS against its oracle, at its limits, however its machines are cut."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annattn.errors import InputError, LeastMemoryError
from annattn.mpc import check_sharding, run, with_partners
from annattn.mpc.protocols import (
    PROTOCOLS,
    AnnaAttention,
    Broadcast,
    Connectivity,
    ExactMatchAttention,
    InductionHead,
    Join,
    KHop,
    Permute,
    Problem,
    Sort,
    ThreeSum,
)

few = st.integers(1, 3)
PARAMETERS = {
    "Sort": st.fixed_dictionaries({"width": few}),
    "KHop": st.fixed_dictionaries({"k": st.integers(1, 40)}),
    "Connectivity": st.fixed_dictionaries({"vertices": st.integers(1, 30)}),
    "LowRankAttention": st.fixed_dictionaries({"rank": few, "value_dim": few}),
    "ExactMatchAttention": st.fixed_dictionaries({"dim": few, "value_dim": few}),
    "AnnaAttention": st.fixed_dictionaries({"tables": few, "value_dim": few}),
    "SoftmaxAttention": st.fixed_dictionaries({"dim": few, "value_dim": few}),
}
LARGEST = {"Connectivity": 25, "AnnaAttention": 60, "ExactMatchAttention": 60, "SoftmaxAttention": 30}

names = pytest.mark.parametrize("name", PROTOCOLS)


@st.composite
def problems(draw, name: str, largest: int | None = None) -> Problem:
    """A protocol with as little memory as it can live with, a little more, or much more."""
    n = draw(st.integers(1, largest or LARGEST.get(name, 150)))
    parameters = draw(PARAMETERS.get(name, st.just({})))
    least = PROTOCOLS[name].least_memory(n, **parameters)
    choices = [least, least + 1, least + 7, 2 * least, 3 * least + 5, 10 * least]
    # Connectivity runs some thirty phases, each a whole sort: little memory is tried less often.
    memory = draw(st.sampled_from(choices + choices[3:] * 4 if name == "Connectivity" else choices))
    return PROTOCOLS[name](n, memory, **parameters)


@names
def test_a_small_input_gives_the_oracles_answer_in_the_rounds_of_the_formula(name):
    """The next test at a single size, quick enough to run always."""
    protocol = PROTOCOLS[name](9, 2 * PROTOCOLS[name].least_memory(9))
    words = protocol.sample(np.random.default_rng(0))
    result = run(protocol, words)
    assert protocol.agrees(result.output, protocol.oracle(words))
    assert result.trace.rounds == protocol.rounds == protocol.round_formula()


def test_a_side_that_is_neither_left_nor_right_is_refused():
    with pytest.raises(InputError, match="side: got 2, expected 0 for left or 1 for right"):
        run(Join(2, 200), [[0, 5, 7], [2, 5, 8]])


@pytest.mark.slow
@names
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_it_gives_the_oracles_answer_in_the_rounds_of_its_formula(name, data):
    protocol = data.draw(problems(name))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    inputs = protocol.variants(rng)
    # Every second input is a random one.
    words = inputs[data.draw(st.one_of(st.just("random"), st.sampled_from(list(inputs))))]
    result = run(protocol, words)
    assert protocol.agrees(result.output, protocol.oracle(words))
    assert result.trace.rounds == protocol.round_formula()
    assert result.trace.largest_load <= protocol.limits.memory_words


@pytest.mark.slow
@names
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_its_machines_look_only_at_their_own_mail(name, data):
    protocol = data.draw(problems(name, largest=3 if name == "Connectivity" else 12))
    check_sharding(protocol, protocol.sample(np.random.default_rng(data.draw(st.integers(0, 99)))), cuts=2)


@pytest.mark.slow
@names
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_with_few_partners_it_gives_the_same_answer(name, data):
    protocol = data.draw(problems(name, largest={"Connectivity": 6, "SoftmaxAttention": 8}.get(name, 40)))
    thrifty = with_partners(protocol, data.draw(st.integers(2, 6)))
    words = protocol.sample(np.random.default_rng(data.draw(st.integers(0, 99))))
    result = run(thrifty, words)
    assert protocol.agrees(result.output, run(protocol, words).output)
    assert result.trace.rounds == thrifty.round_formula()


@names
@pytest.mark.parametrize("n", [1, 2, 9, 64, 500])
def test_it_refuses_less_than_its_least_memory_and_names_it(name, n):
    kind = PROTOCOLS[name]
    least = kind.least_memory(n)
    kind(n, least)
    with pytest.raises(LeastMemoryError, match=f"at least {least} for {name} with n={n}") as caught:
        kind(n, least - 1)
    assert caught.value.least == least


@names
def test_it_refuses_an_input_of_another_size(name):
    protocol = PROTOCOLS[name](20, 200)
    words = protocol.sample(np.random.default_rng(0))
    with pytest.raises(InputError, match=f"expected {len(words)}"):
        run(protocol, np.concatenate([words, words]))
    rows = words.reshape(len(words), -1)
    with pytest.raises(InputError, match="words per record"):
        run(protocol, np.hstack([rows, rows]))


@names
def test_its_inputs_have_one_size_and_come_from_the_seed(name):
    protocol = PROTOCOLS[name](20, 400)
    inputs, again = (protocol.variants(np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(inputs["random"], protocol.sample(np.random.default_rng(3)))
    for variant, words in inputs.items():
        assert (words.shape, words.dtype) == (inputs["random"].shape, np.uint64)
        assert np.array_equal(words, again[variant])


@names
def test_it_names_a_bound(name):
    assert PROTOCOLS[name](20, 200).bound.startswith("O(")


@names
def test_it_takes_no_records_or_a_negative_number_of_them_for_an_error(name):
    for n in (0, -1):
        with pytest.raises(InputError, match="n: got"):
            PROTOCOLS[name](n, 100)


@names
def test_sizes_that_are_not_whole_are_refused(name):
    cases: list[tuple[Any, Any, str]] = [(20.0, 200, "n"), ("20", 200, "n"), (20, 200.5, "memory_words")]
    for n, memory, what in cases:
        with pytest.raises(InputError, match=f"{what}: got"):
            PROTOCOLS[name](n, memory)


@names
def test_sizes_may_be_integers_of_numpy(name):
    n, memory = np.array([120, 3000], np.int16)
    small, plain = PROTOCOLS[name](n, memory), PROTOCOLS[name](120, 3000)
    assert (small.limits, small.rounds, type(small.n)) == (plain.limits, plain.rounds, int)


PARAMETER_CASES = [
    (name, option) for name in PROTOCOLS for option in PROTOCOLS[name].parameters() if option not in ("hasher", "seed")
]


@pytest.mark.parametrize(("name", "option"), PARAMETER_CASES)
def test_parameters_that_are_not_whole_and_positive_are_refused(name, option):
    for wrong in (0, -1, 1.5, "2"):
        with pytest.raises(InputError, match=f"{option}: got"):
            PROTOCOLS[name](20, 2000, **{option: wrong})
        if option not in ("word_bits", "k"):
            with pytest.raises(InputError, match=f"{option}: got"):
                PROTOCOLS[name].least_memory(20, **{option: wrong})


@names
def test_a_parameter_it_does_not_have_is_refused(name):
    with pytest.raises(InputError, match=f"parameter of {name}: got wdith"):
        PROTOCOLS[name].least_memory(20, wdith=2)


@pytest.mark.parametrize(
    "make", [lambda bits: Sort(300, 100, width=2, word_bits=bits), lambda bits: Permute(300, 9, bits)]
)
def test_words_too_small_for_a_place_are_refused_before_the_run(make):
    make(9)
    with pytest.raises(InputError, match="word_bits: got 8, expected at least 9"):
        make(8)


def test_the_callers_memory_is_no_measure_of_the_machines():
    assert run(Broadcast(3, 2**50), [5]).output.tolist() == [5, 5, 5]


@pytest.mark.parametrize("k", [2**48 - 1, 2**53 - 1, 2**70, np.int64(5)])
def test_any_number_of_hops(k):
    word = np.array([1, 2, 1, 3, 1, 1, 2, 1, 2], np.uint64)
    protocol = KHop(9, 40, k=k)
    hop = {2: 1, 4: 3, 5: 5, 6: 2, 7: 6, 8: 7}
    expected = []
    for start in range(9):
        at: int | None = start
        for _ in range(min(int(k), 9)):
            at = None if at is None else hop.get(at)
        expected.append(2**64 - 1 if at is None else int(word[at]))
    assert run(protocol, word).output.tolist() == expected
    assert protocol.rounds == protocol.round_formula()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    keys=st.lists(st.integers(0, 3), min_size=1, max_size=200),
    capacity=st.integers(0, 40),
)
def test_sorting_is_stable(keys, capacity):
    records = np.array([[key, place] for place, key in enumerate(keys)], np.uint64)
    protocol = Sort(len(keys), Sort.least_memory(len(keys), width=2) + capacity, width=2)
    expected = records[np.argsort(records[:, 0], kind="stable")]
    assert np.array_equal(run(protocol, records).output, expected)


@pytest.mark.parametrize("kind", [InductionHead, KHop])
def test_the_papers_example_word(kind):
    word = np.array([ord(letter) for letter in "aabcbabca"], np.uint64)
    assert chr(run(kind(9, 40), word).output[8]) == "b"


def test_two_hops_of_the_papers_example_word():
    word = np.array([ord(letter) for letter in "aabcbabca"], np.uint64)
    assert chr(run(KHop(9, 40, k=2), word).output[8]) == "a"


@pytest.mark.parametrize("kind", [InductionHead, KHop])
def test_the_letter_that_stands_for_nothing_is_refused(kind):
    with pytest.raises(InputError, match="stands for"):
        run(kind(2, 40), np.array([0, 2**64 - 1], np.uint64))


@pytest.mark.slow
@pytest.mark.parametrize("edges", ["path", "star", "cycle", "matching"])
def test_components_of_graphs_with_long_paths_and_high_degrees(edges):
    place = np.arange(300)
    pairs = {
        "path": (place, place + 1),
        "star": (place * 0, place + 1),
        "cycle": (place, (place + 1) % 300),
        "matching": (2 * place, 2 * place + 1),
    }
    words = np.column_stack(pairs[edges]).astype(np.uint64)
    protocol = Connectivity(300, 400, vertices=601)
    assert np.array_equal(run(protocol, words).output, protocol.oracle(words))


def test_an_edge_to_a_vertex_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="a vertex from 0 to 4"):
        run(Connectivity(1, 100, vertices=5), [[0, 5]])


def test_exact_match_treats_signed_zeros_as_equal_and_nan_as_equal_to_nothing():
    protocol = ExactMatchAttention(3, 60)
    words = protocol.encode([[-0.0], [np.nan], [7]], [[0.0], [np.nan], [7]], [[1], [2], [3]])
    assert run(protocol, words).output.ravel().tolist() == [1, 0, 3]


def _signs(rows):
    return (rows[:, :4] > 0).astype(np.int64) + 2 * (rows[:, 1:5] > 0)


def test_anna_with_a_hasher_equals_anna_with_its_codes():
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 50, 5))
    hashing = AnnaAttention(50, 300, tables=4, value_dim=5, hasher=_signs, dim=5)
    coded = AnnaAttention(50, 300, tables=4, value_dim=5)
    outputs = [
        run(hashing, hashing.encode(query, key, value)).output,
        run(coded, coded.encode(_signs(query), _signs(key), value)).output,
    ]
    assert np.array_equal(*outputs)
    check_sharding(hashing, hashing.encode(query, key, value))


def test_codes_of_the_wrong_shape_or_kind_are_refused():
    protocol = AnnaAttention(2, 100, tables=2)
    with pytest.raises(InputError, match="integer bucket codes"):
        protocol.encode([[1.5, 2], [3, 4]], [[1, 2], [3, 4]], [[0], [0]])
    with pytest.raises(InputError, match="integer bucket codes"):
        protocol.encode([[1], [3]], [[1, 2], [3, 4]], [[0], [0]])


@pytest.mark.parametrize("numbers", [[0] * 40, [1] * 40, [0, 0, *[5] * 38], [-2, *[1] * 39], [-2, 1, *[9] * 38]])
def test_three_sum_uses_a_number_as_often_as_it_occurs(numbers):
    protocol = ThreeSum(40, ThreeSum.least_memory(40))
    expected = any(sum(three) == 0 for three in combinations(numbers, 3))
    assert run(protocol, protocol.encode(numbers)).output == expected


@pytest.mark.parametrize("number", [2**61, -(2**61), -(2**63), 2**63])
def test_numbers_too_large_to_add_three_of_are_refused(number):
    with pytest.raises(InputError, match=r"2\^61"):
        ThreeSum(1, 20).encode(np.array([number]))


@pytest.mark.parametrize("third", [0, 1])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("others", [0, 60])
def test_the_largest_numbers_allowed_add_up(third, sign, others):
    numbers = np.array([2**61 - 1, -(2**60), -(2**60) + third, *range(2**61 - 1 - others, 2**61 - 1)])
    protocol = ThreeSum(len(numbers), ThreeSum.least_memory(len(numbers)))
    expected = any(sum(three) == 0 for three in combinations(numbers.tolist(), 3))
    assert run(protocol, protocol.encode(sign * numbers)).output == expected


def test_bucket_codes_that_would_wrap_are_refused():
    with pytest.raises(InputError, match="int64"):
        AnnaAttention(1, 40).encode(np.array([[2**64 - 1]], np.uint64), [[-1]], [[1.0]])


@pytest.mark.parametrize("value", [[["a"]], [[1j]]])
def test_values_that_are_not_real_are_refused(value):
    with pytest.raises(InputError, match=r"value: got .* expected real numbers"):
        ExactMatchAttention(1, 40).encode([[1]], [[1]], np.array(value))


@pytest.mark.parametrize(("query", "key"), [(np.nan, 1), (1, np.nan), (np.nan, np.nan)])
def test_attention_in_which_nobody_takes_part_is_zero(query, key):
    protocol = ExactMatchAttention(3, 60, value_dim=2)
    words = protocol.encode(np.full((3, 1), query), np.full((3, 1), key), np.ones((3, 2)))
    assert run(protocol, words).output.tolist() == [[0, 0]] * 3
    assert run(with_partners(protocol, 2), words).output.tolist() == [[0, 0]] * 3


@pytest.mark.parametrize(
    ("name", "memory", "parameters"),
    [
        ("Sort", lambda n: 2 * n**0.7, {}),
        ("InductionHead", lambda n: 6 * n**0.7, {}),
        ("ExactMatchAttention", lambda n: 10 * n**0.7, {}),
        ("AnnaAttention", lambda n: 20 * n**0.7, {"tables": 2}),
    ],
)
def test_rounds_do_not_grow_with_n(name, memory, parameters):
    rounds = {PROTOCOLS[name](n, int(memory(n)), **parameters).rounds for n in (2**e for e in range(10, 21))}
    assert len(rounds) == 1


def test_rounds_of_three_sum_stay_bounded_with_memory_of_seven_roots():
    assert max(ThreeSum(n, int(7 * n**0.5)).rounds for n in (2**e for e in range(6, 21))) == 23


def test_rounds_of_k_hop_grow_by_two_for_every_doubling_of_k():
    rounds = [KHop(1024, 1000, k=2**e).rounds for e in range(10)]
    assert np.diff(rounds).tolist() == [2] * 9
