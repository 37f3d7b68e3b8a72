"""Decoding through a window cache gives what the whole sequence in one call gives."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import annattn as aa
from annattn.errors import InputError
from annattn.lsh import Hyperplane

N = 40


def tokens(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(2, h, N, 4, generator=generator, dtype=torch.float64) for h in (4, 2, 2))
    near_query, near_key = (torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (query, key))
    return query, key, value, (near_query, near_key), torch.rand(2, N, generator=generator) < 0.85


def options(window: int, combine: str, shift: int, hashes: int = 2):
    hasher = Hyperplane(4).sample(tables=5, hashes=hashes, seed=1, heads=2)
    return hasher, {"window": window, "combine": combine, "shift": shift}


def decoded(cache, sizes, query, key, value, near, mask, gate):
    start, parts = 0, []
    for size in sizes:
        here = slice(start, start + size)
        parts.append(
            cache.step(
                query[:, :, here], key[:, :, here], value[:, :, here], key_mask=mask[:, here], gate=gate,
                near=(near[0][:, :, here], near[1][:, :, here]),
            )
        )  # fmt: skip
        start += size
    return torch.cat(parts, 2)


@pytest.mark.parametrize("sizes", [[1] * N, [N], [3, 1, 1, 20, 5, 10], [30, *[1] * 10]], ids=str)
@pytest.mark.parametrize("combine", ["gate", "joined"])
@pytest.mark.parametrize(("window", "shift"), [(0, 0), (1, 0), (6, 0), (6, 1), (0, 1), (60, 0)])
def test_steps_of_any_size_equal_one_call(sizes, combine, window, shift):
    query, key, value, near, mask = tokens()
    gate = torch.tensor([0.5, -1.0, 0.0, 3.0], dtype=torch.float64)
    hasher, chosen = options(window, combine, shift)
    expected = aa.window_attention(
        query, key, value, hasher, is_causal=True, key_mask=mask, near=near, gate=gate, **chosen
    )
    cache = aa.WindowCache(hasher, batch=2, heads=2, value_dim=4, history=3, **chosen)
    out = decoded(cache, sizes, query, key, value, near, mask, gate)
    torch.testing.assert_close(out, expected)
    assert cache.tokens == N


@pytest.mark.parametrize("hashes", [2, 70])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("kept", [2, 9, 30])
def test_undone_tokens_leave_no_trace(kept, shift, hashes):
    query, key, value, near, mask = tokens()
    hasher, chosen = options(6, "joined", shift, hashes)
    caches = [aa.WindowCache(hasher, batch=2, heads=2, value_dim=4, history=8, **chosen) for _ in range(2)]
    inputs = (query, key, value, near, mask)
    decoded(caches[0], [kept], *inputs, gate=0.0)
    decoded(caches[1], [kept], *inputs, gate=0.0)
    draft = tokens(seed=1)
    decoded(caches[1], [3, 4], *draft, gate=0.0)
    caches[1].crop(5)
    caches[1].crop(2)
    q, k, v, *rest = (x[:, :, kept:] for x in (query, key, value, *near))
    wanted, got = (decoded(cache, [5, 1, 2], q, k, v, rest, mask[:, kept:], gate=0.0) for cache in caches)
    torch.testing.assert_close(got, wanted)
    with pytest.raises(InputError, match="tokens to undo"):
        caches[1].crop(9)


def test_rows_are_reordered_repeated_and_dropped():
    query, key, value, near, mask = tokens()
    hasher, chosen = options(6, "gate", 0)
    cache = aa.WindowCache(hasher, batch=2, heads=2, value_dim=4, **chosen)
    first = [20]
    decoded(cache, first, query, key, value, near, mask, 0.0)
    cache.select([1, 0, 1])
    rows = [1, 0, 1]
    query, key, value, near_query, near_key = (x[rows] for x in (query, key, value, *near))
    here = slice(20, 25)
    out = cache.step(
        query[:, :, here], key[:, :, here], value[:, :, here], key_mask=mask[rows][:, here],
        near=(near_query[:, :, here], near_key[:, :, here]),
    )  # fmt: skip
    expected = aa.window_attention(
        query, key, value, hasher, is_causal=True, key_mask=mask[rows], near=(near_query, near_key), **chosen
    )
    torch.testing.assert_close(out, expected[:, :, here])
    with pytest.raises(InputError, match="row"):
        cache.select([3])


def test_a_long_context_takes_no_more_memory_than_a_short_one():
    hasher, chosen = options(6, "gate", 0)
    cache = aa.WindowCache(hasher, heads=2, value_dim=4, **chosen)
    sizes = []
    for _ in range(4):
        cache.step(*torch.randn(3, 1, 2, 500, 4))
        sizes.append(cache.nbytes)
    assert sizes[1] == sizes[3]


def test_tokens_of_another_shape_are_refused_and_change_nothing():
    hasher, chosen = options(6, "gate", 0)
    cache = aa.WindowCache(hasher, heads=2, value_dim=4, **chosen)
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(InputError, match="as many queries as keys"):
        cache.step(x[:, :, :1], x, x)
    with pytest.raises(InputError, match="batch size"):
        cache.step(*torch.randn(3, 2, 2, 3, 4))
    with pytest.raises(InputError, match="near"):
        cache.step(x, x, x, near=(x, x[:, :, :1]))
    assert cache.tokens == 0


class Windows(RuleBasedStateMachine):
    """Whatever is done to a window cache, in whatever order, is `window_attention` over the list of tokens."""

    def __init__(self):
        super().__init__()
        self.hasher, self.chosen = options(3, "gate", 1)
        self.cache = aa.WindowCache(self.hasher, batch=2, heads=2, value_dim=4, history=4, **self.chosen)
        self.rows = [[], []]  # per batch row: which of the tokens below, and whether it takes part
        self.undoable = 0

    def tensors(self):
        picked = torch.tensor([[token for token, _ in row] for row in self.rows], dtype=torch.int64)
        mask = torch.tensor([[part for _, part in row] for row in self.rows], dtype=torch.bool)
        query, key, value, near, _ = POOL
        flat = (x[0][:, picked].transpose(0, 1) for x in (query, key, value, *near))
        return *flat, mask.reshape(len(self.rows), -1)

    @rule(new=st.lists(st.tuples(st.integers(0, N - 1), st.booleans(), st.booleans()), min_size=1, max_size=5))
    def step(self, new):
        for token, *parts in new:
            self.rows = [[*row, (token, parts[at % 2])] for at, row in enumerate(self.rows)]
        query, key, value, near_query, near_key, mask = self.tensors()
        whole = aa.window_attention(
            query, key, value, self.hasher, is_causal=True, key_mask=mask, near=(near_query, near_key), gate=0.5,
            **self.chosen,
        )  # fmt: skip
        last = slice(mask.shape[1] - len(new), None)
        out = self.cache.step(
            query[:, :, last], key[:, :, last], value[:, :, last], key_mask=mask[:, last], gate=0.5,
            near=(near_query[:, :, last], near_key[:, :, last]),
        )  # fmt: skip
        torch.testing.assert_close(out, whole[:, :, last])
        self.undoable = min(4, self.undoable + len(new))

    @rule(share=st.floats(0, 1))
    def crop(self, share):
        less = round(share * self.undoable)
        self.cache.crop(less)
        self.rows = [row[: len(row) - less] for row in self.rows]
        self.undoable -= less

    @rule(data=st.data())
    def select(self, data):
        rows = data.draw(st.lists(st.integers(0, len(self.rows) - 1), min_size=1, max_size=3))
        self.cache.select(rows)
        self.rows = [self.rows[row] for row in rows]

    @invariant()
    def counts(self):
        assert (self.cache.tokens, self.cache.recent) == (len(self.rows[0]), self.undoable)


POOL = tokens(seed=5)
TestWindows = pytest.mark.slow(Windows.TestCase)
TestWindows.settings = settings(max_examples=30, stateful_step_count=15)


@pytest.mark.parametrize("number", [np.uint8, np.int8, np.int64])
def test_a_window_of_any_kind_of_integer_is_the_same(number):
    query, key, value, near, mask = tokens()
    outs = []
    for kind in (int, number):
        hasher, chosen = options(kind(6), "gate", kind(1))
        cache = aa.WindowCache(hasher, batch=kind(2), heads=kind(2), value_dim=kind(4), history=kind(3), **chosen)
        outs.append(decoded(cache, [kind(30), kind(5), kind(5)], query, key, value, near, mask, 0.5))
        whole = aa.window_attention(
            query, key, value, hasher, is_causal=True, key_mask=mask, near=near, gate=0.5, **chosen
        )
        torch.testing.assert_close(outs[-1], whole)
    assert torch.equal(*outs)


@pytest.mark.parametrize("kind", [lambda rows: [np.uint8(row) for row in rows], np.array, torch.tensor])
def test_rows_of_any_kind_of_integer_are_the_same(kind):
    x = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 1, 4)
    cache = aa.WindowCache(Hyperplane(4).sample(tables=2, hashes=2), window=2, value_dim=4, batch=4)
    cache.step(x, torch.ones_like(x), x)
    cache.select(kind([3, 0, 0, 1]))
    out = cache.step(*torch.ones(3, 4, 1, 1, 4), key_mask=torch.zeros(4, 1, dtype=torch.bool))
    assert out[:, 0, 0, 0].tolist() == [3, 0, 0, 1]


@pytest.mark.parametrize("rows", [None, [], [3], [-1], [0.5], [True], "ab", torch.tensor(1)])
def test_rows_that_are_not_there_are_refused_and_change_nothing(rows):
    cache = aa.WindowCache(Hyperplane(4).sample(tables=2, hashes=2), window=2, value_dim=4, batch=2)
    cache.step(*torch.ones(3, 2, 1, 5, 4))
    with pytest.raises(InputError, match="rows: got"):
        cache.select(rows)
    assert cache.step(*torch.ones(3, 2, 1, 1, 4)).eq(1).all()
