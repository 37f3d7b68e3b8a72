"""Protocols as transformers: the same output, sizes by formula, and refusals with their reasons."""

import numpy as np
import pytest
import torch

from annattn.compiler import ExactMatch, Transformer, to_protocol, to_transformer, value_widths
from annattn.compiler.identifiers import Identifiers, separating_hasher
from annattn.errors import CollisionError, CompileError, InboxError, InputError, OutboxError, WordError
from annattn.mpc import Limits, PerMachine, run, with_partners
from annattn.mpc.protocols import PROTOCOLS, Broadcast, InductionHead, KHop, Permute, PrefixSum, Sort, Sum
from tests.compiler.cases import RandomProtocol, compiled_equals, random_input

ATTENTIONS = ["ema", "anna"]


def small(name: str):
    """A protocol of a few machines."""
    parameters = {"Connectivity": {"vertices": 3}, "KHop": {"k": 5}, "Sort": {"width": 2}}.get(name, {})
    n = 4 if name == "Connectivity" else 14
    kind = PROTOCOLS[name]
    return kind(n, 2 * kind.least_memory(n, **parameters), **parameters)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_compiles_and_gives_its_answer(name, attention):
    protocol = small(name)
    words = protocol.sample(np.random.default_rng(1))
    model = to_transformer(protocol, attention)
    assert protocol.agrees(model.run(words), protocol.oracle(words))
    assert model.sizes.layers == protocol.rounds + 1


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("first", [0, 10, 20])
def test_random_protocols_send_the_same_mail(first, attention):
    for seed in range(first, first + 10):
        compiled_equals(seed, attention)


@pytest.mark.parametrize("bits", [16, 64])
@pytest.mark.parametrize("partners", [None, 1, 3, 100])
@pytest.mark.parametrize("memory", [1, 2, 5, 16])
@pytest.mark.parametrize("machines", [1, 2, 7, 200])
def test_sizes_are_those_of_the_formulas(machines, memory, partners, bits):
    limits = Limits(machines, memory, bits, partners)
    protocol = PerMachine(lambda r, machine, inbox: [(machine, w) for _, (w,) in inbox], rounds=3, limits=limits)
    sizes = to_transformer(protocol, example=[1]).sizes
    senders = min(memory, machines, machines if partners is None else partners + 1)
    limbs = 1 if bits <= 32 else 2
    slots = min(machines, 4 * senders + 32)
    assert sizes.layers == 4
    assert sizes.heads == senders
    assert sizes.query_width == int(np.ceil(np.log2(machines + 2)))
    assert sizes.value_width == max(memory * (2 + limbs), slots * (6 + memory * limbs))
    weight = 1 if slots == machines else 8
    assert sizes.nonzeros == max(memory * (2 + limbs), weight * (6 + memory * limbs))
    found = value_widths(limits)
    assert found.built == slots * (6 + memory * limbs)
    for width, power in ((found.lemma, 4), (found.square, 2)):
        assert width == max(1, int(np.ceil(12 * senders**power * np.log(machines)))) * (6 + memory * limbs)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_with_few_partners_there_are_few_heads(k):
    protocol = Permute(60, 8)
    words = protocol.sample(np.random.default_rng(0))
    model = to_transformer(protocol, partners=k)
    assert model.sizes.heads == k + 1 < to_transformer(protocol).sizes.heads
    assert model.sizes.layers == with_partners(protocol, k).round_formula() + 1
    assert np.array_equal(model.run(words), protocol.oracle(words))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_lemmas_own_widths_work_where_they_fit(attention):
    for seed in range(6):
        protocol = RandomProtocol(seed, machines=6, memory=3, rounds=2)
        words = random_input(protocol, seed)
        model = to_transformer(protocol, attention, mode="theorem")
        assert model.widths.built == model.widths.lemma
        assert model.run(words) == run(protocol, words).output


