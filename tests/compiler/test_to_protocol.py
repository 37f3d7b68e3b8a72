"""Transformers as protocols: the same rows, in the rounds of the formula, and there and back again."""

from math import prod

import numpy as np
import pytest
import torch

from annattn.compiler import Anna, ExactMatch, Head, Layer, LowRank, Transformer, to_protocol, to_transformer
from annattn.compiler.collision_layer import CollisionLayer
from annattn.errors import CompileError, InputError, LeastMemoryError
from annattn.lsh import Euclidean, Hyperplane
from annattn.mpc import Limits, PerMachine, check_sharding, run
from annattn.mpc.parts.columnsort import Columnsort
from tests.compiler.cases import low_rank_as_anna, protocol_round_trip, random_transformer


def first(x):
    return x[:, :1]


def rest(x):
    return x[:, 1:]


def one_layer(attention, heads: int = 1) -> Transformer:
    return Transformer([Layer([Head(first, first, rest, 1, 2) for _ in range(heads)], attention)])


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["e", "a", "l", "ee", "eal", "lae", ""])
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_it_gives_the_transformers_rows(kinds, n):
    for seed in range(3):
        model = random_transformer(seed, kinds)
        rows = torch.from_numpy(np.random.default_rng(seed).uniform(-2, 2, (n, 3)))
        least = _least(model, n)
        for memory in (least, least + 37, 5 * least):
            protocol = to_protocol(model, n, memory, dim=3)
            found = run(protocol, protocol.encode(rows))
            # Sums of at most n numbers below 1 in another order, through at most three layers.
            assert np.allclose(found.output, model(rows).numpy(), rtol=0, atol=1e-12)
            assert found.trace.largest_load <= memory


def _least(model: Transformer, n: int) -> int:
    try:
        to_protocol(model, n, 1, dim=3)
    except LeastMemoryError as error:
        to_protocol(model, n, error.least, dim=3)
        with pytest.raises(LeastMemoryError):
            to_protocol(model, n, error.least - 1, dim=3)
        return error.least
    return 1


def test_whole_numbers_come_out_equal():
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(np.column_stack([rng.integers(0, 5, 50), rng.integers(-9, 9, (50, 2))]).astype(float))
    for attention in (ExactMatch(), LowRank(), Anna(Euclidean(1, width=1.0).sample(tables=2, hashes=3))):
        model = one_layer(attention, heads=2)
        for memory in (110, 200):
            protocol = to_protocol(model, 50, memory, dim=3)
            assert np.array_equal(run(protocol, protocol.encode(rows)).output, model(rows).numpy())


