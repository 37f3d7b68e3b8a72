import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import annattn as aa
from annattn.attention.exact_match import exact_match_weights
from annattn.lsh import Identity
from tests.strategies import Inputs, assert_matches, brute_force


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool, torch.float16, torch.float64])
@given(data=st.data())
def test_rows_of_any_dtype_match_exactly_when_equal(dtype, data):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    query, key = (torch.randint(0, 2, (2, 1, n, 2), generator=generator).to(dtype) for n in (5, 7))
    value = torch.randint(-9, 9, (2, 1, 7, 3), generator=generator).float()
    mask = torch.rand(2, 7, generator=generator) < 0.7
    inputs = Inputs(query, key, value, data.draw(st.booleans()), mask)
    out = aa.exact_match_attention(query, key, value, **inputs.masks)
    assert_matches(out, brute_force(exact_match_weights, inputs), torch.float32)


def test_it_is_anna_with_one_table_of_identity_hashes():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (1, 2, 20, 2), generator=generator).float()
    value = torch.randn(1, 2, 20, 4, generator=generator)
    hasher = Identity(2).sample(tables=1, hashes=1)
    for is_causal in (False, True):
        expected = aa.anna_attention(x, x, value, hasher, is_causal=is_causal)
        assert torch.equal(aa.exact_match_attention(x, x, value, is_causal=is_causal), expected)


def test_large_integers_are_not_rounded():
    query = torch.tensor([2**53 + 1]).reshape(1, 1, 1, 1)
    key = torch.tensor([2**53, 2**53 + 1]).reshape(1, 1, 2, 1)
    value = torch.tensor([1.0, 2.0]).reshape(1, 1, 2, 1)
    assert aa.exact_match_attention(query, key, value).item() == 2.0
