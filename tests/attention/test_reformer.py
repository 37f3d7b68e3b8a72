import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import annattn as aa
from annattn.attention import reference
from annattn.attention.reformer import reformer_weights
from annattn.errors import InputError
from annattn.lsh import Hyperplane


@given(st.integers(0, 12), st.integers(1, 14), st.integers(1, 70), st.integers(0, 1000))
def test_equals_the_definition(n, chunk, hashes, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(2, 2, n, 3, generator=generator, dtype=torch.float64)
    value = torch.randn(2, 2, n, 4, generator=generator, dtype=torch.float64)
    hasher = Hyperplane(3).sample(tables=1, hashes=hashes, seed=seed)
    out = aa.reformer_attention(rows, value, chunk=chunk, hasher=hasher)
    for b in range(2):
        for h in range(2):
            weights = reformer_weights(rows[b, h], rows[b, h], torch.ones(n, n), chunk=chunk, hasher=hasher)
            torch.testing.assert_close(out[b, h], reference.attend(weights, value[b, h]))


def test_every_row_attends_to_its_chunk_alone():
    hasher = Hyperplane(3).sample(tables=1, hashes=3, seed=0)
    rows = torch.randn(10, 3)
    weights = reformer_weights(rows, rows, torch.ones(10, 10), chunk=4, hasher=hasher)
    sizes = (weights > 0).sum(1)
    assert sorted(sizes.tolist()) == [2] * 2 + [4] * 8
    assert bool(((weights > 0) == (weights.T > 0)).all())


def test_a_row_that_is_not_finite_makes_nan_of_its_chunk_and_is_differentiable_elsewhere():
    hasher = Hyperplane(2).sample(tables=1, hashes=1, seed=0)
    rows = torch.tensor([[[[1.0, 0.0], [torch.nan, 0.0], [1.0, 0.0], [1.0, 0.0]]]])
    out = aa.reformer_attention(rows, torch.ones(1, 1, 4, 1), chunk=2, hasher=hasher)
    assert out.isnan().flatten().tolist() == [False, True, False, True]


def test_gradients_reach_rows_and_values():
    hasher = Hyperplane(2).sample(tables=1, hashes=2, seed=0)
    rows = torch.randn(1, 1, 7, 2, dtype=torch.float64, requires_grad=True)
    value = torch.randn(1, 1, 7, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r, v: aa.reformer_attention(r, v, chunk=3, hasher=hasher), (rows, value))


def test_bad_arguments_are_refused():
    rows = torch.zeros(1, 1, 4, 2)
    hasher = Hyperplane(2).sample(tables=2, hashes=1)
    with pytest.raises(InputError, match="2 tables, expected one table"):
        aa.reformer_attention(rows, rows, chunk=2, hasher=hasher)
    with pytest.raises(InputError, match="chunk"):
        aa.reformer_attention(rows, rows, chunk=0, hasher=Hyperplane(2).sample(tables=1, hashes=1))
