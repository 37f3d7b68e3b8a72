"""Queries and keys get the gradient of the collision probability on the pairs that met.

The truth: replace every count c_ij by c_ij · (p(x_ij)/p(x0_ij))^z, which equals c_ij where x = x0 and has the wanted
derivative there, and let autograd differentiate.
"""

import math
from contextlib import nullcontext

import pytest
import torch

import annattn as aa
from annattn.attention import reference
from annattn.attention.latest_match import latest_match_weights
from annattn.errors import InputError
from annattn.kernels import use_backend
from annattn.kernels.torch import gradient as routes
from annattn.lsh import CrossPolytope, Euclidean, Hyperplane, Identity

HASHER = Hyperplane(4).sample(tables=6, hashes=2, seed=0)
ROUTES = {
    "compiled": {},
    "all pairs": {"_ALL_PAIRS": 10**9},
    "by bucket": {"_ALL_PAIRS": 0, "_SMALL": 1, "_CHUNK": 3},
    "by bucket, large chunks": {"_ALL_PAIRS": 0, "_SMALL": 1, "_CHUNK": 10**6},
    "list of pairs": {"_ALL_PAIRS": 0, "_SMALL": 10**9, "_LIST": 7},
    "mixed": {"_ALL_PAIRS": 0, "_SMALL": 20, "_CHUNK": 4},
}


@pytest.fixture(params=ROUTES)
def route(request, monkeypatch):
    for name, value in ROUTES[request.param].items():
        monkeypatch.setattr(routes, name, value)
    # What is compiled is preferred anyway; insisting on it would refuse the exact slope.
    with nullcontext() if request.param == "compiled" else use_backend("torch"):
        yield


def log_probability(hasher, gradient, cosine):
    if gradient == "linear":
        return hasher.family.linear_slope * cosine
    assert isinstance(hasher.family, Hyperplane)
    return torch.log(1 - torch.acos(cosine) / math.pi)


def surrogate(query, key, value, counts, hasher, gradient):
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    cosine = torch.nn.functional.normalize(query, dim=-1) @ torch.nn.functional.normalize(key, dim=-1).mT
    log = log_probability(hasher, gradient, cosine)
    soft = counts * torch.exp(hasher.hashes * (log - log.detach()))
    return soft @ value / soft.sum(-1, keepdim=True).clamp(min=1e-300)


