"""Many tokens that enter the tables of a cache at once, bucket by bucket, beside sums over the members of buckets."""

import pytest
import torch

import annattn as aa
from annattn.kernels import use_backend

HEADS, TABLES, HASHES = 3, 2, 3
HASHER = aa.lsh.Hyperplane(5).sample(tables=TABLES, hashes=HASHES)


def tokens(n: int, batch: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n + width)
    key = torch.randn(batch, HEADS, n, 5, generator=generator)
    value = torch.randn(batch, HEADS, n, width, generator=generator, dtype=dtype)
    return key, value, torch.rand(batch, n, generator=generator) < 0.8


def sums(key, value, kept, query):
    """By the definition: Σ_j c_ij v_j and Σ_j c_ij, with c_ij counted pair by pair."""
    shared = (HASHER(query)[:, :, :, None] == HASHER(key)[:, :, None]).sum(-1) * kept[:, None, None]
    return shared.double() @ value.double(), shared.sum(-1)


# Room is counted beforehand for 64 tokens of a batch row and more; 40 of two rows find arrays full on the way.
@pytest.mark.parametrize("n", [40, 64, 70, 301])
@pytest.mark.parametrize("width", [1, 8, 64, 67])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_tokens_enter_as_their_definition_says(n, width, dtype):
    key, value, kept = tokens(n, 2, width, dtype)
    query = torch.randn(2, HEADS, 9, 5, generator=torch.Generator().manual_seed(1))
    with use_backend("numba"):
        cache = aa.BucketCache(HASHER, batch=2, heads=HEADS, value_dim=width, history=3)
        for first, last in ((0, 2), (2, 9), (9, n)):  # into places that are empty, single, lists and rows
            part = slice(first, last)
            cache.append(key[:, :, part], value[:, :, part], key_mask=kept[:, part])
            total, count = sums(key[:, :, :last], value[:, :, :last], kept[:, :last], query)
            found = cache.state.read(query)
            torch.testing.assert_close(found.total, total, rtol=1e-13, atol=1e-13)
            assert torch.equal(found.count, count)


def test_many_tokens_at_once_give_the_rows_that_one_after_the_other_do():
    key, value, kept = tokens(300, 1, 64, torch.float32)
    states = []
    with use_backend("numba"):
        for step in (300, 1):
            cache = aa.BucketCache(HASHER, heads=HEADS, value_dim=64, history=0)
            for first in range(0, 300, step):
                part = slice(first, first + step)
                cache.append(key[:, :, part], value[:, :, part], key_mask=kept[:, part])
            states.append(cache.state.read(key[:, :, :20]))
    # Every bucket is a row by then, and additions come in the same order: equal to the bit.
    assert torch.equal(states[0].total, states[1].total)
    assert torch.equal(states[0].count, states[1].count)
