"""Every row holds, and no row holds when the thing it builds is broken."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest

from annattn.compiler import Transformer, low_rank_layer
from annattn.compiler.collision_layer import CollisionLayer
from annattn.compiler.sparse_code import Decoded, SparseCode
from annattn.compiler.to_protocol import TransformerProtocol
from annattn.lsh import HashFamily
from annattn.mpc import Mail
from annattn.mpc.partners import PartneredProtocol
from annattn.mpc.parts import columnsort, match, samplesort
from annattn.mpc.parts.copies import Copies
from annattn.mpc.parts.stages import Stage
from annattn.mpc.protocols import SoftmaxAttention
from annattn.theorems import (
    THEOREMS,
    depth_lower_bounds,
    feature_maps,
    linear_memory,
    low_rank_separation,
    match2,
    mpc_simulates_ema,
    mpc_simulates_softmax,
    simulation,
    sum_and_reformer,
)

to_transformer = importlib.import_module("annattn.compiler.to_transformer")


MORE = {
    "rounds": lambda built: built + 1,
    "layers": lambda built: built + 1,
    "heads": lambda built: built + 1,
    "machines": lambda built: 2 * built,
    "width": lambda built: 1.25 * built,
}


def check_slack(row):
    """Whatever a row bounds from above at some size is bounded closely: a little more of it breaks a bound there."""
    bounded = {}
    for bound in row.bounds:
        if bound.relation != "≥":
            bounded.setdefault((bound.what, bound.at), []).append(bound)
    loose = {}
    for (what, _), bounds in bounded.items():
        for more in (more for kind, more in MORE.items() if kind in what):
            breaks = any(not replace(bound, measured=more(bound.measured)).holds for bound in bounds)
            loose.setdefault(what, []).append(not breaks)
    # Where a bound is a constant for all N, it need not be met at the smallest.
    assert not [what for what, at_sizes in loose.items() if all(at_sizes)], loose


@pytest.mark.slow
@pytest.mark.parametrize("name", THEOREMS)
def test_every_row_holds_at_small_sizes_closely_and_says_what_it_did(name):
    told = []
    row = THEOREMS[name]("tiny", told.append)
    check_slack(row)
    assert row.holds, [str(bound) for bound in row.broken]
    assert row.inputs == row.equal > 0
    assert all((row.bounds, row.exponents, row.sizes, told))
    assert json.loads(json.dumps(row.to_dict(), allow_nan=False))["holds"] is True


def fewer_tables(patch):
    sample = HashFamily.sample
    patch.setattr(HashFamily, "sample", lambda self, *, tables, **more: sample(self, tables=tables // 3, **more))


def fewer_hashes(patch):
    sample = HashFamily.sample
    patch.setattr(HashFamily, "sample", lambda self, *, hashes, **more: sample(self, hashes=hashes // 3, **more))


def keep_all_tables(patch):
    patch.setattr(linear_memory, "one_table_at_a_time", linear_memory.all_tables)


def forget_a_key(patch):
    right = linear_memory.one_table_at_a_time
    patch.setattr(
        linear_memory,
        "one_table_at_a_time",
        lambda q, k, v, hasher: right(q, k, v * (np.arange(len(v)) > 0)[:, None], hasher),
    )


def lose_mail_between_machines(patch):
    """A protocol made from a transformer loses one record in round 1."""
    right = TransformerProtocol.step

    def step(self, turn, mail):
        sent = right(self, turn, mail)
        return sent.take(np.arange(len(sent)) > 0) if turn == 1 else sent

    patch.setattr(TransformerProtocol, "step", step)


def lose_a_message_in_attention(patch):
    """A compiled protocol's readers overlook one of the messages they decode in the first routing layer."""
    right = SparseCode.decode

    def decode(self, mean, *, layer, head):
        found = right(self, mean, layer=layer, head=head)
        keep = slice(1 if layer == 1 else 0, None)
        return Decoded(found.reader[keep], found.sender[keep], found.body[keep])

    patch.setattr(SparseCode, "decode", decode)


def change_a_word_in_attention(patch):
    """A compiled protocol's readers misread one word of the first message they decode in the first routing layer."""
    right = SparseCode.decode

    def decode(self, mean, *, layer, head):
        found = right(self, mean, layer=layer, head=head)
        if layer == 1 and len(found.body):
            found.body[0, -1] ^= 1
        return found

    patch.setattr(SparseCode, "decode", decode)


def one_head_too_many(patch):
    right = to_transformer.senders_per_head
    patch.setattr(to_transformer, "senders_per_head", lambda limits: right(limits) + 1)


