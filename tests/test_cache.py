import subprocess
import sys
import typing

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import annattn as aa
from annattn.errors import InputError
from annattn.kernels import BACKENDS, use_backend
from annattn.kernels.numba.tables import NumbaTables
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cache: type(cache)(DENSE, value_dim=3, dtype="float32"), "dtype: got 'float32'"),
        (lambda cache: cache.reorder(None), "rows: got None, expected a list"),
        (lambda cache: cache.crop(1), "tokens to undo of batch row 0: got 1, expected 0 to 0"),
        (lambda cache: cache.crop("2"), "tokens: got 2, expected an integer"),
        (lambda cache: cache.crop([1]), "tokens: got 1 numbers, expected one for each of 2"),
        (lambda cache: cache.restore(3), "snapshot: got int"),
        (lambda cache: cache.restore(aa.BucketCache(DENSE, value_dim=4, heads=2).snapshot()), "snapshot: got one of"),
        (lambda cache: cache.load_state_dict(None), "state: got NoneType"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call(aa.BucketCache(DENSE, batch=2, heads=2, value_dim=3))


def test_small_numpy_integers_do_not_wrap_around():
    heads, batch, value_dim, history, undone = (typing.cast(int, np.uint8(n)) for n in (2, 200, 3, 4, 2))
    cache = aa.BucketCache(DENSE, heads=heads, batch=batch, value_dim=value_dim, history=history)
    _, key, value = tokens(6, batch=200)
    cache.append(key, value)
    cache.crop(undone)
    assert cache.lengths == [4] * 200


@EVERY
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_made_in_inference_mode_or_under_another_default_device_is_like_any(hasher, backend):
    query, key, value = tokens(9)

    def make():
        with use_backend(backend):
            return aa.BucketCache(hasher, batch=2, heads=2, value_dim=3)

    expected = make()
    expected.append(key, value)
    with torch.inference_mode():
        inside = make()
        inside.append(key[:, :, :4], value[:, :, :4])
    inside.append(key[:, :, 4:], value[:, :, 4:])
    with torch.device("meta"):
        elsewhere = make()
        elsewhere.append(key, value)
        taken = elsewhere.snapshot()
        elsewhere.reset([1])
        elsewhere.restore(taken)
        elsewhere.load_state_dict(elsewhere.state_dict())
        found = elsewhere.attend(query)
    assert torch.equal(found, expected.attend(query))
    assert torch.equal(inside.attend(query), expected.attend(query))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_do_not_drift_over_a_million_tokens_in_one_bucket(backend):
    hasher = Hyperplane(2).sample(tables=1, hashes=1)
    value = torch.randn(1, 1, 2**20, 8, generator=torch.Generator().manual_seed(0)) + 1
    key = torch.ones(1, 1, 2**20, 2)
    with use_backend(backend):
        cache = aa.BucketCache(hasher, value_dim=8)
    cache.append(key[:, :, :-100], value[:, :, :-100])
    for at in range(2**20 - 100, 2**20):
        cache.append(key[:, :, at : at + 1], value[:, :, at : at + 1])
    total = cache.state.read(key[:, :, :1]).total[0, 0, 0]
    torch.testing.assert_close(total, value.double().sum((0, 1, 2)), rtol=1e-12, atol=0)


def softmax_bytes(n, heads, dim):
    return 2 * 4 * n * heads * dim


def test_a_cache_takes_little_at_first_and_never_more_than_its_dense_tables():
    heads, dim = 2, 64
    generator = torch.Generator().manual_seed(0)
    many = Hyperplane(dim).sample(tables=32, hashes=12)
    cache = aa.BucketCache(many, heads=heads, value_dim=dim)
    assert cache.nbytes < 200_000
    key, value = torch.randn(2, 1, heads, 1024, dim, generator=generator)
    cache.append(key, value)
    assert cache.nbytes <= 4 * softmax_bytes(1024, heads, dim)

    few = Hyperplane(dim).sample(tables=8, hashes=8)
    dense = heads * 8 * 2**8 * 8 * (dim + 1)
    for mechanism in ("anna", "latest_match"):
        cache = aa.BucketCache(few, heads=heads, value_dim=dim, mechanism=mechanism)
        largest = 0
        for length in (1, 7, 100, 100, 500, 1000, 2000, 2000, 3000):
            key, value = torch.randn(2, 1, heads, length, dim, generator=generator)
            for part in (slice(0, -20), *(slice(at, at + 1) for at in range(max(0, length - 20), length))):
                cache.append(key[:, :, part], value[:, :, part])
                largest = max(largest, cache.nbytes)
        assert largest <= 1.1 * dense, mechanism


def test_reordering_and_snapshots_copy_nothing_that_stays():
    _, key, value = tokens(50)
    cache = aa.BucketCache(DENSE, batch=2, heads=2, value_dim=3)
    cache.append(key, value)

    def held():
        assert isinstance(cache.state._tables, NumbaTables)
        return [head.entries for head in cache.state._tables._heads]

    arrays = held()
    cache.reorder([0, 1])
    taken = cache.snapshot()
    cache.reorder([1, 0])
    cache.restore(taken)
    assert all(now is before for now, before in zip(held(), arrays, strict=True))
    cache.append(key, value)
    assert not any(now is before for now, before in zip(held(), arrays, strict=True))


DAMAGE = """
import random, sys, torch, annattn as aa
from annattn.errors import InputError
loaded = refused = 0
hashers = [aa.lsh.Hyperplane(4).sample(tables=3, hashes=3), aa.lsh.Hyperplane(4).sample(tables=3, hashes=40),
           aa.lsh.Euclidean(4).sample(tables=2, hashes=2)]
for seed in range(600):
    torch.manual_seed(seed)
    random.seed(seed)
    cache = aa.BucketCache(hashers[seed % 3], heads=2, batch=2, value_dim=9, history=5)
    pool = torch.randn(4, 4)
    key = pool[torch.randint(4, (2, 2, 60))]
    cache.append(key, torch.randn(2, 2, 60, 9))
    before = cache.attend(key)
    state = cache.state_dict()
    for _ in range(random.randint(1, 2)):
        name = random.choice(list(state))
        tensor = state[name]
        how = random.randrange(3)
        if how == 0 and len(tensor):
            state[name] = tensor[: random.randrange(len(tensor))]
        elif tensor.numel():
            bad = random.choice([-1, 0, 1, 2, 3, 7, 1000, -(2**31), 2**31 - 1, *([2**62, -(2**62)] * 2)])
            if not tensor.is_floating_point() and tensor.dtype != torch.int64:
                bad = max(-(2**31), min(2**31 - 1, bad))
            flat = tensor.reshape(-1).clone()
            flat[random.randrange(len(flat))] = bad
            state[name] = flat.reshape(tensor.shape)
    try:
        cache.load_state_dict(state)
        loaded += 1
    except InputError:
        refused += 1
        assert torch.equal(cache.attend(key), before)
    cache.step(key[:, :, :1], key[:, :, :1], torch.randn(2, 2, 1, 9))
    cache.append(key, torch.randn(2, 2, 60, 9))
    cache.attend(key)
    cache.state_dict()
    cache.state.merge(cache.state.twin())
print(loaded, refused)
"""


@pytest.mark.parametrize("entry", ["bucket_codes", "recent_codes"])
@pytest.mark.parametrize("number", [20, 2**40])
def test_a_saved_state_whose_codes_have_no_name_is_refused(entry, number):
    """A merge looks names up by code, in compiled code: it would leave its arrays."""
    hasher = aa.lsh.Euclidean(3).sample(tables=2, hashes=2)
    state = aa.attention.BucketState(hasher, value_dim=3, history=4)
    state.fill(torch.randn(1, 1, 9, 3), torch.randn(1, 1, 9, 3))
    saved = state.state_dict()
    saved[entry][-1] = number
    with pytest.raises(InputError, match="codes without a name"):
        state.load_state_dict(saved)


@pytest.mark.slow
def test_no_damage_to_a_saved_state_reaches_compiled_code():
    done = subprocess.run([sys.executable, "-c", DAMAGE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, refused = map(int, done.stdout.split())
    assert refused > 100 < loaded
