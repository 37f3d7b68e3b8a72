"""A hasher with one draw per head gives each head what the draw of that head alone gives."""

import pickle

import pytest
import torch

import annattn as aa
from annattn.attention import BucketState
from annattn.errors import InputError
from annattn.kernels import BACKENDS, hash_pair, use_backend
from annattn.lsh import CrossPolytope, Hyperplane, restore
from tests.strategies import families

FAMILIES = [*families(6), CrossPolytope(20, rotation="structured")]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=repr)
DRAWN = [family for family in FAMILIES if family.sample(tables=1, hashes=1).parameters[0].numel()]
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def rows(family, heads, n=9, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(4, family.dim, generator=generator)
    return pool[torch.randint(4, (batch, heads, n), generator=generator)]


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("hashes", [2, 70])
@pytest.mark.parametrize("backend", BACKENDS)
def test_codes_of_a_head_are_those_of_its_draw(family, hashes, backend):
    hasher = family.sample(tables=3, hashes=hashes, seed=5, heads=2)
    query, key = rows(family, 6), rows(family, 2, seed=1)
    compiled = hasher.buckets is not None and isinstance(family, Hyperplane | CrossPolytope)
    with use_backend(backend if compiled else "torch"):
        codes = hash_pair(hasher, query, key)
    for head in range(2):
        mine = slice(3 * head, 3 * head + 3)
        of_query, of_key = hasher.head(head).joint_codes(query[:, mine], key[:, head : head + 1])
        expected = of_query[:, :, :, None] == of_key[:, :, None]
        assert torch.equal(codes[0][:, mine, :, None] == codes[1][:, head : head + 1, None], expected)
        assert torch.equal(hasher.digits(query)[:, mine], hasher.head(head).digits(query[:, mine]))
    if compiled:
        assert torch.equal(codes[0], hasher(query))


def test_most_families_draw_something():
    assert len(DRAWN) >= len(FAMILIES) - 1


@pytest.mark.parametrize("family", DRAWN, ids=repr)
def test_heads_are_drawn_apart(family):
    hasher = family.sample(tables=2, hashes=2, heads=3, seed=1)
    parts = [hasher.head(head).parameters[0] for head in range(3)]
    assert not torch.equal(parts[0], parts[1])
    assert not torch.equal(parts[1], parts[2])
    again = family.sample(tables=2, hashes=2, heads=3, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(hasher.parameters, again.parameters, strict=True))
    assert hasher == again == restore(hasher.spec, hasher.parameters) == pickle.loads(pickle.dumps(hasher))
    assert hasher != family.sample(tables=2, hashes=2, heads=1, seed=1)


@every_backend
@pytest.mark.parametrize("hashes", [3, 20])
def test_attention_and_its_cache_use_the_draw_of_each_head(backend, hashes):
    hasher = Hyperplane(4).sample(tables=4, hashes=hashes, seed=2, heads=2)
    query, key, value = torch.randn(3, 2, 2, 12, 4)
    query = query.repeat_interleave(2, 1)
    with use_backend(backend):
        for is_causal in (False, True):
            out = aa.anna_attention(query, key, value, hasher, is_causal=is_causal)
            alone = [
                aa.anna_attention(
                    query[:, 2 * h : 2 * h + 2], key[:, h : h + 1], value[:, h : h + 1], hasher.head(h),
                    is_causal=is_causal,
                )
                for h in range(2)
            ]  # fmt: skip
            assert torch.equal(out, torch.cat(alone, 1))
        latest = aa.latest_match_attention(query, key, value, hasher)
        cache = aa.BucketCache(hasher, value_dim=4, batch=2, heads=2)
        steps = [cache.step(*(x[:, :, i : i + 1] for x in (query, key, value))) for i in range(12)]
        torch.testing.assert_close(torch.cat(steps, 2), out)
        state = BucketState(hasher, value_dim=4, batch=2, heads=2, keep="newest")
        torch.testing.assert_close(state.scan(query, key, value).mean().float(), latest)


def test_gradients_with_a_draw_per_head_are_those_of_each_head():
    hasher = Hyperplane(4).sample(tables=4, hashes=3, seed=2, heads=2)
    query, key, value = leaves = [torch.randn(2, 2, 12, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    out = aa.anna_attention(query, key, value, hasher, is_causal=True)
    alone = [
        aa.anna_attention(query[:, h], key[:, h], value[:, h], hasher.head(h.start), is_causal=True)
        for h in (slice(0, 1), slice(1, 2))
    ]
    pull = torch.randn(out.shape, dtype=torch.float64)
    wanted = torch.autograd.grad(torch.cat(alone, 1), leaves, pull)
    for got, want in zip(torch.autograd.grad(out, leaves, pull), wanted, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.slow
def test_a_call_with_a_draw_per_head_compiles_into_one_graph():
    hasher = Hyperplane(4).sample(tables=4, hashes=3, seed=2, heads=2)
    query, key, value = torch.randn(3, 2, 2, 12, 4)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v: aa.anna_attention(q, k, v, hasher, is_causal=True), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(query, key, value), aa.anna_attention(query, key, value, hasher, is_causal=True))


def test_heads_that_cannot_share_the_draws_are_refused():
    hasher = Hyperplane(4).sample(tables=4, hashes=3, heads=2)
    query, key, value = torch.randn(3, 1, 3, 5, 4)
    for call in (aa.anna_attention, aa.latest_match_attention, aa.sampled_collision_attention):
        with pytest.raises(InputError, match="a draw for each of 2 heads"):
            call(query, key, value, hasher)
    with pytest.raises(InputError, match="one draw per head"):
        hasher(key[0, 0])
    with pytest.raises(InputError, match="head: got 2"):
        hasher.head(2)
