"""A state is what was put into it, however that was cut: filled at once, in parts that are merged, or scanned."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import annattn as aa
from annattn.attention import BucketState
from annattn.errors import InputError
from annattn.lsh import CrossPolytope, Euclidean, Hyperplane

DIM = 3
# Dense tables, buckets that occur, and codes too wide for 63 bits.
HASHERS = [
    Hyperplane(DIM).sample(tables=3, hashes=2),
    Hyperplane(DIM).sample(tables=2, hashes=20),
    CrossPolytope(DIM).sample(tables=2, hashes=1),
    Euclidean(DIM).sample(tables=2, hashes=70),
]


@st.composite
def tokens(draw):
    batch, heads, share = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    n = draw(st.integers(0, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    pool = torch.randn(3, DIM, generator=generator)
    query, key = (pool[torch.randint(3, (batch, h, n), generator=generator)] for h in (heads * share, heads))
    if draw(st.booleans()) and n:  # a key without a bucket is lost in one of the parts
        key[0, 0, draw(st.integers(0, n - 1))] = torch.nan
    # Sums of small integers are exact, so that any order of adding up gives the same bits.
    value = torch.randint(-8, 9, (batch, heads, n, 2), generator=generator).double()
    mask = torch.rand(batch, n, generator=generator) < 0.8 if draw(st.booleans()) else None
    edges = sorted(draw(st.lists(st.integers(0, n), max_size=4)))
    return query, key, value, mask, [slice(a, b) for a, b in zip([0, *edges], [*edges, n], strict=True)]


def state_of(hasher, key, value, mask, keep, parts):
    state = BucketState(hasher, batch=key.shape[0], heads=key.shape[1], value_dim=2, keep=keep)
    for part in parts:
        state.fill(key[:, :, part], value[:, :, part], None if mask is None else mask[:, part])
    return state


def same(a, b):
    """The same to the bit, for whoever can have an answer."""
    assert torch.equal(a.unknown, b.unknown)
    assert torch.equal(a.count[~a.unknown], b.count[~b.unknown])
    assert torch.equal(a.total[~a.unknown], b.total[~b.unknown])


@pytest.mark.parametrize("hasher", HASHERS, ids=str)
@pytest.mark.parametrize("keep", ["sum", "newest"])
@given(given_tokens=tokens(), data=st.data())
def test_parts_filled_apart_and_merged_in_any_grouping_are_one_pass(hasher, keep, given_tokens, data):
    query, key, value, mask, cuts = given_tokens
    whole = state_of(hasher, key, value, mask, keep, [slice(None)])
    parts = [state_of(hasher, key, value, mask, keep, [cut]) for cut in cuts]
    while len(parts) > 1:  # neighbours first, in any order
        at = data.draw(st.integers(0, len(parts) - 2))
        parts[at : at + 2] = [parts[at].merge(parts[at + 1])]
    same(parts[0].read(query), whole.read(query))
    assert parts[0].lengths == whole.lengths
    same(state_of(hasher, key, value, mask, keep, cuts).read(query), whole.read(query))


@pytest.mark.slow
@pytest.mark.parametrize("hasher", HASHERS, ids=str)
@pytest.mark.parametrize("keep", ["sum", "newest"])
@given(given_tokens=tokens())
def test_scans_that_continue_one_another_are_causal_attention(hasher, keep, given_tokens):
    query, key, value, mask, cuts = given_tokens
    state = BucketState(hasher, batch=key.shape[0], heads=key.shape[1], value_dim=2, keep=keep)
    outs = []
    for cut in cuts:
        part = query[:, :, cut], key[:, :, cut], value[:, :, cut], None if mask is None else mask[:, cut]
        outs.append(state.scan(*part).mean())
    if keep == "sum":
        expected = aa.anna_attention(query, key, value, hasher, is_causal=True, key_mask=mask)
    else:
        expected = aa.latest_match_attention(query, key, value, hasher, key_mask=mask)
    torch.testing.assert_close(torch.cat(outs, 2), expected, rtol=1e-14, atol=0, equal_nan=True)
    whole = state_of(hasher, key, value, mask, keep, [slice(None)])
    same(state.read(query), whole.read(query))


def test_merging_changes_neither_state():
    hasher = HASHERS[0]
    query, key, value = torch.randn(3, 1, 1, 6, DIM)
    a, b = (state_of(hasher, key[:, :, part], value[..., :2].double()[:, :, part], None, "sum", [slice(None)])
            for part in (slice(3), slice(3, 6)))  # fmt: skip
    before = a.read(query).total, b.read(query).total
    a.merge(b).fill(key, value[..., :2])
    assert torch.equal(a.read(query).total, before[0])
    assert torch.equal(b.read(query).total, before[1])


def test_states_that_are_not_alike_do_not_merge():
    one = BucketState(HASHERS[0], value_dim=2)
    for other in (
        BucketState(HASHERS[1], value_dim=2),
        BucketState(HASHERS[0], value_dim=3),
        BucketState(HASHERS[0], value_dim=2, keep="newest"),
        BucketState(HASHERS[0], value_dim=2, heads=2),
    ):
        with pytest.raises(InputError, match="expected one made like this one"):
            one.merge(other)


@pytest.mark.parametrize("numbers", [None, [5, 0], [-1, 0], [0.5, 1], [0], [0, 0, 1], "ab"])
def test_rows_and_tokens_that_are_not_there_are_refused_and_change_nothing(numbers):
    state = BucketState(Hyperplane(4).sample(tables=2, hashes=2), value_dim=3, batch=2, history=4)
    state.fill(torch.ones(2, 1, 9, 4), torch.ones(2, 1, 9, 3))
    for change in (state.select, state.crop):
        with pytest.raises(InputError, match="got"):
            change(numbers)
    assert state.lengths == [9, 9]
    assert state.read(torch.ones(2, 1, 1, 4)).mean().eq(1).all()


@pytest.mark.parametrize("mask", [torch.ones(2, 9), [[True] * 9] * 2, torch.ones(2, 9, dtype=torch.bool).to_sparse()])
def test_a_state_takes_masks_as_attention_does(mask):
    state = BucketState(Hyperplane(4).sample(tables=2, hashes=2), value_dim=3, batch=2)
    with pytest.raises(InputError, match="key_mask: got"):
        state.fill(torch.ones(2, 1, 9, 4), torch.ones(2, 1, 9, 3), mask)


def test_states_are_of_a_hasher_and_merge_with_states():
    with pytest.raises(InputError, match="hasher: got NoneType"):
        BucketState(None, value_dim=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="hasher: got NoneType"):
        aa.WindowCache(None, value_dim=3, window=2)  # pyright: ignore[reportArgumentType]
    state = BucketState(Hyperplane(4).sample(tables=2, hashes=2), value_dim=3)
    with pytest.raises(InputError, match="state: got NoneType"):
        state.merge(None)  # pyright: ignore[reportArgumentType]