def twice_the_layers(patch):
    """Every compiled protocol counts as twice as deep."""

    def predicted(cls, protocol):
        made = right(cls, protocol)
        return replace(made, layers=2 * made.layers)

    right = simulation.PredictedSizes.of.__func__
    patch.setattr(simulation.PredictedSizes, "of", classmethod(predicted))


def no_dealing(patch):
    """Packets for few partners are not dealt out before they are routed."""
    right = PartneredProtocol.__init__

    def init(self, *given):
        right(self, *given)
        self.schedule = [(deals, digit) for deals, digit in self.schedule if not deals]
        self.rounds = self.protocol.rounds * len(self.schedule)

    patch.setattr(PartneredProtocol, "__init__", init)


def one_hop_too_many(patch):
    """The packets of few partners are dealt out once more than they need to be."""
    right = PartneredProtocol.__init__

    def init(self, *given):
        right(self, *given)
        self.schedule = [self.schedule[0], *self.schedule] if self.digits > 1 else self.schedule
        self.rounds = self.protocol.rounds * len(self.schedule)

    patch.setattr(PartneredProtocol, "__init__", init)


def twice_the_machines_to_sort(patch):
    for kind in (columnsort.Columnsort, samplesort.Samplesort):
        right = kind.machines
        patch.setattr(kind, "machines", property(lambda self, right=right: 2 * right.__get__(self)))


