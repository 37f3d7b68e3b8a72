import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import annattn as aa
from annattn.errors import InputError
from annattn.lsh import Euclidean, Hasher, Hyperplane, Identity

DENSE = Hyperplane(4).sample(tables=6, hashes=3, seed=0)
HASHERS = [
    DENSE,
    Hyperplane(4).sample(tables=6, hashes=20, seed=0),  # packed, but too many buckets for dense tables
    Hyperplane(4).sample(tables=3, hashes=70, seed=0),  # wider than a code
    Euclidean(4, width=2.0).sample(tables=4, hashes=2, seed=0),
    Identity(4).sample(tables=1, hashes=1),
]
EVERY = pytest.mark.parametrize("hasher", HASHERS, ids=lambda h: f"{type(h.family).__name__}-{h.hashes}")


def tokens(n: int, *, batch=2, heads=2, share=2, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(4, 4, generator=generator)

    def rows(count):
        return pool[torch.randint(4, (batch, count, n), generator=generator)].to(dtype)

    value = torch.randint(-9, 10, (batch, heads, n, 3), generator=generator).to(dtype)
    return rows(heads * share), rows(heads), value


def causal(hasher: Hasher, mechanism: str, query, key, value, key_mask=None):
    if mechanism == "anna":
        return aa.anna_attention(query, key, value, hasher, is_causal=True, key_mask=key_mask)
    return aa.latest_match_attention(query, key, value, hasher, key_mask=key_mask)


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("mechanism", ["anna", "latest_match"])
@given(cuts=st.lists(st.integers(1, 4), min_size=1, max_size=5), masked=st.booleans(), seed=st.integers(0, 99))
def test_steps_of_any_length_equal_causal_attention(hasher, mechanism, cuts, masked, seed):
    n = sum(cuts)
    query, key, value = tokens(n, seed=seed)
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) < 0.7 if masked else None
    cache = aa.BucketCache(hasher, batch=2, heads=2, value_dim=3, mechanism=mechanism)
    outs = []
    for here in torch.arange(n).split(cuts):
        part = None if mask is None else mask[:, here]
        outs.append(cache.step(query[:, :, here], key[:, :, here], value[:, :, here], key_mask=part))
    expected = causal(hasher, mechanism, query, key, value, mask)
    torch.testing.assert_close(torch.cat(outs, 2), expected, rtol=2e-7, atol=2e-7)
    assert cache.lengths == ([n, n] if mask is None else mask.sum(1).tolist())


@EVERY
def test_attend_reads_all_that_was_appended(hasher):
    query, key, value = tokens(9)
    cache = aa.BucketCache(hasher, batch=2, heads=2, value_dim=3)
    cache.append(key[:, :, :5], value[:, :, :5])
    cache.append(key[:, :, 5:], value[:, :, 5:])
    torch.testing.assert_close(cache.attend(query), aa.anna_attention(query, key, value, hasher), rtol=2e-7, atol=2e-7)


@EVERY
def test_left_padding_leaves_no_trace_even_of_nan(hasher):
    query, key, value = tokens(6)
    mask = torch.tensor([[False, False, True, True, True, True], [True] * 6])
    spoiled_key, spoiled_value = (x.masked_fill(~mask[:, None, :, None], torch.nan) for x in (key, value))
    cache = aa.BucketCache(hasher, batch=2, heads=2, value_dim=3)
    cache.append(spoiled_key, spoiled_value, key_mask=mask)
    alone = aa.BucketCache(hasher, batch=1, heads=2, value_dim=3)
    alone.append(key[:1, :, 2:], value[:1, :, 2:])
    assert torch.equal(cache.attend(query)[:1], alone.attend(query[:1]))
    assert cache.lengths == [4, 6]


