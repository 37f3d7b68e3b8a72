"""Compiled codes are those of the families' float64 definition, for every row and layout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annattn.kernels.numba.hashing import hash_rows
from annattn.lsh import CrossPolytope, Hyperplane


@given(
    dim=st.sampled_from([1, 2, 3, 7, 8, 9, 16, 63, 64, 65, 200]),
    tables=st.integers(1, 9),
    hashes=st.sampled_from([1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 62, 63]),
    n=st.integers(0, 9),
    seed=st.integers(0, 2**31),
)
def test_hyperplane_codes_equal_the_definition(dim, tables, hashes, n, seed):
    hasher = Hyperplane(dim).sample(tables=tables, hashes=hashes, seed=seed)
    x = torch.randn(1, 2, n, dim, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(hash_rows(hasher, x)[0], hasher(x))


@given(
    dim=st.sampled_from([16, 17, 31, 32, 33, 64, 100]),
    hashes=st.integers(1, 4),
    n=st.integers(0, 35),
    seed=st.integers(0, 2**31),
)
def test_structured_cross_polytope_codes_equal_the_definition(dim, hashes, n, seed):
    hasher = CrossPolytope(dim, rotation="structured").sample(tables=3, hashes=hashes, seed=seed)
    x = torch.randn(2, 1, n, dim, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(hash_rows(hasher, x)[0], hasher(x))


@given(
    family=st.sampled_from(
        [Hyperplane(5), CrossPolytope(5), CrossPolytope(17), CrossPolytope(20, rotation="structured")]
    ),
    hashes=st.integers(1, 5),
    n=st.integers(0, 90),
    dtype=st.sampled_from([torch.float64, torch.float16, torch.bfloat16]),
    scale=st.sampled_from([0.0, 1e-200, 1e-30, 1.0, 1e30, 1e200]),
    seed=st.integers(0, 2**31),
)
def test_every_compiled_family_and_dtype_equals_the_definition(family, hashes, n, dtype, scale, seed):
    hasher = family.sample(tables=3, hashes=hashes, seed=seed)
    rows = torch.randn(2, 2, n, family.dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = (rows * scale).to(dtype)
    assert torch.equal(hash_rows(hasher, x)[0], hasher(x))


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_what_other_products_may_lose_does_not_decide_a_hash(precision):
    hasher, before = Hyperplane(64).sample(tables=8, hashes=8), torch.get_float32_matmul_precision()
    x = torch.randn(1, 1, 3000, 64, generator=torch.Generator().manual_seed(0))
    try:
        torch.set_float32_matmul_precision(precision)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            codes = hash_rows(hasher, x)[0]
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(codes, hasher(x))


HASHERS = [
    Hyperplane(64).sample(tables=8, hashes=8, seed=0),
    Hyperplane(64).sample(tables=1, hashes=1, seed=0),  # one function alone has a kernel of its own
    CrossPolytope(64, rotation="structured").sample(tables=8, hashes=1, seed=0),
    CrossPolytope(64).sample(tables=2, hashes=1, seed=0),
]
EVERY = pytest.mark.parametrize("hasher", HASHERS, ids=lambda hasher: str(hasher.family))


@pytest.mark.slow
@EVERY
def test_many_rows_equal_the_definition(hasher):
    x = torch.randn(1, 1, 200_000, 64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(hash_rows(hasher, x)[0], hasher(x))


@EVERY
@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-42, 1e-30, 1e-12, 1e12, 1e18, 1e30, 3e38])
def test_rows_of_any_length_equal_the_definition(hasher, scale):
    x = torch.randn(1, 1, 500, 64, generator=torch.Generator().manual_seed(2)).clamp(-1, 1) * scale
    assert x.isfinite().all()
    assert torch.equal(hash_rows(hasher, x)[0], hasher(x))


@pytest.mark.slow
@EVERY
def test_rows_on_a_boundary_equal_the_definition(hasher):
    # Rows almost orthogonal to a normal: float32 alone would decide some of these by rounding. Every fifth, so that
    # panels of rows have them in all their places, and others beside them.
    x = torch.randn(1, 1, 20_000, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    direction = hasher.parameters[0].double().reshape(-1, 64)[0]
    x[:, :, ::5] -= (x[:, :, ::5] @ direction)[..., None] * direction / direction.square().sum()
    x = x.float()
    assert torch.equal(hash_rows(hasher, x)[0], hasher(x))
    x = x[:, :, ::5]
    if isinstance(hasher.family, Hyperplane):
        projections = (x.double() @ direction).abs() / x.double().norm(dim=-1)
        assert bool((projections < 1e-5).all())
        wrong = (x @ direction.float() >= 0) != (x.double() @ direction >= 0)
        assert bool(wrong.any())


@EVERY
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_have_no_bucket(hasher, bad):
    x = torch.randn(1, 1, 40, 64, generator=torch.Generator().manual_seed(4))
    x[0, 0, 7, 13], x[0, 0, 39, 63] = bad, bad
    assert torch.equal(hash_rows(hasher, x)[0], hasher(x))
    assert (hash_rows(hasher, x)[0][0, 0, :, 0] == -1).nonzero().flatten().tolist() == [7, 39]


@EVERY
def test_any_layout_equals_the_contiguous_one(hasher):
    x = torch.randn(2, 50, 3, 64, generator=torch.Generator().manual_seed(5))
    moved = x.transpose(1, 2)
    flipped = torch.randn(2, 3, 64, 50, generator=torch.Generator().manual_seed(6)).transpose(2, 3)
    part = torch.randn(3, 4, 60, 64, generator=torch.Generator().manual_seed(7))[1:, 1:, 5::3]
    repeated = torch.randn(1, 1, 9, 64, generator=torch.Generator().manual_seed(8)).expand(2, 3, 9, 64)
    for view in (moved, flipped, part, repeated):
        assert torch.equal(hash_rows(hasher, view)[0], hasher(view.contiguous()))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_hashes_its_rounded_values(hasher, dtype):
    x = torch.randn(1, 1, 300, 64, generator=torch.Generator().manual_seed(9)).to(dtype)
    assert torch.equal(hash_rows(hasher, x)[0], hasher(x.double()))


@EVERY
def test_rows_of_one_head_need_not_lie_side_by_side(hasher):
    x = torch.randn(1, 1, 90, 128, generator=torch.Generator().manual_seed(10))[:, :, ::3, :64]
    assert torch.equal(hash_rows(hasher, x)[0], hasher(x.contiguous()))
