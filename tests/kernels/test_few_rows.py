import pytest
import torch

from annattn.kernels.numba.few_rows import FewRows
from annattn.lsh import CrossPolytope, Hyperplane


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("hashes", [1, 12, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_few_rows_get_the_codes_of_the_hasher(heads, hashes, dtype):
    hasher = Hyperplane(7).sample(tables=5, hashes=hashes, heads=heads)
    key, query = torch.randn(2, 3, 1, 7).to(dtype), torch.randn(2, 6, 1, 7).to(dtype)
    key[0, 1] = 0  # on every hyperplane
    key[1, 2] = hasher.parameters[0][0].to(dtype) * 1e-30
    query[1, 2, 0, 3] = torch.nan
    # At right angles to a hyperplane's normal, but for rounding: float32 cannot tell the side.
    query[0, 0, 0, :2] = hasher.parameters[0][0, [1, 0]].to(dtype) * torch.tensor([1, -1])
    query[0, 0, 0, 2:] = 0
    for found, rows in zip(FewRows(hasher)(key, query), (key, query), strict=True):
        assert torch.equal(found, hasher(rows))


def test_what_is_not_prepared_is_hashed_in_the_general_way():
    hasher = CrossPolytope(8).sample(tables=3, hashes=2)
    key, query = torch.randn(2, 1, 2, 1, 8)
    found = FewRows(hasher)(key, query)
    assert torch.equal(found[0], hasher(key))
    assert torch.equal(found[1], hasher(query))