def test_k_hop_takes_layers_like_log_k():
    layers = {k: to_transformer(KHop(40, 60, k=k)).sizes.layers for k in (1, 2, 3, 4, 8, 16, 31, 32)}
    base = layers[1]
    assert {k: count - base for k, count in layers.items()} == {k: 2 * int(np.log2(k)) for k in layers}


@pytest.mark.parametrize(
    ("protocol", "each"),
    [(Sort(20, 12), 10), (KHop(20, 24), 4), (Permute(10, 4), 2), (Broadcast(20, 4), 4), (PrefixSum(20, 6), 5),
     (InductionHead(20, 30), 6), (Sum(20, 4), 1)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_token_i_holds_output_word_i(protocol, each):
    words = protocol.sample(np.random.default_rng(3))
    model = to_transformer(protocol, outputs_each=each)
    rows = model(model.embed(words)).numpy()
    expected = np.ravel(run(protocol, words).output)
    assert model.sizes.layers == protocol.rounds + 1
    halves = rows[: len(expected), 2:4].astype(np.uint64)
    assert np.array_equal(halves[:, 0] + (halves[:, 1] << np.uint64(32)), expected)
    assert (rows[: len(expected), 1] == 1).all()
    assert (rows[len(expected) :, 1] == 0).all()


def test_a_trace_follows_a_token_through_the_layers():
    model = to_transformer(Sum(n=6, memory_words=3))
    trace = model.trace(model.embed([1, 2, 3, 4, 5, 6]), tokens=[0, 1])
    # After the first layer machine 1 holds the words 4, 5, 6: (token, width, records, then source, low, high half).
    assert trace.states[1][1].tolist() == [1, 1, 3, 1, 4, 0, 1, 5, 0, 1, 6, 0]
    assert trace.states[-1][0].tolist()[:6] == [0, 1, 1, 0, 21, 0]
    assert trace.nonzeros > 0


def test_leaving_out_tokens_that_take_no_part_changes_nothing():
    protocol = RandomProtocol(4)
    model = to_transformer(protocol)
    x = model.embed(random_input(protocol, 4))
    everyone = Transformer([_plain(layer) for layer in model.layers])
    assert torch.equal(model(x), everyone(x))


def _plain(layer):
    from dataclasses import replace

    return replace(layer, heads=[replace(head, takes_part=None) for head in layer.heads])


@pytest.mark.parametrize("machines", [1, 2, 6, 30, 1000])
def test_planned_hash_functions_tell_all_names_apart(machines):
    names = Identifiers(machines)
    everyone = names(list(range(machines + 2)))
    assert len(torch.unique(everyone, dim=0)) == machines + 2
    for failure in (0.01, 0.9999):
        (codes,) = separating_hasher(names, failure=failure).joint_codes(everyone)
        for table in codes.unbind(-1):
            assert len(set(table.tolist())) == machines + 2


def test_hash_functions_that_do_not_are_drawn_again():
    assert separating_hasher(Identifiers(6), failure=0.9999).seed > 0


def test_a_message_that_hashing_led_astray_is_an_error():
    protocol = Permute(12, 4)
    model = to_transformer(protocol, "anna")
    broken = _everything_in_one_bucket(model)
    with pytest.raises(CollisionError, match="layer 1, head 0, token"):
        broken(model.embed(protocol.sample(np.random.default_rng(0))))


def _everything_in_one_bucket(model):
    from dataclasses import replace

    class OneBucket(ExactMatch):
        def __call__(self, query, key, value):
            return super().__call__(query * 0, key * 0, value)

    return Transformer([model.layers[0], *(replace(layer, attention=OneBucket()) for layer in model.layers[1:])])


def test_too_few_slots_are_an_error_that_names_layer_head_and_token():
    limits = Limits(machines=12, memory_words=12)
    everyone_to_three = PerMachine(lambda r, machine, inbox: [(3, machine)], rounds=1, limits=limits)
    words = np.ones((144, 1), np.uint64)
    assert to_transformer(everyone_to_three, example=words).run(words).tolist() == list(range(12))
    with pytest.raises(CollisionError, match="layer 1, head 0, token 3"):
        to_transformer(everyone_to_three, example=words, slots=2).run(words)


def test_a_nondeterministic_protocol_is_refused():
    rng = np.random.default_rng(0)
    dice = PerMachine(lambda r, m, inbox: [(m, int(rng.integers(9)))], rounds=2, limits=Limits(4, 4))
    with pytest.raises(CompileError, match="round 0 when its step was called again, expected a deterministic"):
        to_transformer(dice)


def test_a_protocol_that_breaks_its_limits_is_refused_with_the_breach():
    shout = PerMachine(lambda r, m, inbox: [(0, 1)] * 5, rounds=1, limits=Limits(4, 4))
    with pytest.raises(CompileError, match="round 0, machine 0: sent 5 words, but memory_words allows 4"):
        to_transformer(shout)


def test_a_protocol_whose_machines_look_at_each_other_is_refused():
    class Peeking(Sum):
        def step(self, round, mail):  # noqa: A002
            sent = super().step(round, mail)
            sent.words[:] = len(mail)
            return sent

    with pytest.raises(CompileError, match="own mail alone"):
        to_transformer(Peeking(20, 4))


def test_a_breach_on_another_input_is_an_error_when_it_runs():
    limits = Limits(4, 4, word_bits=8)
    greedy = PerMachine(lambda r, m, inbox: [(0, 1)] * (9 if inbox[0][1] == (7,) else 1), rounds=1, limits=limits)
    model = to_transformer(greedy, example=[1])
    assert model.run([2]).tolist() == [1]
    with pytest.raises(OutboxError, match="round 0, machine 0: sent 9 words"):
        model.run([7])
    with pytest.raises(WordError, match="the input, machine 0"):
        model.run([256])


@pytest.mark.parametrize("each", [None, 2])
def test_an_inbox_that_overflows_on_another_input_is_an_error_when_it_runs(each):
    def gather_at_three(r, machine, inbox):
        return [(3 if inbox[0][1] == (7,) else machine, word) for word in range(2)]

    crowd = PerMachine(gather_at_three, rounds=1, limits=Limits(4, 4, word_bits=8))
    model = to_transformer(crowd, example=np.ones(16, int), outputs_each=each)
    assert model.run(np.full(16, 2)).tolist() == [0, 1] * 4
    with pytest.raises(InboxError, match="round 0, machine 3: received 8 words, but memory_words allows 4"):
        model.run(np.full(16, 7))


def test_values_too_wide_for_memory_are_refused():
    with pytest.raises(CompileError, match=r"values \d+ wide for 50 machines, .* GiB per head, expected at most 8 GiB"):
        to_transformer(Permute(400, 16), mode="theorem")
    with pytest.raises(CompileError, match="GiB per head"):
        to_transformer(Permute(400, 16), memory_bytes=1000)


def test_a_protocol_that_refuses_random_words_asks_for_an_example():
    def only_sevens(r, machine, inbox):
        if any(words != (7,) for _, words in inbox):
            raise InputError("words", given="others", expected="sevens")
        return [(machine, 7)]

    picky = PerMachine(only_sevens, rounds=1, limits=Limits(3, 3))
    with pytest.raises(InputError, match="sevens"):
        to_transformer(picky)
    assert to_transformer(picky, example=[7, 7]).run([7]).tolist() == [7]


@pytest.mark.parametrize(("option", "value"), [("attention", "soft"), ("mode", "fast"), ("outputs_each", 0)])
def test_unknown_options_are_refused(option, value):
    with pytest.raises(InputError, match=option):
        to_transformer(Sum(4, 2), **{option: value})


def test_what_is_neither_is_named():
    with pytest.raises(InputError, match="protocol: got int"):
        to_transformer(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="transformer: got Linear"):
        to_protocol(torch.nn.Linear(2, 2), 3, 60, dim=2)  # type: ignore[arg-type]
    model = to_transformer(Sum(9, 4))
    with pytest.raises(InputError, match=r"n: got 2\.5"):
        to_protocol(model, 2.5, 1000)  # type: ignore[arg-type]