def one_more_level_in_the_tree_of_sums(patch):
    """Nodes of the tree for low-rank attention have half as many children as they have room for."""
    right = low_rank_layer.Tree
    patch.setattr(low_rank_layer, "Tree", lambda leaves, arity, base: right(leaves, max(2, arity // 2), base))


def one_more_level_of_sorting(patch):
    """Columnsort takes one level more than it needs: four times the rounds."""
    right = match.plan_sort

    def more(n, capacity, seed=0):
        plan = right(n, capacity, seed)
        levels = len(plan.columns) + 1 if isinstance(plan, columnsort.Columnsort) else 0
        return next(iter(columnsort._plans(n, capacity, levels)), plan) if 1 < levels <= 3 else plan

    patch.setattr(match, "plan_sort", more)


def one_more_level_of_samples(patch):
    """Sorting by samples takes one level more than it needs: four more rounds."""
    right = match.plan_sort

    def more(n, capacity, seed=0):
        plan = right(n, capacity, seed)
        if isinstance(plan, columnsort.Columnsort):
            return plan
        return replace(plan, arity=int(plan.buckets ** (1 / (plan.levels + 1))) + 1, levels=plan.levels + 1)

    patch.setattr(match, "plan_sort", more)


def one_more_round_down_the_tree(patch):
    """The tree to the copies of a token machine is one level too deep."""
    right = Copies.depth
    patch.setattr(Copies, "depth", property(lambda self: right.__get__(self) + (self.copies > 1)))


def a_copy_that_forgets_its_last_table(patch):
    right = CollisionLayer._records

    def fewer(self, token, x, sender, tables):
        made = right(self, token, x, sender, tables)
        return made.take(made.words[:, 0] != tables.stop - 1) if len(tables) < self.tables else made

    patch.setattr(CollisionLayer, "_records", fewer)


def a_machine_for_every_token(module):
    """The paper's token machines taken literally."""

    def sabotage(patch):
        right = module.as_protocol

        def literal(transformer, n, *room):
            made = right(transformer, n, *room)
            made.limits = replace(made.limits, machines=made.limits.machines + n)
            return made

        patch.setattr(module, "as_protocol", literal)

    return sabotage


def as_printed(patch):
    patch.setattr(match2, "match2_transformer", lambda modulus, attention=None: match2.as_printed(modulus))


def one_wrong_output(patch):
    right = Transformer.__call__

    def call(self, x):
        out = right(self, x).clone()
        out[-1] += 1
        return out

    patch.setattr(Transformer, "__call__", call)


def a_token_that_looks_outside_its_chunk(patch):
    right = sum_and_reformer.FixedReformer.__call__
    patch.setattr(sum_and_reformer.FixedReformer, "__call__", lambda self, x: right(self, x) + x.mean(1, keepdim=True))


def a_chunk_that_is_not_joined(patch):
    right = sum_and_reformer.random_reformer

    def fewer(*args, **kwargs):
        made = right(*args, **kwargs)
        return replace(made, chunks=made.chunks[:1] * len(made.chunks))

    patch.setattr(sum_and_reformer, "random_reformer", fewer)


def a_pair_that_is_left_out(patch):
    """Softmax attention on machines loses one partial sum in the last round."""
    right = SoftmaxAttention._divide
    patch.setattr(SoftmaxAttention, "_divide", lambda self, i, mail: right(self, i, mail.take(mail.src != 1)))


def two_machines_for_every_pair(patch):
    right = mpc_simulates_softmax.softmax

    def doubled(n):
        made = right(n)
        made.limits = replace(made.limits, machines=2 * made.limits.machines)
        return made

    patch.setattr(mpc_simulates_softmax, "softmax", doubled)


def a_round_too_many_in_the_second_layer(patch):
    right = depth_lower_bounds.what_follows

    def more(n, *, layers, **rest):
        made = right(n, layers=layers, **rest)
        return replace(made, rounds=made.rounds + (layers > 1))

    patch.setattr(depth_lower_bounds, "what_follows", more)


def cycles_that_fall_apart(patch):
    right = depth_lower_bounds.cycles
    patch.setattr(depth_lower_bounds, "cycles", lambda vertices, number, seed: right(vertices, 2 * number, seed))


def a_phase_of_twice_the_rounds(patch):
    right = depth_lower_bounds.Connectivity

    def slow(*sizes):
        made = right(*sizes)
        made.stages = (*made.stages, Stage(made.rounds, lambda i, mail: Mail(mail.dest, mail.dest, mail.words)))
        return made

    patch.setattr(depth_lower_bounds, "Connectivity", slow)


def a_decoder_that_forgets(patch):
    right = low_rank_separation.Decoder.read

    def read(self, letter):
        self.known[0] = 0
        return right(self, letter)

    patch.setattr(low_rank_separation.Decoder, "read", read)


def keys_that_are_answered_alike(patch):
    right = low_rank_separation.answers_after
    patch.setattr(low_rank_separation, "answers_after", lambda keys, follows: right(keys, (keys, *follows[1:])))


def a_layer_for_every_hop(patch):
    right = low_rank_separation.KHop

    def slow(n, memory, k=1):
        made = right(n, memory, k)
        made.stages = (*made.stages, *made.stages[-1:] * (k > 1))
        return made

    patch.setattr(low_rank_separation, "KHop", slow)


def feature_maps_that_are_not_low_rank(patch):
    right = feature_maps.low_rank_attention
    patch.setattr(feature_maps, "low_rank_attention", lambda q, k, v, **given: right(q, k, v, **given) + q[..., :1])


COMPILED = [lose_a_message_in_attention, one_head_too_many, twice_the_layers]
SABOTAGE = {
    "lsh-guarantee": [fewer_tables, fewer_hashes],
    "linear-memory": [keep_all_tables, forget_a_key],
    "anna-simulates-mpc": [change_a_word_in_attention, *COMPILED[1:], one_hop_too_many],
    "anna-simulates-mpc-improved": [*COMPILED, no_dealing, one_hop_too_many],
    "mpc-simulates-ema": [
        lose_mail_between_machines,
        one_more_level_of_sorting,
        one_more_level_of_samples,
        twice_the_machines_to_sort,
        a_machine_for_every_token(mpc_simulates_ema),
    ],
    "mpc-simulates-anna": [
        lose_mail_between_machines,
        one_more_level_of_sorting,
        one_more_level_of_samples,
        twice_the_machines_to_sort,
        one_more_round_down_the_tree,
        a_copy_that_forgets_its_last_table,
        a_machine_for_every_token(mpc_simulates_ema),  # which builds for both
    ],
    "mpc-simulates-softmax": [a_pair_that_is_left_out, two_machines_for_every_pair],
    "depth-lower-bounds": [
        a_round_too_many_in_the_second_layer,
        cycles_that_fall_apart,
        a_phase_of_twice_the_rounds,
    ],
    "anna-simulates-low-rank": [
        *COMPILED,
        feature_maps_that_are_not_low_rank,
        one_hop_too_many,
        one_more_level_in_the_tree_of_sums,
    ],
    "low-rank-separation": [a_decoder_that_forgets, keys_that_are_answered_alike, a_layer_for_every_hop],
    "match2": [as_printed, one_wrong_output],
    "induction-heads": [*COMPILED, one_hop_too_many],
    "k-hop": [*COMPILED, one_hop_too_many],
    "sum-and-reformer": [a_token_that_looks_outside_its_chunk, a_chunk_that_is_not_joined, one_wrong_output],
}


def test_every_row_is_sabotaged():
    assert set(SABOTAGE) == set(THEOREMS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sabotage"),
    [
        pytest.param(name, broken, id=f"{name}-{number}")
        for name in SABOTAGE
        for number, broken in enumerate(SABOTAGE[name])
    ],
)
def test_a_broken_construction_does_not_hold(name, sabotage, monkeypatch):
    sabotage(monkeypatch)
    assert not THEOREMS[name]("tiny").holds