@EVERY
@pytest.mark.parametrize("mechanism", ["anna", "latest_match"])
def test_reorder_and_reset_move_whole_rows(hasher, mechanism):
    query, key, value = tokens(8, batch=3)
    cache = aa.BucketCache(hasher, batch=3, heads=2, value_dim=3, mechanism=mechanism)
    cache.append(key[:, :, :5], value[:, :, :5])
    cache.reorder(torch.tensor([2, 2, 0]))
    picked = [2, 2, 0]
    key = torch.cat([key[picked, :, :5], key[:, :, 5:]], 2)
    value = torch.cat([value[picked, :, :5], value[:, :, 5:]], 2)
    out = cache.step(query[:, :, 5:], key[:, :, 5:], value[:, :, 5:])
    expected = causal(hasher, mechanism, query, key, value)[:, :, 5:]
    torch.testing.assert_close(out, expected, rtol=2e-7, atol=2e-7)
    cache.reset([1])
    assert cache.lengths == [8, 0, 8]
    assert cache.attend(query)[1].count_nonzero() == 0
    torch.testing.assert_close(cache.attend(query[:, :, -1:])[[0, 2]], out[[0, 2], :, -1:])
    cache.reset()
    assert cache.attend(query).count_nonzero() == 0


@EVERY
def test_state_round_trips_and_is_a_copy(hasher):
    query, key, value = tokens(8)
    cache = aa.BucketCache(hasher, batch=2, heads=2, value_dim=3)
    cache.append(key[:, :, :5], value[:, :, :5])
    state = cache.state_dict()
    other = aa.BucketCache(hasher, batch=2, heads=2, value_dim=3)
    other.load_state_dict(state)
    before = other.attend(query)
    cache.append(key[:, :, 5:], value[:, :, 5:])
    assert torch.equal(other.attend(query), before)
    other.append(key[:, :, 5:], value[:, :, 5:])
    assert torch.equal(other.attend(query), cache.attend(query))
    assert other.lengths == cache.lengths == [8, 8]


def test_a_state_that_does_not_fit_changes_nothing():
    query, key, value = tokens(5)
    cache = aa.BucketCache(DENSE, batch=2, heads=2, value_dim=3)
    cache.append(key, value)
    before = cache.attend(query)
    wrong = aa.BucketCache(DENSE, batch=1, heads=2, value_dim=3).state_dict()
    with pytest.raises(InputError, match=r"state\['lengths'\]: got .* expected .*same hasher, batch, heads"):
        cache.load_state_dict(wrong)
    with pytest.raises(InputError, match="state: got"):
        cache.load_state_dict({"lengths": wrong["lengths"]})
    assert torch.equal(cache.attend(query), before)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_turns_nan_as_in_attention(bad):
    query, key, value = tokens(6)
    key[0, 1, 2, 0] = bad
    query[1, 3, 4, 0] = bad
    expected = aa.anna_attention(query, key, value, DENSE, is_causal=True)
    assert expected.isnan().any()
    cache = aa.BucketCache(DENSE, batch=2, heads=2, value_dim=3)
    outs = [cache.step(*(x[:, :, i : i + 1] for x in (query, key, value))) for i in range(6)]
    torch.testing.assert_close(torch.cat(outs, 2), expected, equal_nan=True)
    whole = aa.BucketCache(DENSE, batch=2, heads=2, value_dim=3)
    torch.testing.assert_close(whole.step(query, key, value), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_come_back_as_they_went_in(dtype):
    query, key, value = tokens(6, dtype=dtype)
    cache = aa.BucketCache(DENSE, batch=2, heads=2, value_dim=3)
    out = cache.step(query, key, value)
    assert out.dtype == cache.attend(query).dtype == dtype
    torch.testing.assert_close(out, aa.anna_attention(query, key, value, DENSE, is_causal=True))


def test_bad_arguments_are_refused_and_nothing_is_stored():
    query, key, value = tokens(4)
    cache = aa.BucketCache(DENSE, batch=2, heads=2, value_dim=3)
    for call in (
        lambda: cache.append(key[:1], value[:1]),
        lambda: cache.append(key, value[..., :2]),
        lambda: cache.append(key, value, key_mask=torch.ones(2, 4)),
        lambda: cache.attend(query[:, :3]),
        lambda: cache.attend(query[..., :3]),
        lambda: cache.step(query[:, :, :2], key, value),
        lambda: cache.reorder([0]),
        lambda: cache.reorder([0, 2]),
        lambda: cache.reset([5]),
    ):
        with pytest.raises(InputError):
            call()
    assert cache.lengths == [0, 0]
    with pytest.raises(InputError, match="mechanism"):
        aa.BucketCache(DENSE, value_dim=3, mechanism="softmax")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="value_dim"):
        aa.BucketCache(DENSE, value_dim=0)
