"""The rule for NaN and infinity in queries, keys and values: never a plausible wrong number."""

import pytest
import torch

import annattn as aa
from annattn.attention.reference import collision_counts
from annattn.kernels import use_backend
from annattn.lsh import Hyperplane

HASHER = Hyperplane(3).sample(tables=4, hashes=2, seed=0)
BAD = pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
HASHED = pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v, **options: aa.anna_attention(q, k, v, HASHER, **options),
        lambda q, k, v, **options: aa.anna_attention(q, k, v, HASHER, is_causal=True, **options),
        lambda q, k, v, **options: aa.latest_match_attention(q, k, v, HASHER, **options),
    ],
    ids=["anna", "causal anna", "latest match"],
)


def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 2, 2, 6, 3, generator=generator)


@HASHED
@BAD
def test_a_query_that_is_not_finite_gets_nan_and_harms_no_other(attend, bad):
    query, key, value = inputs()
    before = attend(query, key, value)
    query[0, 1, 2, 1] = bad
    after = attend(query, key, value)
    assert after[0, 1, 2].isnan().all()
    after[0, 1, 2] = before[0, 1, 2]
    assert torch.equal(after, before)


@HASHED
@BAD
def test_a_key_that_is_not_finite_makes_nan_of_every_query_that_may_see_it(attend, bad):
    query, key, value = inputs()
    before = attend(query, key, value)
    key[0, 1, 2, 1] = bad
    after = attend(query, key, value)
    seen = torch.zeros(2, 2, 6, dtype=torch.bool)
    seen[0, 1] = True
    is_causal = not attend(query * 0 + 1, key, value)[0, 1, 0].isnan().all()
    if is_causal:
        seen[0, 1, :2] = False
    assert after[seen].isnan().all()
    assert torch.equal(after[~seen], before[~seen])


@HASHED
@BAD
def test_a_value_that_is_not_finite_reaches_only_the_queries_that_meet_its_key(attend, bad):
    query, key, value = inputs()
    before = attend(query, key, value)
    value[0, 1, 2] = bad
    after = attend(query, key, value)
    met = collision_counts(query[0, 1], key[0, 1, 2:3], HASHER)[:, 0] > 0
    spoiled = ~after.isfinite().all(-1)
    assert not (spoiled[0, 1] & ~met).any()
    assert spoiled.sum() == spoiled[0, 1].sum() > 0
    assert torch.equal(after[~spoiled], before[~spoiled])


def test_exact_match_takes_equality_as_ieee_does():
    query = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0]).reshape(1, 1, 4, 1)
    key = torch.tensor([torch.nan, torch.inf, -0.0]).reshape(1, 1, 3, 1)
    value = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
    assert aa.exact_match_attention(query, key, value).flatten().tolist() == [0.0, 2.0, 0.0, 3.0]


def _token_by_token(query, key, value, mechanism):
    cache = aa.BucketCache(HASHER, heads=2, value_dim=value.shape[-1], mechanism=mechanism)
    steps = [cache.step(*(x[:, :, at : at + 1] for x in (query, key, value))) for at in range(query.shape[2])]
    return torch.cat(steps, 2)


READING = {
    "anna": lambda q, k, v: aa.anna_attention(q, k, v, HASHER),
    "causal anna": lambda q, k, v: aa.anna_attention(q, k, v, HASHER, is_causal=True),
    "linear memory": lambda q, k, v: aa.anna_attention(q, k, v, HASHER, algorithm="linear_memory"),
    "latest match": lambda q, k, v: aa.latest_match_attention(q, k, v, HASHER),
    "exact match": lambda q, k, v: aa.exact_match_attention(q[..., :2].sign(), k[..., :2].sign(), v),
    "causal exact match": lambda q, k, v: aa.exact_match_attention(
        q[..., :2].sign(), k[..., :2].sign(), v, is_causal=True
    ),
    "cache": lambda q, k, v: _token_by_token(q, k, v, "anna"),
    "cache of latest match": lambda q, k, v: _token_by_token(q, k, v, "latest_match"),
}


@pytest.mark.parametrize("attend", READING.values(), ids=READING)
@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("n", [20, 70])
def test_nan_in_a_value_reaches_exactly_the_queries_that_read_it(attend, backend, n):
    generator = torch.Generator().manual_seed(n)
    query, key = torch.randn(2, 1, 2, n, 3, generator=generator)
    value = torch.randn(1, 2, n, 2, generator=generator)
    marked = torch.zeros(1, 2, n, 1)
    marked[0, 1, n // 4], value[0, 1, n // 4] = 1.0, torch.nan
    with use_backend(backend):
        reads, out = attend(query, key, marked)[..., 0] != 0, attend(query, key, value)
    assert 0 < reads.sum() < 2 * n
    assert torch.equal(out.isnan(), reads[..., None].expand_as(out))


@BAD
@pytest.mark.parametrize("family", [Hyperplane(3), aa.lsh.CrossPolytope(3)], ids=str)
def test_averages_over_hash_functions_give_nan_and_no_number_to_a_query_that_is_not_finite(family, bad):
    query, key, value = inputs()
    query[0, 1, 2, 1] = bad
    hasher = family.sample(tables=4, hashes=2)
    for out in (
        aa.expected_collision_attention(query, key, value, family=family, hashes=2),
        aa.expected_latest_attention(query, key, value, family=family, hashes=2),
        aa.sampled_collision_attention(query, key, value, hasher),
    ):
        assert out[0, 1, 2].isnan().all()
        assert out[0, 1, 3].isfinite().all()
