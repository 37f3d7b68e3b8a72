"""Transforms of torch: what they cannot see through says so; autocast stays outside."""

import pytest
import torch
from torch.autograd import forward_ad

import annattn as aa
from annattn.errors import InputError
from annattn.kernels import use_backend

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of torch, by torch

HASHER = aa.lsh.Hyperplane(8).sample(tables=4, hashes=3)
QUERY, KEY, VALUE = torch.randn(3, 1, 2, 300, 8, generator=torch.Generator().manual_seed(0))
ATTENDS = {
    "anna": lambda q, k, v: aa.anna_attention(q, k, v, HASHER),
    "latest_match": lambda q, k, v: aa.latest_match_attention(q, k, v, HASHER),
    "exact_match": aa.exact_match_attention,
}
TRANSFORMS = {
    "jvp": lambda f: torch.func.jvp(lambda v: f(QUERY, KEY, v), (VALUE,), (VALUE,)),
    "jacfwd": lambda f: torch.func.jacfwd(lambda v: f(QUERY, KEY, v).sum())(VALUE),
    "grad": lambda f: torch.func.grad(lambda v: f(QUERY, KEY, v).sum())(VALUE),
    "vjp": lambda f: torch.func.vjp(f, QUERY, KEY, VALUE),
    "jacrev": lambda f: torch.func.jacrev(lambda v: f(QUERY, KEY, v).sum())(VALUE),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(lambda v: f(QUERY, KEY, v).sum()))(VALUE[None]),
    "grad of vmap": lambda f: torch.func.grad(lambda v: torch.vmap(lambda u: f(QUERY, KEY, u))(v).sum())(VALUE[None]),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("attend", ATTENDS)
def test_transforms_that_see_through_no_op_are_refused_in_one_sentence(attend, transform):
    with pytest.raises(InputError, match=r"inside torch\.func .* use torch\.autograd\.grad"):
        TRANSFORMS[transform](ATTENDS[attend])


@pytest.mark.parametrize("attend", ATTENDS)
def test_forward_mode_differentiation_is_never_silently_zero(attend):
    with forward_ad.dual_level(), pytest.raises(InputError, match="forward-mode AD"):
        ATTENDS[attend](QUERY, KEY, forward_ad.make_dual(VALUE, VALUE))


@pytest.mark.parametrize("attend", ["anna", "latest_match"])
def test_a_second_derivative_by_values_works_and_by_queries_is_refused(attend):
    query, value = QUERY.clone().requires_grad_(), VALUE.clone().requires_grad_()
    out = ATTENDS[attend](query, KEY, value)
    to_query, to_value = torch.autograd.grad(out.square().sum(), (query, value), create_graph=True)
    with pytest.raises(InputError, match="expected one differentiation"):
        to_query.sum().backward(retain_graph=True)
    if attend == "anna":
        (twice,) = torch.autograd.grad(to_value.square().sum(), value)
        assert twice.any()


@pytest.mark.parametrize(("backend", "gradient"), [("torch", "linear"), ("torch", "exact"), ("numba", "linear")])
@pytest.mark.parametrize("is_causal", [False, True])
def test_autocast_does_not_reach_into_the_ops(backend, gradient, is_causal):
    def results(enabled: bool):
        query = QUERY.clone().requires_grad_()
        with use_backend(backend), torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = aa.anna_attention(query, KEY, VALUE, HASHER, is_causal=is_causal, gradient=gradient)
            return out, *torch.autograd.grad(out.sum(), query)

    assert all(torch.equal(a, b) for a, b in zip(results(True), results(False), strict=True))


@pytest.mark.parametrize("attend", [aa.expected_collision_attention, aa.expected_latest_attention])
@pytest.mark.parametrize("place", [0, 1])
def test_a_second_derivative_of_an_average_is_that_of_its_gradient(attend, place):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(3, 1, 2, 12, 8, dtype=torch.float64, generator=generator)
    along, weights = torch.randn(2, 1, 2, 12, 8, dtype=torch.float64, generator=generator)

    def loss(x):
        given = [*tokens]
        given[place] = x
        return (attend(*given, family=aa.lsh.Hyperplane(8), hashes=2).square() * weights).sum()

    def gradient(x):
        return torch.autograd.grad(loss(x), x, create_graph=True)[0]

    at = tokens[place].clone().requires_grad_()
    (twice,) = torch.autograd.grad((gradient(at) * along).sum(), at)
    step = 1e-6 * along
    expected = (gradient(at + step) - gradient(at - step)).detach() / 2e-6
    torch.testing.assert_close(twice, expected, rtol=1e-5, atol=1e-6)
    forward_of_backward = torch.func.jvp(torch.func.grad(loss), (tokens[place],), (along,))[1]
    torch.testing.assert_close(forward_of_backward, twice)
    with pytest.raises(InputError, match=r"torch\.func\.hessian takes one of each"):
        torch.func.jvp(lambda x: torch.func.jvp(loss, (x,), (along,))[1], (tokens[place],), (along,))
