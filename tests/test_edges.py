"""Edges that once gave wrong answers or bare errors."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import annattn as aa
from annattn.errors import InputError
from annattn.kernels import BACKENDS, hash_pair, use_backend
from annattn.lsh import CrossPolytope, Euclidean, Hyperplane, Identity

HASHER = Hyperplane(8).sample(tables=2, hashes=4, seed=0)
EVERY_BACKEND = pytest.mark.parametrize("backend", BACKENDS)


def tokens(n: int = 5, seed: int = 0, dim: int = 8):
    query, key, value = torch.randn(3, 1, 2, n, dim, generator=torch.Generator().manual_seed(seed))
    return query, key, value


def test_plan_takes_numpy_integers_for_what_they_are():
    family = Hyperplane(16)
    assert aa.plan(np.int32(70_000), family, 0.1, 10) == aa.plan(70_000, family, 0.1, 10)  # pyright: ignore
    with pytest.raises(InputError, match="family"):
        aa.plan(100, "hyperplane", 0.1, 10)  # pyright: ignore[reportArgumentType]


def test_plan_is_quick_for_tiny_radii():
    found = aa.plan(256, Hyperplane(16), 1e-7, 2)
    assert found.near_failure + found.far_failure <= 0.1


def test_the_definition_at_radius_zero_with_any_approximation():
    query, key = torch.tensor([[0.0]]), torch.tensor([[0.0], [3.0]])
    wrong, right = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    for approximation in (2.0, math.inf):
        report = aa.check_anna(wrong, query, key, radius=0.0, approximation=approximation, tables=2)
        assert report.far.tolist() == [[0, 1]]
        assert report.near.tolist() == [[0, 0]]
        assert aa.check_anna(right, query, key, radius=0.0, approximation=approximation, tables=2).holds
    lost = torch.tensor([[math.nan]])
    assert not aa.check_anna(right, lost, key, radius=1.0, approximation=2.0, tables=2).holds
    with pytest.raises(InputError, match="weights"):
        aa.check_anna(torch.ones(2), torch.ones(2), torch.ones(2), radius=1.0, approximation=2.0, tables=2)
    assert aa.plan(100, Identity(16), 0.0, math.inf).tables == 1


@EVERY_BACKEND
def test_rows_that_cannot_be_compared_exactly_are_refused(backend):
    value = torch.tensor([10.0, 20.0]).reshape(1, 1, 2, 1)
    for rows in (torch.tensor([1 + 0j, 1 + 5j]), torch.tensor([1, 2], dtype=torch.uint64)):
        x = rows.reshape(1, 1, 2, 1)
        with use_backend(backend), pytest.raises(InputError, match="expected a real dtype"):
            aa.exact_match_attention(x, x, value)


@EVERY_BACKEND
@pytest.mark.parametrize(
    "hasher", [Hyperplane(64).sample(tables=2, hashes=63), CrossPolytope(64).sample(tables=2, hashes=9)], ids=repr
)
def test_codes_of_all_63_bits_work(backend, hasher):
    query, _, value = tokens(dim=64)
    with use_backend(backend):
        assert torch.equal(aa.anna_attention(query, query, value, hasher), value)
        assert torch.equal(aa.latest_match_attention(query, query, value, hasher), value)


@EVERY_BACKEND
def test_no_query_heads_give_no_outputs(backend):
    query, key, value = tokens()
    with use_backend(backend):
        assert aa.anna_attention(query[:, :0], key, value, HASHER).shape == (1, 0, 5, 8)


def test_hashers_of_inference_mode_and_numpy_options_work():
    query, key, value = tokens()
    expected = aa.anna_attention(query, key, value, HASHER)
    with torch.inference_mode():
        hasher = Hyperplane(8).sample(tables=2, hashes=4, seed=0)
        assert torch.equal(aa.anna_attention(query, key, value, hasher), expected)
    assert torch.equal(aa.anna_attention(query, key, value, hasher), expected)
    numpy_made = Hyperplane(np.int64(8)).sample(tables=2, hashes=4, seed=0)  # pyright: ignore[reportArgumentType]
    assert torch.equal(aa.anna_attention(query, key, value, numpy_made), expected)
    Euclidean(8, width=np.float32(2)).sample(tables=1, hashes=1)  # pyright: ignore[reportArgumentType]


def test_a_subclass_hashes_in_its_own_way():
    class Inverted(Hyperplane):
        def evaluate(self, parameters, rows):
            return 1 - super().evaluate(parameters, rows)

    hasher = Inverted(8).sample(tables=2, hashes=4, seed=0)
    query, key, value = tokens()
    assert torch.equal(hash_pair(hasher, query, key)[0], hasher(query))
    assert not torch.equal(hasher(query), HASHER(query))
    with pytest.raises(InputError, match="listed family"):
        aa.anna_attention(query.requires_grad_(), key, value, hasher)


@pytest.mark.parametrize("family", [Hyperplane(8), CrossPolytope(8)], ids=repr)
def test_huge_float64_rows_keep_their_direction(family):
    hasher = family.sample(tables=4, hashes=3, seed=0)
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(hasher(x / x.abs().max() * 1.7e308), hasher(x))


def test_euclidean_probability_is_one_at_any_distance():
    assert Euclidean(4).collision_probability(math.inf) == 0
    assert 0 <= Euclidean(4).collision_probability(1e17) < 1e-12


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e25, 1e38])
def test_softmax_sees_directions_only(scale):
    key = torch.eye(2).reshape(1, 1, 2, 2)
    value = torch.tensor([0.0, 1.0]).reshape(1, 1, 2, 1)
    query = scale * torch.tensor([1.0, 0.0]).reshape(1, 1, 1, 2)
    expected = 1 / (1 + math.exp(10))
    assert aa.softmax_attention(query, key, value, beta=10.0).item() == pytest.approx(expected, rel=1e-4)


def test_softmax_of_a_zero_query_is_the_mean_in_half_precision():
    key, value = torch.randn(1, 1, 3, 4).half(), torch.arange(3.0).half().reshape(1, 1, 3, 1)
    assert aa.softmax_attention(torch.zeros(1, 1, 1, 4).half(), key, value, beta=1.0).item() == 1.0


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e18, 1e30])
@pytest.mark.parametrize("gradient", ["linear", "exact"])
def test_gradients_scale_inversely_with_the_length_of_a_query(scale, gradient):
    query, key, value = tokens(20)

    def turned(factor):
        scaled = (query * factor).requires_grad_()
        out = aa.anna_attention(scaled, key * factor, value, HASHER, gradient=gradient)
        return torch.autograd.grad(out.sum(), scaled)[0].double() * factor

    torch.testing.assert_close(turned(scale), turned(1.0), rtol=2e-4, atol=1e-6)


def test_nan_in_a_value_reaches_the_same_gradients_by_every_route(monkeypatch):
    from annattn.kernels.torch import gradient as routes

    query, key, value = tokens(30)
    value[0, 1, 3] = math.nan
    lost = []
    for backend, pairs in (("torch", 10**9), ("torch", 0), ("numba", 0)):
        monkeypatch.setattr(routes, "_ALL_PAIRS", pairs)
        leaf = query.clone().requires_grad_()
        with aa.kernels.use_backend(backend):
            out = aa.anna_attention(leaf, key, value, HASHER)
            (grad,) = torch.autograd.grad(out.nan_to_num().sum(), leaf)
        lost.append(grad.isnan().any(-1))
    assert torch.equal(lost[0], lost[1])
    assert torch.equal(lost[0], lost[2])
    assert lost[0].any()


def test_reformer_in_half_precision_with_any_chunk():
    hasher = Hyperplane(8).sample(tables=1, hashes=2)
    ones = torch.ones(1, 1, 2, 8).half()
    assert torch.equal(aa.reformer_attention(100 * ones, ones, chunk=10**9, hasher=hasher), ones)
    with pytest.raises(InputError, match="value: got"):
        aa.reformer_attention(ones, ones.float(), chunk=2, hasher=hasher)


def test_cache_rows_are_named_by_integers_only():
    cache = aa.BucketCache(HASHER, value_dim=8, batch=2)
    cache.append(torch.randn(2, 1, 3, 8), torch.randn(2, 1, 3, 8))
    for bad in (torch.tensor([False, True]), torch.tensor([0.5]), torch.tensor(1), [7], [-1]):
        with pytest.raises(InputError, match="rows"):
            cache.reset(bad)
        with pytest.raises(InputError, match="rows"):
            cache.reorder(bad)
    assert cache.lengths == [3, 3]
    with pytest.raises(InputError, match="hasher: got str"):
        aa.BucketCache("hasher", value_dim=8)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="dtype: got"):
        aa.BucketCache(HASHER, value_dim=8, dtype=torch.int64)


@pytest.mark.parametrize(
    "wrong", [None, 1, [1.0], "x", torch.randn(2, 3, 8), torch.randn(1, 2, 3, 8).to_sparse(), torch.randn(1, 2, 3, 5),
              torch.empty(1, 2, 3, 8, device="meta")], ids=lambda x: str(type(x))
)  # fmt: skip
def test_what_a_cache_cannot_take_is_named_and_changes_nothing(wrong: Any):
    query, key, value = tokens(3)
    cache, near = aa.BucketCache(HASHER, heads=2, value_dim=8), aa.WindowCache(HASHER, window=1, heads=2, value_dim=8)
    for one in (cache, near):
        one.step(query, key, value)
    before = cache.attend(query)
    calls = [lambda: cache.attend(wrong), lambda: cache.append(wrong, value), lambda: cache.step(query, wrong, value)]
    calls += [lambda: cache.step(wrong, key, value), lambda: near.step(wrong, key, value)]
    calls += [lambda: near.step(query, key, value, near=(query, wrong))]
    if not isinstance(wrong, int):  # which is a gate
        calls += [lambda: near.step(query, key, value, gate=wrong)]
    if wrong is not None:
        calls += [lambda: near.step(query, key, value, near=wrong)]  # pyright: ignore[reportArgumentType]
    for call in calls:
        with pytest.raises(InputError):
            call()
    assert torch.equal(cache.attend(query), before)
    assert near.tokens == 3
    assert cache.lengths == [3]


@pytest.mark.parametrize("dropout", [-0.1, 1, math.nan, "0.5", None, True])
def test_a_dropout_that_is_no_share_is_named(dropout):
    with pytest.raises(InputError, match="dropout: got"):
        aa.softmax_attention(*tokens(), beta=1.0, dropout=dropout)


def test_inputs_that_are_no_tensors_are_named():
    query, key, value = tokens()
    with pytest.raises(InputError, match=r"key: got ndarray, expected a torch\.Tensor"):
        aa.anna_attention(query, key.numpy(), value, HASHER)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="key_mask: got list"):
        aa.anna_attention(query, key, value, HASHER, key_mask=[True] * 5)  # pyright: ignore[reportArgumentType]
