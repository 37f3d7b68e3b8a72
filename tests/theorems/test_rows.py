"""Every row holds, and no row holds when the thing it builds is broken."""

import json
from dataclasses import replace

import numpy as np
import pytest

from annattn.compiler import Transformer
from annattn.lsh import HashFamily
from annattn.mpc.protocols import AnnaAttention, ExactMatchAttention
from annattn.theorems import (
    THEOREMS,
    linear_memory,
    match2,
    mpc_simulates_anna,
    mpc_simulates_ema,
    sum_and_reformer,
)


@pytest.mark.parametrize("name", THEOREMS)
def test_every_row_holds_at_small_sizes_and_says_what_it_did(name):
    told = []
    row = THEOREMS[name]("tiny", told.append)
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


def drop_a_message(protocol):
    """The protocol with one record lost on the way in round 1."""

    def sabotage(patch):
        right = protocol.step

        def step(self, turn, mail):
            sent = right(self, turn, mail)
            return sent.take(np.arange(len(sent)) > 0) if turn == 1 else sent

        patch.setattr(protocol, "step", step)

    return sabotage


def twice_the_rounds(module):
    def sabotage(patch):
        patch.setattr(module, "ROUNDS", module.ROUNDS / 2)

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


SABOTAGE = {
    "lsh-guarantee": [fewer_tables, fewer_hashes],
    "linear-memory": [keep_all_tables, forget_a_key],
    "mpc-simulates-ema": [drop_a_message(ExactMatchAttention), twice_the_rounds(mpc_simulates_ema)],
    "mpc-simulates-anna": [drop_a_message(AnnaAttention), twice_the_rounds(mpc_simulates_anna)],
    "match2": [as_printed, one_wrong_output],
    "sum-and-reformer": [a_token_that_looks_outside_its_chunk, a_chunk_that_is_not_joined, one_wrong_output],
}


def test_every_row_is_sabotaged():
    assert set(SABOTAGE) == set(THEOREMS)


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
