"""Compiled codes of rows are equal exactly when rows are, for every dtype, against all pairs compared."""

import pytest
import torch

from annattn.kernels.numba.numbering import equal_rows

FLOATING = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DTYPES = [*FLOATING, torch.int64, torch.int32, torch.uint8, torch.bool]


def pairs(query, key):
    """Which queries equal which keys, by codes and by rows; two query heads share a key head."""
    query_codes, key_codes = equal_rows(query, key)
    asked, held = query_codes.unflatten(1, (2, 2)), key_codes[:, :, None, None, :, 0]
    by_rows = query.unflatten(1, (2, 2))[..., None, :] == key[:, :, None, None]
    return (asked == held) & (asked >= 0), by_rows.all(-1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [1, 3, 17])
def test_codes_are_equal_exactly_when_rows_are(dtype, dim):
    generator = torch.Generator().manual_seed(dim)
    query = torch.randint(0, 3, (2, 4, 30, dim), generator=generator).to(dtype)
    key = torch.randint(0, 3, (2, 2, 40, dim), generator=generator).to(dtype)
    query[1, :, 7:12], key[1, :, 3:8] = query[0, 0, 0], query[0, 0, 0]  # also where rows are wide
    by_codes, by_rows = pairs(query, key)
    assert by_rows.any()
    assert torch.equal(by_codes, by_rows)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_zeros_are_equal_whatever_their_sign_infinities_too_and_nan_equals_nothing(dtype):
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0]).to(dtype)
    rows = torch.cartesian_prod(odd, odd)
    query, key = rows.expand(1, 4, 36, 2), rows.flip(0).expand(1, 2, 36, 2)
    by_codes, by_rows = pairs(query, key)
    assert by_codes[0, 0, 0].sum() == 4 * 4 + 2 * 2 * 3 * 2 + 3 * 3  # zeros with zeros, with others, and others alone
    assert torch.equal(by_codes, by_rows)


def test_codes_are_the_same_for_any_number_of_threads():
    query, key = torch.randint(0, 4, (2, 3, 8, 400, 5), generator=torch.Generator().manual_seed(0)).float()
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(equal_rows(query, key))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
