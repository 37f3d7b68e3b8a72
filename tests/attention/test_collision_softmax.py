"""Softmax estimated from meetings: exact where nothing is left to chance, and right on average where something is."""

import math

import pytest
import torch

import annattn as aa
from annattn.attention import reference
from annattn.attention.collision_softmax import (
    collision_softmax_pairs,
    collision_softmax_weights,
    log_meeting_probability,
)
from annattn.errors import InputError
from annattn.lsh import CrossPolytope, Euclidean, Hyperplane
from tests.strategies import Inputs, brute_force


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("is_causal", "covered"),
    [
        *((is_causal, covered) for is_causal in (True, False) for covered in ({"window": 12}, {"first": 12})),
        (True, {"window": 5, "first": 7}),
    ],
)
def test_it_is_softmax_attention_where_every_key_is_looked_at(is_causal, covered):
    query, key, value = rows(2, 6, 12, 8), rows(2, 3, 12, 8, seed=1), rows(2, 3, 12, 5, seed=2)
    hasher = Hyperplane(8).sample(tables=2, hashes=30)
    out = aa.collision_softmax_attention(query, key, value, hasher, is_causal=is_causal, **covered)
    dense = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal, enable_gqa=True)
    torch.testing.assert_close(out, dense)


@pytest.mark.slow
@pytest.mark.parametrize("family", [Hyperplane(4), CrossPolytope(4)], ids=str)
@pytest.mark.parametrize("meetings", [1, 2])
def test_numerator_and_denominator_are_right_on_average_over_draws(family, meetings):
    # w_ij / w_i0 with key 0 always looked at is exp(s_ij − s_i0)·[met]/π: its average must be exp(s_ij − s_i0).
    query, key = rows(3, 4), rows(6, 4, seed=1)
    seen = torch.ones(3, 6, dtype=torch.bool)
    draws = 1000
    found = torch.zeros(draws, 3, 6, dtype=torch.float64)
    for seed in range(draws):
        hasher = family.sample(tables=6, hashes=2, seed=seed)
        weights = collision_softmax_weights(query, key, seen, hasher=hasher, scale=0.5, first=1, meetings=meetings)
        found[seed] = weights / weights[:, :1]
    wanted = torch.exp(0.5 * query @ key.T)
    wanted = wanted / wanted[:, :1]
    error = (found.mean(0) - wanted).abs()
    chance = reference.collision_probabilities(query, key, family, 2)
    missed = sum(math.comb(6, c) * chance**c * (1 - chance) ** (6 - c) for c in range(meetings))
    noise = wanted * torch.as_tensor(missed / (1 - missed) / draws).sqrt()  # of an average of [met]/π
    noise[:, 0] = 1e-9
    assert (error <= 4.5 * noise).all(), (error / noise).max()
    # The test would notice weights that are not divided by π.
    assert ((found > 0).double().mean(0) < 0.9).any()


@pytest.mark.slow
def test_more_tables_come_closer_to_softmax():
    query, key, value = rows(1, 1, 60, 8), rows(1, 1, 60, 8, seed=1), rows(1, 1, 60, 4, seed=2)
    dense = torch.nn.functional.scaled_dot_product_attention(query, key, value)

    def error(tables: int) -> float:
        found = [
            aa.collision_softmax_attention(query, key, value, Hyperplane(8).sample(tables=tables, hashes=2, seed=seed))
            for seed in range(5)
        ]
        return (torch.stack(found) - dense).square().mean().item()

    assert error(2) > 4 * error(8) > 16 * error(32)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("queries", [9, 4, 12])
@pytest.mark.parametrize(
    "options",
    [{}, {"window": 3}, {"first": 2}, {"window": 2, "first": 3, "meetings": 2}, {"window": 4, "centre": True}],
)
def test_every_reach_equals_the_reference(options, queries, is_causal):
    query, key, value = rows(2, 2, queries, 3), rows(2, 1, 9, 3, seed=1) + 1, rows(2, 1, 9, 2, seed=2)
    mask = torch.tensor([[True] * 9, [False, False, True, False, True, True, True, True, True]])
    hasher = Hyperplane(3).sample(tables=5, hashes=2, seed=3)
    out = aa.collision_softmax_attention(
        query, key, value, hasher, scale=0.7, is_causal=is_causal, key_mask=mask, **options
    )
    inputs = Inputs(query, key, value, is_causal, mask)
    torch.testing.assert_close(out, brute_force(collision_softmax_weights, inputs, hasher=hasher, scale=0.7, **options))


def test_rare_meetings_have_their_exact_probability():
    for tables in (1, 2, 7, 150):
        for chance in (1e-9, 1e-4, 0.3, 0.999):
            for meetings in (1, 2, 5):
                exact = sum(
                    math.comb(tables, c) * chance**c * (1 - chance) ** (tables - c) for c in range(meetings, tables + 1)
                )
                if exact:
                    log = log_meeting_probability(
                        torch.tensor(math.log(chance), dtype=torch.float64), tables, meetings
                    ).item()
                    assert log == pytest.approx(math.log(exact), rel=1e-9), (tables, chance, meetings)


def test_queries_and_keys_get_the_gradient_of_the_pairs_looked_at():
    query, key, value = (rows(1, heads, 7, 3, seed=heads).requires_grad_() for heads in (2, 1, 1))
    hasher = Hyperplane(3).sample(tables=3, hashes=2, seed=1)
    aa.collision_softmax_attention(query, key, value, hasher, window=2, is_causal=True).square().sum().backward()
    # The same with the meetings and their probabilities held fixed, as torch differentiates it.
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    fixed = [
        collision_softmax_weights(query.detach()[0, h], key.detach()[0, 0], seen, hasher=hasher, scale=0.0, window=2)
        for h in range(2)
    ]
    again = [x.detach().clone().requires_grad_() for x in (query, key, value)]
    scores = (again[0] @ again[1].mT) / math.sqrt(3) + torch.stack(fixed)[None].log()
    (scores.softmax(-1) @ again[2]).square().sum().backward()
    for one, other in zip((query, key, value), again, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_few_meetings_are_few_pairs():
    query, key = rows(1, 1, 400, 16), rows(1, 1, 400, 16, seed=1)
    hasher = Hyperplane(16).sample(tables=4, hashes=12)
    pairs = collision_softmax_pairs(query, key, hasher, window=8, first=2, is_causal=True)
    certain = sum(min(i + 1, 8) + min(2, max(0, i + 1 - 8)) for i in range(400))
    assert certain <= pairs < certain + 400


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"meetings": 9}, "meetings"),
        ({"window": -1}, "window"),
        ({"centre": True}, "centre"),
        ({"scale": math.inf}, "scale"),
        ({"hasher": Euclidean(4, width=1.0).sample(tables=2, hashes=2)}, "hasher"),
    ],
)
def test_what_cannot_be_is_refused(options, named):
    x = rows(1, 1, 3, 4)
    options = {"hasher": Hyperplane(4).sample(tables=2, hashes=2)} | options
    with pytest.raises(InputError, match=named):
        aa.collision_softmax_attention(x, x, x, **options)
