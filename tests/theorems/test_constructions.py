"""The constructions made by hand, and the places where the paper's text needed a correction."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annattn.errors import InputError
from annattn.lsh import Hyperplane
from annattn.mpc import check_sharding, run
from annattn.mpc.protocols.induction_head import hop_letters
from annattn.tasks import Match2, Sum
from annattn.theorems.exchange import Exchange
from annattn.theorems.induction_heads import letters_after
from annattn.theorems.lsh_guarantee import proof_sizes
from annattn.theorems.match2 import as_printed, by_counting, by_pairs, hashing, match2_transformer
from annattn.theorems.sum_and_reformer import random_reformer, seen_by_last, sum_transformer


def column(numbers) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 2**52), st.data())
def test_match2_is_solved_for_every_modulus_and_length(modulus, data):
    token = st.one_of(st.integers(0, modulus), st.sampled_from([0, 1, modulus // 2, modulus - 1, modulus]))
    x = np.array(data.draw(st.lists(token, min_size=1, max_size=12)))
    out = match2_transformer(modulus)(column(x.tolist()))
    assert out.flatten().tolist() == by_pairs(x, modulus).tolist() == by_counting(x, modulus).tolist()


def test_match2_gives_the_labels_of_the_task_also_on_hashing():
    task = Match2()
    batch = task.sample(50, seed=0)
    for attention in (None, hashing(batch.inputs.shape[1])):
        transformer = match2_transformer(37, attention)
        for row, labels in zip(batch.inputs, batch.targets, strict=True):
            assert transformer(column(row.tolist())).flatten().tolist() == labels.tolist()


@pytest.mark.parametrize("modulus", [0, -3, 2**52 + 1])
def test_a_modulus_that_float64_cannot_hold_is_refused(modulus):
    with pytest.raises(InputError, match="modulus"):
        match2_transformer(modulus)


def test_the_printed_match2_construction_misses_exactly_the_token_that_is_its_own_opposite():
    modulus = 4
    for x in np.ndindex(*(modulus,) * 3):
        tokens = np.array(x) + 1  # [M] = {1, …, M}
        right = by_pairs(tokens, modulus)
        printed = as_printed(modulus)(column(tokens.tolist())).flatten().numpy()
        assert np.array_equal(printed[tokens < modulus], right[tokens < modulus])
        assert not printed[tokens == modulus].any()
        assert right[tokens == modulus].all()


def test_sum_is_exact_at_every_position():
    task = Sum()
    batch = task.sample(20, seed=0)
    transformer = sum_transformer(batch.inputs.shape[1])
    for row, labels in zip(batch.inputs, batch.targets, strict=True):
        assert set(transformer(column(row.tolist())).flatten().tolist()) == {float(labels[-1])}


@pytest.mark.parametrize(("n", "chunk", "layers"), [(16, 2, 3), (27, 3, 2), (64, 4, 3)])
def test_the_widest_chunks_see_the_positions_that_share_the_higher_digits(n, chunk, layers):
    seen = seen_by_last(random_reformer(n, chunk, layers, widest=True, seed=1), n, seed=2)
    assert np.array_equal(seen, np.arange(n) // chunk**layers == (n - 1) // chunk**layers)


def test_the_failure_of_the_proof_has_a_logarithm_that_the_theorem_leaves_out():
    found = Hyperplane(16).sensitivity(0.2, 6.0)
    sizes = [2**e for e in range(8, 40, 4)]
    scaled = [proof_sizes(n, found.p1, found.p2)[2] * n ** (1 - 3 * found.quality) for n in sizes]
    assert all(b > a for a, b in itertools.pairwise(scaled))
    per_log = [value / math.log(n) for value, n in zip(scaled, sizes, strict=True)]
    assert max(per_log) < 2 * min(per_log)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 9))
def test_the_definition_of_k_hop_and_the_protocols_oracle_agree(word, k):
    letters = np.array(word, dtype=np.uint64)
    assert np.array_equal(letters_after(letters, k), hop_letters(letters, k))


@pytest.mark.parametrize("seed", range(4))
def test_the_exchange_fills_its_limits_and_each_machine_minds_its_own_mail(seed):
    protocol = Exchange(30, memory_words=3, rounds=3, seed=seed)
    words = protocol.sample(np.random.default_rng(seed))
    check_sharding(protocol, words)
    output, trace = run(protocol, words)
    assert trace.loads[0].outbox == 3
    other = words.copy()
    other[7] ^= np.uint64(1)
    assert not np.array_equal(output, run(protocol, other).output)
