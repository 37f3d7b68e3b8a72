"""The training form of hashed attention: hashing at noise 1, the average at noise 0, one gradient for both."""

import math

import pytest
import torch

import annattn as aa
from annattn.attention.position_coded import position_coded
from annattn.attention.sampled import _OneMore
from annattn.errors import InputError

HASHER = aa.lsh.Hyperplane(4).sample(tables=5, hashes=3, seed=2)
FORMS = {
    "collision": (aa.sampled_collision_attention, {"is_causal": True}),
    "latest": (aa.sampled_latest_attention, {}),
}
EVERY = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def rows(seed=0, count=4):
    return torch.randn(count, 2, 1, 10, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@EVERY
def test_noise_moves_the_output_and_not_where_the_gradient_comes_from(form):
    attend, options = form
    q, k, v, g = rows()
    outs, grads = [], []
    for noise in (0.0, 1.0):
        leaves = [x.clone().requires_grad_() for x in (q, k)]
        out = attend(*leaves, v, HASHER, noise=noise, **options)
        out.backward(g)
        outs.append(out.detach())
        grads.append([leaf.grad for leaf in leaves])
    assert (outs[0] - outs[1]).abs().max() > 0.1
    assert all(grad.abs().max() > 1e-3 for pair in grads for grad in pair)


@pytest.mark.parametrize("recency", [0.0, 0.4])
def test_the_gradient_is_what_one_more_meeting_would_do(recency):
    """Written out pair by pair: dp_ij = ℓ·g_i·(f(c + 1_ij) − f(c)) at the hashed output, met or not."""
    q, k, v, g = (x[:1] for x in rows(3))
    hasher = aa.lsh.Hyperplane(4).sample(tables=5, hashes=7, seed=2)
    query, key = q.clone().requires_grad_(), k.clone().requires_grad_()
    aa.sampled_collision_attention(query, key, v, hasher, recency=recency).backward(g)

    other_query, other_key = q.clone().requires_grad_(), k.clone().requires_grad_()
    unit = [x / x.norm(dim=-1, keepdim=True) for x in (other_query, other_key)]
    chance = (1 - torch.acos(unit[0] @ unit[1].mT) / torch.pi) ** 7
    counts = aa.attention.reference.collision_counts(q[0, 0], k[0, 0], hasher).double()
    assert (counts.sum(-1) == 0).any()
    assert (counts.sum(-1) > 0).any()

    def read(row):
        if row.sum() == 0:
            return torch.zeros(4, dtype=torch.float64)
        if not recency:
            return row @ v[0, 0] / row.sum()
        summed = row @ (v[0, 0] * torch.tensor([2.0 ** (recency * j) for j in range(10)])[:, None])
        return summed / summed.norm() * 2  # √dim

    slopes = torch.zeros(1, 1, 10, 10, dtype=torch.float64)
    for i in range(10):
        for j in range(10):
            more = counts[i].clone()
            more[j] += 1
            slopes[0, 0, i, j] = 5 * g[0, 0, i] @ (read(more) - read(counts[i]))
    chance.backward(slopes)
    torch.testing.assert_close(query.grad, other_query.grad, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(key.grad, other_key.grad, rtol=1e-6, atol=1e-8)


def test_one_more_meeting_is_the_gradient_of_poisson_counts_on_average():
    """d/dλ E f(c) = E[f(c + 1) − f(c)]: the right side averaged over draws, the left side by the exact sum over c."""
    rates, values, weight = torch.tensor([0.7, 1.3]).double(), torch.tensor([[2.0], [-1.0]]).double(), 1.0

    def expected(rate):
        total = 0.0
        for a in range(25):
            for b in range(25):
                chance = torch.exp(-rate.sum()) * rate[0] ** a * rate[1] ** b
                chance = chance / float(math.factorial(a) * math.factorial(b))
                total = total + chance * (a * 2.0 - b) / max(1, a + b) * weight
        return total

    left = rates.clone().requires_grad_()
    (slope,) = torch.autograd.grad(expected(left), left)
    counts = torch.poisson(rates.expand(200_000, 2), generator=torch.Generator().manual_seed(0)).requires_grad_()
    held = counts.detach()
    out = held @ values / held.sum(-1, keepdim=True).clamp(min=1)
    moved = _OneMore.apply(counts, out, held @ values, values, held.sum(-1, keepdim=True), 1.0)
    moved.sum().backward()
    torch.testing.assert_close(counts.grad.mean(0), slope, rtol=0, atol=0.01)


def test_position_coded_hashing_is_what_is_trained():
    q, k, v, _ = rows(5)
    out = aa.sampled_collision_attention(q, k, v, HASHER, recency=0.7, is_causal=True)
    expected = position_coded(lambda u: aa.anna_attention(q, k, u, HASHER, is_causal=True), v, 0.7)
    torch.testing.assert_close(out, expected)


def test_latest_gradients_at_noise_0_are_those_of_the_function():
    q, k, v, _ = (x[:1, :, :5] for x in rows(1))

    def smooth(query, key):
        return aa.sampled_latest_attention(query, key, v, HASHER, noise=0.0)

    assert torch.autograd.gradcheck(smooth, (q.clone().requires_grad_(), k.clone().requires_grad_()))


def test_a_query_that_meets_little_reads_little_on_average():
    q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[-1.0, 0.1]]]])
    hasher = aa.lsh.Hyperplane(2).sample(tables=2, hashes=4)
    out = aa.sampled_collision_attention(q, k, torch.ones(1, 1, 1, 1), hasher, noise=0.0)
    angle = torch.pi - torch.atan(torch.tensor(0.1))
    torch.testing.assert_close(out.squeeze(), 2 * (1 - angle / torch.pi) ** 4, rtol=1e-3, atol=0)


@EVERY
def test_what_is_not_a_noise_is_refused(form):
    attend, options = form
    q, k, v, _ = rows()
    for noise in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="noise"):
            attend(q, k, v, HASHER, noise=noise, **options)
    with pytest.raises(InputError, match="angle"):
        attend(q, k, v, aa.lsh.Euclidean(4, width=1.0).sample(tables=1, hashes=1), **options)
