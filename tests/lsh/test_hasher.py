import dataclasses
import pickle
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annattn.errors import InputError, WideCodeError
from annattn.lsh import NO_BUCKET, CrossPolytope, Euclidean, Hasher, HashFamily, Hyperplane, Identity, compact_rows
from tests.strategies import DTYPES, families, hashers

EVERY_FAMILY = [*families(6), CrossPolytope(20, rotation="structured")]


def rows(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def equal_tuples(digits: torch.Tensor) -> torch.Tensor:
    """Which rows have equal tuples, pair by pair and table by table: (n, n, tables)."""
    return (digits[:, None] == digits[None]).all(-1)


@given(st.data())
def test_codes_are_equal_exactly_when_the_tuples_are(data):
    hasher = data.draw(hashers(dim=3))
    x = rows(12, 3, seed=data.draw(st.integers(0, 1000)))
    x[6:] = x[:6] + torch.randint(0, 2, (6, 1)) * 0.1
    (codes,) = hasher.joint_codes(x)
    assert codes.dtype == torch.int64
    assert bool((codes >= 0).all())
    assert torch.equal(codes[:, None] == codes[None], equal_tuples(hasher.digits(x)))


@given(st.data())
def test_inputs_hashed_together_share_their_codes(data):
    hasher = data.draw(hashers(dim=3))
    x, y = rows(2, 5, 3), rows(4, 3, seed=1)
    y[0] = x[1, 2]
    codes_x, codes_y = hasher.joint_codes(x, y)
    assert codes_x.shape == (2, 5, hasher.tables)
    assert codes_y.shape == (4, hasher.tables)
    digits = torch.cat([hasher.digits(x).flatten(0, 1), hasher.digits(y)])
    codes = torch.cat([codes_x.flatten(0, 1), codes_y])
    assert torch.equal(codes[:, None] == codes[None], equal_tuples(digits))


@pytest.mark.parametrize("hashes", [1, 8, 62, 63])
def test_hyperplane_codes_are_the_bits_of_the_projections(hashes):
    hasher = Hyperplane(5).sample(tables=3, hashes=hashes, seed=7)
    x = rows(20, 5)
    (normals,) = hasher.parameters
    bits = (x.double() @ normals.double().T >= 0).reshape(20, 3, hashes)
    expected = [[sum(int(b) << j for j, b in enumerate(g)) for g in row] for row in bits.tolist()]
    assert hasher(x).tolist() == expected
    assert hasher.buckets == 2**hashes


def test_too_wide_codes_are_refused_alone_and_exact_together():
    hasher = Hyperplane(5).sample(tables=1, hashes=64)
    assert hasher.buckets is None
    with pytest.raises(WideCodeError, match=r"64 values.*63 bits.*hasher\.joint_codes"):
        hasher(rows(3, 5))
    x = rows(2, 5)
    codes, again = hasher.joint_codes(x, x.flip(0))
    assert torch.equal(codes, again.flip(0))
    assert CrossPolytope(16).sample(tables=1, hashes=13).buckets is None
    assert CrossPolytope(16).sample(tables=1, hashes=12).buckets == 32**12


def test_euclidean_codes_never_wrap_around():
    hasher = Euclidean(1, width=1.0).sample(tables=4, hashes=9, seed=0)
    near = torch.tensor([[0.25]])
    assert bool((hasher(near) >= 0).all())
    for far in (1e3, 1e6, 1e18, 1e300):
        x = torch.tensor([[0.25], [far], [-far]], dtype=torch.float64)
        with pytest.raises(WideCodeError):
            hasher(x)
        (codes,) = hasher.joint_codes(x)
        assert all(len(set(column)) == 3 for column in codes.T.tolist())


@pytest.mark.parametrize("family", EVERY_FAMILY, ids=repr)
def test_a_hasher_is_the_same_after_pickling_and_from_its_seed(family: HashFamily):
    hasher = family.sample(tables=3, hashes=2, seed=5)
    copy = pickle.loads(pickle.dumps(hasher))
    x = rows(9, family.dim)
    assert copy == hasher == family.sample(tables=3, hashes=2, seed=5)
    assert torch.equal(copy.digits(x), hasher.digits(x))
    other = family.sample(tables=3, hashes=2, seed=6)
    assert other != hasher
    if not isinstance(family, Identity):
        assert not torch.equal(other.digits(x), hasher.digits(x))


@pytest.mark.slow
@pytest.mark.parametrize("family", [f for f in EVERY_FAMILY if not isinstance(f, Identity)], ids=repr)
def test_codes_are_equal_in_another_process(family: HashFamily):
    hasher = family.sample(tables=2, hashes=2, seed=11)
    program = (
        "import pickle, sys, torch; hasher, x = pickle.loads(sys.stdin.buffer.read());"
        "fresh = hasher.family.sample(tables=2, hashes=2, seed=11);"
        "assert torch.equal(fresh(x), hasher(x)); sys.stdout.write(repr(fresh(x).tolist()))"
    )
    x = rows(50, family.dim)
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps((hasher, x)), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == repr(hasher(x).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("family", EVERY_FAMILY, ids=repr)
def test_a_row_hashes_alike_alone_in_a_batch_and_with_any_number_of_threads(family: HashFamily):
    hasher = family.sample(tables=4, hashes=2, seed=1)
    x = rows(2, 20_000, family.dim)
    whole = hasher.digits(x)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(hasher.digits(x), whole)
        torch.set_num_threads(2)
        assert torch.equal(hasher.digits(x), whole)
    finally:
        torch.set_num_threads(threads)
    for at in (0, 1, 777, 19_999):
        assert torch.equal(hasher.digits(x[1, at : at + 1])[0], whole[1, at])


@pytest.mark.parametrize("family", EVERY_FAMILY, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision_hashes_as_float32_does_on_the_rounded_values(family: HashFamily, dtype):
    hasher = family.sample(tables=5, hashes=3, seed=2)
    x = rows(40, family.dim, dtype=dtype)
    assert torch.equal(hasher.digits(x), hasher.digits(x.double()))
    assert torch.equal(hasher.digits(x), hasher.digits(x.float()))


@pytest.mark.parametrize("family", EVERY_FAMILY, ids=repr)
def test_strided_and_empty_inputs_hash_like_contiguous_ones(family: HashFamily):
    hasher = family.sample(tables=2, hashes=2)
    x = rows(family.dim, 8, 3).permute(2, 1, 0)
    assert torch.equal(hasher.digits(x), hasher.digits(x.contiguous()))
    for shape in ((0, family.dim), (2, 0, family.dim), (0, 3, family.dim)):
        (codes,) = hasher.joint_codes(torch.empty(shape))
        assert codes.shape == (*shape[:-1], 2)


@pytest.mark.parametrize("family", EVERY_FAMILY, ids=repr)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_has_no_bucket(family: HashFamily, bad):
    x = rows(4, family.dim)
    x[2, 3] = bad
    (codes,) = family.sample(tables=3, hashes=2).joint_codes(x)
    lost = (codes == NO_BUCKET).all(-1).tolist()
    is_number = isinstance(family, Identity) and bad == bad  # infinity equals itself
    assert lost == [False, False, not is_number, False]
    assert bool((codes[[0, 1, 3]] >= 0).all())


def test_identity_compares_every_dtype_exactly():
    hasher = Identity(1).sample(tables=1, hashes=1)

    def equal(a, b, dtype):
        x, y = hasher.joint_codes(torch.tensor([[a]], dtype=dtype), torch.tensor([[b]], dtype=dtype))
        return bool((x == y).all())

    assert equal(0.0, -0.0, torch.float32)
    assert equal(2**62 + 1, 2**62 + 1, torch.int64)
    assert not equal(2**62 + 1, 2**62, torch.int64)
    assert not equal(1.0, 1.0 + 2**-52, torch.float64)
    assert equal(True, True, torch.bool)
    assert not equal(-1, 255, torch.int16)


def test_a_hasher_is_frozen_and_moves_between_devices():
    hasher = Hyperplane(4).sample(tables=2, hashes=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        hasher.tables = 3  # pyright: ignore[reportAttributeAccessIssue]
    moved = hasher.to("meta")
    assert isinstance(moved, Hasher)
    assert moved.device.type == "meta"
    assert hasher.device.type == "cpu"


@pytest.mark.parametrize("family", EVERY_FAMILY, ids=repr)
def test_rows_of_the_wrong_shape_are_refused(family: HashFamily):
    hasher = family.sample(tables=2, hashes=1)
    with pytest.raises(InputError, match=rf"\(3, 5\), expected \(\.\.\., n, {family.dim}\)"):
        hasher.joint_codes(torch.zeros(3, 5))
    with pytest.raises(InputError, match="rows to hash"):
        hasher.joint_codes(torch.zeros(family.dim))
    with pytest.raises(InputError, match="complex64"):
        hasher.joint_codes(torch.zeros(2, family.dim, dtype=torch.complex64))


def test_integers_are_refused_by_families_of_directions():
    with pytest.raises(InputError, match=r"int64, expected a floating-point dtype; call \.float\(\)"):
        Hyperplane(2).sample(tables=1, hashes=1)(torch.zeros(3, 2, dtype=torch.int64))


@given(st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0, 2**62, -(2**63)])), max_size=12))
def test_compacted_rows_are_numbered_by_what_they_are(pairs):
    numbers = compact_rows(torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)).tolist()
    assert numbers == [sorted(set(pairs)).index(pair) for pair in pairs]


@pytest.mark.parametrize("family", families(8), ids=repr)
@pytest.mark.parametrize("length", [1e-30, 1.0, 1e12, 1e15, 1e30, 1e300])
def test_equal_rows_share_every_bucket_in_batches_of_any_size(family, length):
    hasher = family.sample(tables=4, hashes=2, seed=0)
    rows = length * torch.randn(60, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for at in range(len(rows)):
        alone, together = hasher.joint_codes(rows[at : at + 1], rows)
        assert torch.equal(alone[0], together[at])


def test_a_row_on_a_hyperplane_lies_on_the_same_side_in_batches_of_any_size():
    """Rows orthogonal to a normal up to rounding: the last bit of a sum decides."""
    hasher = Hyperplane(32).sample(tables=1, hashes=1, seed=0)
    normal = hasher.parameters[0][0].double()
    rows = torch.randn(2000, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for _ in range(3):
        rows = rows - (rows @ normal / normal.square().sum())[:, None] * normal
    whole = hasher(rows)
    assert 0.2 < whole.double().mean() < 0.8
    for size in (1, 3, 17):
        assert torch.equal(torch.cat([hasher(part) for part in rows.split(size)]), whole)
