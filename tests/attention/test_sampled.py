"""The training form of hashed attention: hashing at noise 1, the average at noise 0, one gradient for both."""

import pytest
import torch

import annattn as aa
from annattn.attention.pairs import expected_pairs
from annattn.attention.position_coded import position_coded
from annattn.attention.reference import collision_probabilities
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


def test_the_gradient_of_counts_is_that_of_their_average():
    """Written out: d out_i / d p_ij = ℓ (v_j − out_i) / C_i at the hashed output, for every pair, met or not."""
    q, k, v, g = (x[:1] for x in rows(3))
    query, key = q.clone().requires_grad_(), k.clone().requires_grad_()
    aa.sampled_collision_attention(query, key, v, HASHER).backward(g)

    other_query, other_key = q.clone().requires_grad_(), k.clone().requires_grad_()
    unit = [x / x.norm(dim=-1, keepdim=True) for x in (other_query, other_key)]
    chance = (1 - torch.acos(unit[0] @ unit[1].mT) / torch.pi) ** 3
    counts = aa.attention.reference.collision_counts(q[0, 0], k[0, 0], HASHER).double()
    total = counts.sum(-1, keepdim=True)
    assert (total > 1).all()
    out = counts @ v[0, 0] / total
    slopes = 5 * ((v[0, 0][None] - out[:, None]) * g[0, 0][:, None]).sum(-1) / total
    chance.backward(slopes[None, None])
    torch.testing.assert_close(query.grad, other_query.grad)
    torch.testing.assert_close(key.grad, other_key.grad)


def test_values_wider_than_queries_are_read_at_their_width():
    q, k, v, _ = rows(4)
    hasher = HASHER
    out = aa.sampled_collision_attention(q.float(), k.float(), v * 1e200, hasher)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, aa.anna_attention(q.float(), k.float(), v * 1e200, hasher))


def test_position_coded_hashing_is_what_is_trained():
    q, k, v, _ = rows(5)
    out = position_coded(lambda u: aa.sampled_collision_attention(q, k, u, HASHER, is_causal=True), v, 0.7)
    expected = position_coded(lambda u: aa.anna_attention(q, k, u, HASHER, is_causal=True), v, 0.7)
    torch.testing.assert_close(out, expected)


@EVERY
def test_gradients_at_noise_0_are_those_of_the_function(form):
    attend, options = form
    q, k, v, _ = (x[:1, :, :5] for x in rows(1))

    def smooth(query, key):
        return attend(query, key, v, HASHER, noise=0.0, **options)

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


def test_the_variance_of_hashing_is_that_of_independent_meetings():
    """Against counts drawn from their binomial distributions, per query head; to first order in 1/ℓ, so with many."""
    torch.manual_seed(0)
    query, (key, value), tables = torch.randn(1, 4, 5, 8).double(), torch.randn(2, 1, 2, 6, 8).double(), 4000
    family = aa.lsh.Hyperplane(8)
    found = expected_pairs(query, key, value, family, 2, True, None).variance(tables)
    for head in range(4):
        seen = torch.ones(5, 6, dtype=torch.bool).tril(1)
        chances = collision_probabilities(query[0, head], key[0, head // 2], family, 2) * seen
        counts = torch.distributions.Binomial(tables, chances).sample(torch.Size([4000]))
        means = counts @ value[0, head // 2] / counts.sum(-1, keepdim=True)
        torch.testing.assert_close(found[0, head], means.var(0).sum(-1), rtol=0.1, atol=0)
