"""Tables that share hash functions: pairs of half-keys."""

import math
import pickle
from itertools import combinations

import pytest
import torch

import annattn as aa
from annattn.errors import InputError
from annattn.kernels import use_backend
from annattn.kernels.numba.few_rows import FewRows
from annattn.kernels.numba.hashing import hash_rows
from annattn.lsh import CrossPolytope, Euclidean, Hyperplane, Identity, pairs_of_half_keys, restore
from annattn.lsh.hasher import half_keys_for

FAMILIES = [Hyperplane(6), CrossPolytope(6), CrossPolytope(16, rotation="structured"), Euclidean(6), Identity(6)]


@pytest.mark.parametrize("tables", [1, 2, 3, 7, 28, 36, 40])
def test_tables_are_different_pairs_and_every_half_key_serves_about_equally_many(tables):
    pairs, u = pairs_of_half_keys(tables), half_keys_for(tables)
    assert len(pairs) == tables == len(set(pairs))
    assert set(pairs) <= set(combinations(range(u), 2))
    used = [sum(half in pair for pair in pairs) for half in range(u)]
    assert max(used) - min(used) <= 2
    assert u == 2 or (u - 1) * (u - 2) // 2 < tables


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_two_rows_share_a_table_exactly_when_they_share_both_of_its_half_keys(family, heads):
    hasher = family.sample(tables=5, hashes=4, seed=3, heads=heads, shared=True)
    assert len(hasher.parameters[0]) == heads * 4 * 2  # four half-keys of two functions
    x = torch.randn(1, heads, 40, family.dim, generator=torch.Generator().manual_seed(0))
    x[:, :, 20:] = x[:, :, :20] + 0.1 * torch.randn(1, heads, 20, family.dim)
    (halves,) = hasher.halves().joint_codes(x)
    (codes,) = hasher.joint_codes(x)
    for table, (one, two) in enumerate(pairs_of_half_keys(5)):
        same = (halves[..., :, None, :] == halves[..., None, :, :])[..., [one, two]].all(-1)
        assert torch.equal(codes[..., :, None, table] == codes[..., None, :, table], same)


@pytest.mark.parametrize("family", FAMILIES[:3], ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_compiled_codes_are_those_of_the_definition(family, heads):
    hasher = family.sample(tables=7, hashes=6, seed=1, heads=heads, shared=True)
    x = torch.randn(2, 4, 33, family.dim, generator=torch.Generator().manual_seed(1))
    x[0, 1, 2, 0] = torch.nan
    assert torch.equal(hash_rows(hasher, x)[0], hasher(x))
    assert torch.equal(FewRows(hasher)(x[:, :, 2:3])[0], hasher(x[:, :, 2:3]))


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_attention_training_and_decoding_work_with_shared_functions(backend):
    hasher = Hyperplane(4).sample(tables=6, hashes=4, seed=0, heads=2, shared=True)
    q, k, v = torch.randn(3, 1, 2, 9, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    with use_backend(backend):
        out = aa.anna_attention(q, k, v, hasher, is_causal=True)
        weights = torch.stack(
            [aa.attention.reference.collision_counts(q[0, h], k[0, h], hasher.head(h)) for h in range(2)]
        )
        weights = weights.double().tril()
        expected = weights @ v.double() / weights.sum(-1, keepdim=True).clamp(min=1)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
        assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()
        cache = aa.BucketCache(hasher, heads=2, value_dim=4)
        steps = [cache.step(*(x[:, :, i : i + 1].detach() for x in (q, k, v))) for i in range(9)]
        torch.testing.assert_close(torch.cat(steps, 2), out.detach(), rtol=1e-5, atol=1e-6)


def test_a_shared_hasher_survives_pickle_its_spec_and_a_modules_state():
    hasher = Hyperplane(4).sample(tables=6, hashes=4, seed=5, shared=True)
    assert pickle.loads(pickle.dumps(hasher)) == hasher == restore(hasher.spec, hasher.parameters)
    assert hasher != Hyperplane(4).sample(tables=6, hashes=4, seed=5)
    one, other = (aa.nn.AnnaAttention(8, 2, tables=6, hashes=4, shared=True, seed=seed).eval() for seed in (0, 1))
    x = torch.randn(1, 12, 8)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


def test_shared_functions_are_refused_where_they_cannot_be():
    with pytest.raises(InputError, match="even number"):
        Hyperplane(4).sample(tables=3, hashes=5, shared=True)
    with pytest.raises(InputError, match="independent"):
        Hyperplane(4).sample(tables=3, hashes=4).halves()
    x = torch.randn(1, 1, 3, 4)
    with pytest.raises(InputError, match="independent tables"):
        aa.collision_softmax_attention(x, x, x, Hyperplane(4).sample(tables=3, hashes=4, shared=True), scale=1.0)


def test_meetings_are_as_many_on_average_and_missed_as_often_as_pairs_of_half_keys_say():
    tables, hashes, cosine, draws = 28, 4, 0.8, 4000
    p = 1 - math.acos(cosine) / math.pi
    half, u = p ** (hashes / 2), 8
    hasher = Hyperplane(2).sample(tables=tables, hashes=hashes, heads=draws, shared=True)
    pair = torch.tensor([[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]])
    codes = hash_rows(hasher, pair.expand(1, draws, 2, 2).contiguous())[0][0]
    met = (codes[:, 0] == codes[:, 1]).sum(-1).double()
    missed = (1 - half) ** u + u * half * (1 - half) ** (u - 1)
    error = met.std() / math.sqrt(draws)
    assert abs(met.mean() - tables * half**2) < 4 * error
    assert abs((met == 0).double().mean() - missed) < 4 * math.sqrt(missed * (1 - missed) / draws)