def inputs(
    queries=23, keys=23, *, seed=0, heads=2, share=2
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(2, heads * share, queries, 4, generator=generator, dtype=torch.float64) * 3
    key = torch.randn(2, heads, keys, 4, generator=generator, dtype=torch.float64) / 2
    value = torch.randn(2, heads, keys, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(2, keys, generator=generator) < 0.8
    return (query.requires_grad_(), key.requires_grad_(), value.requires_grad_()), mask


def counts_of(query, key, hasher, weights, *, is_causal, mask):
    share = query.shape[1] // key.shape[1]
    out = torch.zeros(*query.shape[:3], key.shape[2], dtype=torch.float64)
    for b in range(query.shape[0]):
        seen = reference.visible(query.shape[2], key.shape[2], is_causal=is_causal, key_mask=mask[b])
        for h in range(query.shape[1]):
            out[b, h] = weights(query[b, h].detach(), key[b, h // share].detach(), seen)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["linear", "exact"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(23, 23), (9, 23), (23, 9)])
def test_anna_has_the_gradient_of_its_collision_probability(route, gradient, is_causal, queries, keys):
    tensors, mask = inputs(queries, keys)
    out = aa.anna_attention(*tensors, HASHER, is_causal=is_causal, key_mask=mask, gradient=gradient)
    pull = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    got = torch.autograd.grad(out, tensors, pull)
    counts = counts_of(
        tensors[0],
        tensors[1],
        HASHER,
        lambda q, k, seen: reference.collision_counts(q, k, HASHER) * seen,
        is_causal=is_causal,
        mask=mask,
    )
    expected = surrogate(*tensors, counts, HASHER, gradient)
    torch.testing.assert_close(out, expected)
    wanted = torch.autograd.grad(expected, tensors, pull)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert got[0].abs().max() > 1e-3


@pytest.mark.parametrize("gradient", ["linear", "exact"])
def test_latest_match_has_the_gradient_of_the_pairs_it_took(gradient):
    tensors, mask = inputs(17, 20)
    out = aa.latest_match_attention(*tensors, HASHER, key_mask=mask, gradient=gradient)
    pull = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    got = torch.autograd.grad(out, tensors, pull)
    counts = counts_of(
        tensors[0],
        tensors[1],
        HASHER,
        lambda q, k, seen: latest_match_weights(q, k, seen, hasher=HASHER),
        is_causal=True,
        mask=mask,
    )
    expected = surrogate(*tensors, counts, HASHER, gradient)
    torch.testing.assert_close(out, expected)
    for a, b in zip(got, torch.autograd.grad(expected, tensors, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("rotation", ["dense", "structured"])
def test_cross_polytope_slope_is_the_derivative_of_its_log_probability(rotation):
    family = CrossPolytope(16, rotation=rotation)
    for cosine in (0.9, 0.5, 0.0, -0.3):
        step = 1e-4
        logs = [math.log(family.collision_probability(math.sqrt(2 - 2 * (cosine + shift)))) for shift in (step, -step)]
        slope = family.log_slope(torch.tensor([cosine], dtype=torch.float64)).item()
        assert slope == pytest.approx((logs[0] - logs[1]) / (2 * step), rel=0.02)


def test_hyperplane_slope_is_the_derivative_of_its_log_probability_and_above_the_linear_one():
    family = Hyperplane(4)
    cosine = torch.linspace(-0.99, 0.99, 51, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(torch.log(1 - torch.acos(cosine) / math.pi).sum(), cosine)
    torch.testing.assert_close(family.log_slope(cosine.detach()), slope)
    assert bool((slope >= family.linear_slope).all())


@pytest.mark.slow
def test_half_precision_and_equal_vectors_give_finite_gradients():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = torch.randn(1, 1, 12, 4).to(dtype).requires_grad_()
        for gradient in ("linear", "exact"):
            out = aa.anna_attention(x, x, x, HASHER, gradient=gradient)
            (grad,) = torch.autograd.grad(out.float().sum(), x)
            assert grad.dtype == dtype
            assert grad.isfinite().all()


def test_none_trains_the_values_alone():
    tensors, _ = inputs()
    for out in (
        aa.anna_attention(*tensors, HASHER, gradient="none"),
        aa.latest_match_attention(*tensors, HASHER, gradient="none"),
    ):
        got = torch.autograd.grad(out.sum(), tensors, allow_unused=True)
        assert all(g is None or g.count_nonzero() == 0 for g in got[:2])
        assert got[2].count_nonzero() > 0


@pytest.mark.parametrize("family", [Euclidean(4), Identity(4)], ids=repr)
def test_a_family_without_angles_says_so_before_anything_runs(family):
    tensors, _ = inputs()
    hasher = family.sample(tables=1, hashes=1)
    with pytest.raises(InputError, match='pass gradient="none", or detach'):
        aa.anna_attention(*tensors, hasher)
    aa.anna_attention(*tensors, hasher, gradient="none")
    with torch.no_grad():
        aa.anna_attention(*tensors, hasher)


def test_an_unknown_gradient_is_refused():
    tensors, _ = inputs()
    with pytest.raises(InputError, match="gradient: got 'straight'"):
        aa.anna_attention(*tensors, HASHER, gradient="straight")  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["linear", "exact"])
def test_training_steps_compile_into_one_graph(gradient):
    tensors, _ = inputs()

    def loss(query, key, value):
        anna = aa.anna_attention(query, key, value, HASHER, is_causal=True, gradient=gradient)
        latest = aa.latest_match_attention(query, key, value, HASHER, gradient=gradient)
        return (anna * anna).sum() + latest.sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(loss(*tensors), tensors)
    for a, b in zip(torch.autograd.grad(compiled(*tensors), tensors), expected, strict=True):
        torch.testing.assert_close(a, b)
