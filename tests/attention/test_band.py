"""Softmax over a band of keys, fused and by matrix products, against softmax under a mask of all pairs."""

import pytest
import torch

from annattn.attention import band
from annattn.attention.band import band_softmax
from annattn.attention.packed import packed

PATHS = {"fused": band.fused_runs, "products": lambda *tensors: False}
by_path = pytest.mark.parametrize("path", PATHS)


@pytest.fixture(autouse=True)
def chosen(request, monkeypatch):
    if "path" in request.fixturenames:
        monkeypatch.setattr(band, "fused_runs", PATHS[request.getfixturevalue("path")])


def inputs(n, m, *, dtype=torch.float64, width=4):
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, n, 4), (2, m, 4), (2, m, width))
    query, key, value = (torch.randn(2, *size, generator=generator, dtype=dtype) for size in sizes)
    return query, key, value, torch.rand(2, m, generator=generator) < 0.8


def dense(query, key, value, seen, scale=0.5):
    """Outputs and log-sums over the pairs seen, by all pairs."""
    scores = (scale * query @ key.repeat_interleave(2, 1).mT).masked_fill(~seen, -torch.inf)
    lonely = ~seen.any(-1, keepdim=True)
    weights = scores.masked_fill(lonely, 0).softmax(-1).masked_fill(lonely, 0)
    level = scores.masked_fill(lonely, 0).logsumexp(-1).masked_fill(lonely.squeeze(-1), -torch.inf)
    return weights @ value.repeat_interleave(2, 1), level


def seen_pairs(n, m, window, is_causal, mask):
    distance = torch.arange(n)[:, None] + (m - n) - torch.arange(m)
    near = (distance < window) & (distance > (-1 if is_causal else -window))
    return near if mask is None else near & mask[:, None, None]


@by_path
@pytest.mark.parametrize(("n", "m"), [(300, 300), (300, 200), (200, 300), (33, 33), (1, 100), (64, 64)])
@pytest.mark.parametrize("window", [1, 31, 32, 70, 299, 500])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_band_equals_softmax_under_a_band_mask(path, n, m, window, is_causal, masked):
    query, key, value, mask = inputs(n, m)
    mask = mask if masked else None
    found = band_softmax(query, key, value, window=window, is_causal=is_causal, key_mask=mask)
    seen = seen_pairs(n, m, window, is_causal, mask).expand(2, 4, n, m)
    mean, level = dense(query, key, value, seen)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.log_total, level)


@by_path
@pytest.mark.parametrize(
    ("n", "m", "window"), [(150, 150, 20), (70, 100, 90), (100, 70, 9), (5, 5, 1), (260, 260, 200)]
)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("with_documents", [False, True])
def test_gradients_of_both_results_are_those_of_all_pairs(path, n, m, window, is_causal, with_documents):
    query, key, value, mask = inputs(n, m)
    seen, documents = seen_pairs(n, m, window, is_causal, mask).expand(2, 4, n, m), None
    if with_documents and n == m:
        documents = packed(torch.tensor([0, n // 3, n // 3, n]), query, key)
        assert documents is not None
        seen = seen & documents.same()[:, None]
    leaves = [x.requires_grad_() for x in (query, key, value)]
    found = band_softmax(
        query, key, value, window=window, is_causal=is_causal, key_mask=mask, documents=documents, scale=0.7
    )
    expected = dense(query, key, value, seen, scale=0.7)
    generator = torch.Generator().manual_seed(1)
    pull = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in expected]
    pull[1] = pull[1].masked_fill(expected[1] == -torch.inf, 0)
    for up in ((pull[0], None), (None, pull[1]), pull):
        kept = [at for at in (0, 1) if up[at] is not None]
        ups = [up[at] for at in kept]
        got = torch.autograd.grad([(found.mean, found.log_total)[at] for at in kept], leaves, ups, retain_graph=True,
                                  allow_unused=True)  # fmt: skip
        wanted = torch.autograd.grad([expected[at] for at in kept], leaves, ups, retain_graph=True, allow_unused=True)
        for mine, theirs, leaf in zip(got, wanted, leaves, strict=True):
            zero = torch.zeros_like(leaf)
            torch.testing.assert_close(zero if mine is None else mine, zero if theirs is None else theirs)


@by_path
def test_the_second_derivative_is_that_of_the_first(path):
    query, key, value, mask = inputs(4, 4)
    leaves = [x[:1].clone().requires_grad_() for x in (query, key, value)]

    def both(query, key, value):
        found = band_softmax(query, key, value, window=2, key_mask=mask[:1])
        return found.mean, found.log_total.masked_fill(found.log_total == -torch.inf, 0)

    assert torch.autograd.gradgradcheck(both, leaves, fast_mode=True)


def test_values_of_another_width_and_half_precision_take_no_other_numbers():
    query, key, value, mask = inputs(80, 80, width=3)
    seen = seen_pairs(80, 80, 9, True, mask).expand(2, 4, 80, 80)
    found = band_softmax(query, key, value, window=9, key_mask=mask)
    torch.testing.assert_close(found.mean, dense(query, key, value, seen)[0])
    rows = [x.bfloat16() for x in inputs(80, 80)[:3]]
    half = band_softmax(rows[0], rows[1], rows[2], window=9, key_mask=mask)
    assert half.mean.dtype == torch.float32
    query, key, value = (x.float() for x in rows)
    torch.testing.assert_close(half.mean, dense(query, key, value, seen)[0])


@by_path
def test_a_masked_key_changes_nothing_whatever_it_holds(path):
    query, key, value, mask = inputs(80, 80, dtype=torch.float32)
    before = band_softmax(query, key, value, window=9, key_mask=mask)
    for x in (key, value):
        x.masked_fill_(~mask[:, None, :, None], torch.nan)
    after = band_softmax(query, key, value, window=9, key_mask=mask)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.log_total, after.log_total)


@by_path
def test_under_vmap_the_band_is_that_of_a_loop(path):
    query, key, value, _ = inputs(40, 40)
    found = torch.vmap(lambda q: band_softmax(q, key, value, window=5).mean)(torch.stack([query, -query]))
    expected = [band_softmax(q, key, value, window=5).mean for q in (query, -query)]
    torch.testing.assert_close(found, torch.stack(expected))