@pytest.mark.parametrize("memory", [140, 200, 400, 3000])
@pytest.mark.parametrize("n", [1, 20, 300])
def test_rounds_are_those_of_the_formula_and_do_not_grow_with_heads(n, memory):
    for heads in (1, 2):
        protocol = to_protocol(one_layer(ExactMatch(), heads), n, memory, dim=3)
        part, record = protocol.parts[0], 1 + 1 + 1 + 2 + 1
        assert isinstance(part, CollisionLayer)
        rows = part.match.rows
        leaves, depth = -(-2 * heads * n // rows), 0
        while leaves > 1:
            leaves, depth = -(-leaves // (memory // record - 1)), depth + 1
        assert isinstance(part.match.sort, Columnsort)  # enough memory for it
        columns = part.match.sort.columns
        assert prod(columns) * rows >= 2 * heads * n
        assert protocol.rounds == 4 ** len(columns) + 2 * depth + 2 + 1
        low = to_protocol(one_layer(LowRank(), heads), n, memory, dim=3)
        reach, depth = low.placement.per_machine, 0
        while reach < n:
            reach, depth = reach * (memory // (-(-2 * heads // 3) * 3)), depth + 1
        assert low.rounds == max(1, 2 * depth) + 1


@pytest.mark.parametrize("kinds", ["e", "a", "l", "al"])
def test_its_machines_look_only_at_their_own_mail(kinds):
    model = random_transformer(1, kinds)
    protocol = to_protocol(model, 9, 3 * _least(model, 9), dim=3)
    check_sharding(protocol, protocol.sample(np.random.default_rng(0)), cuts=2)


def test_equal_rows_are_equal_whatever_the_sign_of_zero_and_nan_equals_nothing():
    rows = torch.tensor([[0.0, 1, 2], [-0.0, 3, 4], [torch.nan, 5, 6], [torch.nan, 7, 8]], dtype=torch.float64)
    model = one_layer(ExactMatch())
    protocol = to_protocol(model, 4, 100, dim=3)
    found = run(protocol, protocol.encode(rows)).output
    assert np.array_equal(found, model(rows).numpy())
    hashed = to_protocol(one_layer(Anna(Hyperplane(1).sample(tables=1, hashes=1))), 4, 100, dim=3)
    with pytest.raises(InputError, match="NaN"):
        run(hashed, hashed.encode(rows))


@pytest.mark.parametrize("attention", [ExactMatch(), Anna(Hyperplane(1).sample(tables=3, hashes=2))])
@pytest.mark.parametrize(("n", "memory"), [(60, 200), (200, 400), (200, 2000)])
def test_a_collision_layer_has_no_idle_machines(attention, n, memory):
    protocol = to_protocol(one_layer(attention), n, memory, dim=3)
    rows = np.random.default_rng(0).integers(-4, 4, (n, 3)).astype(float)
    trace = run(protocol, protocol.encode(rows)).trace
    used = np.any([load.received > 0 for load in trace.loads], axis=0)
    assert used.all()


def whole_layers(attention: Anna, layers: int = 2) -> Transformer:
    """Rows of a key and a whole number, so that sums are exact in any order."""

    def update(x, reads):
        return torch.cat([x[:, :1], reads[0].round()], dim=1)

    head = Head(first, first, rest, 1, 1)
    return Transformer([Layer([head], attention, update=update, width=2) for _ in range(layers)])


@pytest.mark.slow
@pytest.mark.parametrize("family", [Hyperplane(1), Euclidean(1, width=1.0)])
@pytest.mark.parametrize(("n", "tables"), [(1, 30), (2, 100), (3, 57), (7, 30)])
def test_tables_that_a_token_machine_has_no_room_for_are_made_by_copies(family, n, tables):
    model = whole_layers(Anna(family.sample(tables=tables, hashes=2)))
    rows = np.random.default_rng(n).integers(-4, 4, (n, 2)).astype(float)
    with pytest.raises(LeastMemoryError) as refused:
        to_protocol(model, n, 1, dim=2)
    depths = set()
    for memory in (refused.value.least, refused.value.least + 7, 2 * tables * 10):
        protocol = to_protocol(model, n, memory, dim=2)
        part = protocol.parts[0]
        assert isinstance(part, CollisionLayer)
        copies = part.copies
        depths.add(copies.depth)
        # A copy makes 2 records per table, and the tree is no deeper than rows and sums of s words need it to be.
        assert part.share * 2 * part.record <= memory
        assert part.share * copies.copies >= tables > part.share * (copies.copies - 1)
        assert copies.depth == 0 or copies.arity ** (copies.depth - 1) < copies.copies <= copies.arity**copies.depth
        assert part.rounds == part.match.rounds + 1 + 2 * copies.depth
        found = run(protocol, protocol.encode(rows))
        assert np.array_equal(found.output, model(torch.from_numpy(rows)).numpy())
        assert found.trace.largest_load <= memory
        assert np.any([load.received > 0 for load in found.trace.loads], axis=0).all()
        check_sharding(protocol, protocol.encode(rows), cuts=2)
    assert len(depths) > 1


def test_codes_of_more_than_one_word_are_packed_and_tell_the_same_rows_apart():
    attention = Anna(Hyperplane(1).sample(tables=1, hashes=130))
    model = whole_layers(attention, layers=1)
    rows = torch.tensor([[1.0, 4.0], [-2.0, 6.0], [3.0, 8.0], [-1.0, -2.0]], dtype=torch.float64)
    protocol = to_protocol(model, 4, 200, dim=2)
    part = protocol.parts[0]
    assert isinstance(part, CollisionLayer)
    assert part.bucket == 1 + 3  # 63 signs per word
    assert np.array_equal(run(protocol, protocol.encode(rows)).output, model(rows).numpy())


@pytest.mark.slow
def test_protocol_to_transformer_to_protocol():
    for seed in range(12):
        protocol_round_trip(seed)


def rotate(round, machine, inbox):  # noqa: A002 - the model's word
    """Every record moves on by its first word, and its words change places."""
    return [((machine + words[0]) % 4, (*words[1:], words[0])) for _, words in inbox]


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("bits", [8, 64])
def test_records_of_several_words_go_there_and_back(width, bits, declared):
    words = np.random.default_rng(width).integers(0, 200, (7, width), dtype=np.uint64)
    options: dict = {"input_width": width} if declared else {}
    protocol = PerMachine(rotate, rounds=2, limits=Limits(4, 24, bits), **options)
    model = to_transformer(protocol, example=words)
    tokens = model.embed(words)
    assert tokens.shape[1] == model.dim
    again = to_protocol(model, len(tokens), memory_words=3000)
    rows = run(again, again.encode(tokens)).output
    assert np.array_equal(model.read(torch.from_numpy(rows)), run(protocol, words).output)


def test_a_scatter_that_adds_words_and_a_gather_that_reads_inboxes_go_there_and_back():
    protocol = PerMachine(
        rotate,
        rounds=2,
        limits=Limits(4, 12, word_bits=8),
        input_width=1,
        scatter=lambda records: [(number % 4, (word, number)) for number, (word,) in enumerate(records)],
        gather=lambda inboxes: {machine: sorted(words for _, words in inbox) for machine, inbox in inboxes.items()},
    )
    words = [3, 1, 4, 1, 5]
    expected = run(protocol, words).output
    assert sorted(words for held in expected.values() for words in held) == [(1, 1), (1, 3), (3, 0), (4, 2), (5, 4)]
    model = to_transformer(protocol)
    assert model.run(words) == expected
    tokens = model.embed(words)
    again = to_protocol(model, len(tokens), memory_words=9000)
    assert model.read(torch.from_numpy(run(again, again.encode(tokens)).output)) == expected


@pytest.mark.slow
def test_low_rank_to_protocol_to_anna():
    for seed in range(8):
        low_rank_as_anna(seed)


def test_what_cannot_be_compiled_is_refused_with_its_reason():
    with pytest.raises(InputError, match="dim"):
        to_protocol(one_layer(ExactMatch()), 5, 100)
    with pytest.raises(InputError, match="n: got 0"):
        to_protocol(one_layer(ExactMatch()), 0, 100, dim=3)
    with pytest.raises(CompileError, match="no run on the example"):
        to_protocol(one_layer(ExactMatch()), 5, 100, dim=1)
    protocol = to_protocol(one_layer(ExactMatch()), 5, 100, dim=3)
    with pytest.raises(InputError, match=r"expected \(5, 3\)"):
        protocol.encode(np.zeros((4, 3)))


def test_a_made_protocol_can_be_compiled_without_an_example():
    model = random_transformer(0, "e")
    protocol = to_protocol(model, 4, 200, dim=3)
    words = protocol.sample(np.random.default_rng(5))
    assert np.array_equal(to_transformer(protocol).run(words), run(protocol, words).output)
