"""Every backend gives what the torch backend gives, and that one what a loop over pairs gives."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import annattn as aa
from annattn.errors import BackendError, InputError
from annattn.kernels import (
    BACKENDS,
    Call,
    Order,
    SumInputs,
    bucket_mean,
    bucket_sum,
    choose,
    dispatch,
    equal_rows,
    newest,
    use_backend,
)
from annattn.kernels.numba.backend import NumbaBackend
from annattn.kernels.torch.backend import TorchBackend
from annattn.lsh import IGNORED, NO_BUCKET, Euclidean, Hyperplane

interpreted = (pytest.mark.triton, pytest.mark.skipif(not find_spec("triton"), reason="Triton is not installed"))
INTERPRETED = [pytest.param(name, marks=interpreted) for name in BACKENDS if name.startswith("triton")]
COMPILED = [name for name in BACKENDS if not name.startswith("triton")]
EVERY = pytest.mark.parametrize("backend", [*COMPILED, *INTERPRETED])
FAST = pytest.mark.parametrize("backend", COMPILED)
# The interpreter takes a tenth of a second for what is done in a microsecond elsewhere.
SLOW = pytest.mark.parametrize("backend", INTERPRETED)


def pairs_seen(targets: int, sources: int, order: int) -> list[tuple[int, int]]:
    def sees(i, j):
        late = (sources - 1 - j) - (targets - 1 - i)  # how much farther from its end the source is than the target
        return order == 0 or order * late >= 0

    return [(i, j) for i in range(targets) for j in range(sources) if sees(i, j)]


@st.composite
def codes(draw):
    batch, heads, tables = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    shares = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    lengths = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    wide = draw(st.booleans())
    largest = 2**62 if wide else 5
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    named = torch.tensor([IGNORED, NO_BUCKET, 0, 1, 2, largest - 1])
    least = draw(st.sampled_from([0, 0, 2]))  # most rows have a bucket when rows without one are rare
    made = [
        named[torch.randint(least, 6, (batch, heads * share, n, tables), generator=generator)]
        for share, n in zip(shares, lengths, strict=True)
    ]
    for one in made:  # a row has no bucket in any table or in none
        one[(one < 0).any(-1)] = one[(one < 0).any(-1)].amin(-1, keepdim=True)
    value = torch.randint(-8, 9, (*made[1].shape[:3], draw(st.integers(0, 3))), generator=generator).float()
    return made[0], made[1], value, 0 if wide else largest


def sums_over_pairs(targets, sources, value, order):
    total = torch.zeros(*targets.shape[:3], value.shape[-1])
    count = torch.zeros(targets.shape[:3], dtype=torch.int64)
    lost = (targets == NO_BUCKET).any(-1)
    heads = min(targets.shape[1], sources.shape[1])
    for i, j in pairs_seen(targets.shape[2], sources.shape[2], order):
        for batch in range(targets.shape[0]):
            for a in range(targets.shape[1]):
                for b in range(sources.shape[1]):
                    if a * heads // targets.shape[1] != b * heads // sources.shape[1]:
                        continue
                    t, s = targets[batch, a, i], sources[batch, b, j]
                    shared = int(((t == s) & (t >= 0)).sum())
                    total[batch, a, i] += shared * value[batch, b, j]
                    count[batch, a, i] += shared
                    lost[batch, a, i] |= (s == NO_BUCKET).any()
    return total, count, lost


sums_given = given(given_codes=codes(), order=st.sampled_from([-1, 0, 1]), one_table=st.booleans())
means_given = given(given_codes=codes(), order=st.sampled_from([0, 1]), one_table=st.booleans())


@pytest.mark.slow
@FAST
@settings(max_examples=300)
@sums_given
def test_bucket_sum_is_the_sum_over_pairs(backend, given_codes, order, one_table):
    check_sum(backend, given_codes, order, one_table)


@pytest.mark.slow
@SLOW
@settings(max_examples=20)
@sums_given
def test_interpreted_bucket_sum_is_the_sum_over_pairs(backend, given_codes, order, one_table):
    check_sum(backend, given_codes, order, one_table)


def check_sum(backend, given_codes, order, one_table):
    targets, sources, value, buckets = given_codes
    total, count, _ = sums_over_pairs(targets, sources, value, order)
    with use_backend(backend):
        got_total, got_count = bucket_sum(targets, sources, value, order, buckets, one_table)
    assert torch.equal(got_total, total)
    assert torch.equal(got_count, count)


@pytest.mark.slow
@FAST
@settings(max_examples=300)
@means_given
def test_bucket_mean_divides_by_the_count_and_is_nan_for_who_may_have_met_an_unknown_row(
    backend, given_codes, order, one_table
):
    check_mean(backend, given_codes, order, one_table)


@pytest.mark.slow
@SLOW
@settings(max_examples=10)
@means_given
def test_interpreted_bucket_mean_divides_by_the_count(backend, given_codes, order, one_table):
    check_mean(backend, given_codes, order, one_table)


def check_mean(backend, given_codes, order, one_table):
    targets, sources, value, buckets = given_codes
    if sources.shape[1] > targets.shape[1]:
        targets, sources, value = (
            targets,
            sources[:, :1].repeat(1, targets.shape[1], 1, 1),
            value[:, :1].repeat(1, targets.shape[1], 1, 1),
        )
    total, count, lost = sums_over_pairs(targets, sources, value, order)
    expected = (total / count[..., None].clamp(min=1)).masked_fill(lost[..., None], torch.nan)
    with use_backend(backend):
        mean, got_count = bucket_mean(targets, sources, value, order, buckets, one_table)
    torch.testing.assert_close(mean, expected, rtol=2e-7, atol=0, equal_nan=True)
    assert torch.equal(got_count, count)


@pytest.mark.slow
@FAST
@given(given_codes=codes())
def test_newest_is_the_newest_of_the_bucket(backend, given_codes):
    check_newest(backend, given_codes)


@pytest.mark.slow
@SLOW
@settings(max_examples=15)
@given(given_codes=codes())
def test_interpreted_newest_is_the_newest_of_the_bucket(backend, given_codes):
    check_newest(backend, given_codes)


def check_newest(backend, given_codes):
    targets, sources, _, buckets = given_codes
    sources = sources[:, :1]
    expected = torch.full_like(targets, -1)
    for i, j in pairs_seen(targets.shape[2], sources.shape[2], 1):
        same = (targets[:, :, i] == sources[:, :, j]) & (targets[:, :, i] >= 0)
        expected[:, :, i] = torch.where(same, j, expected[:, :, i])
    with use_backend(backend):
        assert torch.equal(newest(targets, sources, buckets), expected)


def random_codes(buckets: int, n: int, m: int, tables: int = 3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, buckets, (1, 4, n, tables), generator=generator)
    sources = torch.randint(0, buckets, (1, 2, m, tables), generator=generator)
    targets[:, :, ::7], sources[:, :, ::11] = IGNORED, IGNORED
    return targets, sources, torch.randint(-8, 9, (1, 2, m, 5), generator=generator).float()


@pytest.mark.slow
@pytest.mark.parametrize("backend", [name for name in COMPILED if name != "torch"])
@pytest.mark.parametrize(("n", "m"), [(40_000, 40_000), (40_000, 17_000), (300, 33_000), (33_000, 16_385)])
@pytest.mark.parametrize("buckets", [1, 6, 40_000, 2**50])
@pytest.mark.parametrize("order", [-1, 0, 1])
def test_long_inputs_equal_the_torch_backend(backend, n, m, buckets, order):
    # Sums of these integers are exact, so that many strips and long sums must agree to the bit.
    targets, sources, value = random_codes(buckets, n, m)
    hint = buckets if buckets < 2**40 else 0
    with use_backend("torch"):
        expected = bucket_sum(targets, sources, value, order, hint, False)
    with use_backend(backend):
        for one_table in (False, True):
            got = bucket_sum(targets, sources, value, order, hint, one_table)
            assert torch.equal(got[0], expected[0])
            assert torch.equal(got[1], expected[1])
        found = newest(targets, sources, hint)
    with use_backend("torch"):
        assert torch.equal(found, newest(targets, sources, hint))


@pytest.mark.slow
@FAST
def test_sums_in_float32_do_not_drift_in_one_huge_bucket(backend):
    n = 300_000
    codes = torch.zeros(1, 1, n, 1, dtype=torch.int64)
    value = torch.full((1, 1, n, 1), 0.1)
    with use_backend(backend):
        for order in (0, 1):
            mean, _ = bucket_mean(codes, codes, value, order, 1, False)
            assert mean[0, 0, -1, 0].item() == pytest.approx(0.1, rel=5e-5)


@pytest.mark.slow
@FAST
@pytest.mark.parametrize("order", [-1, 0, 1])
def test_results_do_not_depend_on_the_number_of_threads(backend, order):
    targets, sources, _ = random_codes(16, 9_000, 9_000)
    value = torch.randn(1, 2, 9_000, 5, generator=torch.Generator().manual_seed(0))
    threads, results = torch.get_num_threads(), []
    try:
        with use_backend(backend):
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                results.append(bucket_sum(targets, sources, value, order, 16, False)[0])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("order", [-1, 0, 1])
@pytest.mark.parametrize("one_table", [False, True])
def test_one_head_on_many_threads_is_the_same_to_the_bit(order, one_table):
    targets, sources, _ = random_codes(16, 9_000, 9_000)
    value = torch.randn(1, 1, 9_000, 43, generator=torch.Generator().manual_seed(0))
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 7):  # all columns, halves of them, and as many parts as are worth a thread
            torch.set_num_threads(count)
            inputs = SumInputs(targets[:, :1], sources[:, :1], value, Order(order), 16, one_table)
            results.append(NumbaBackend().bucket_mean(inputs))
    finally:
        torch.set_num_threads(threads)
    for mean, count in results[1:]:
        assert torch.equal(results[0][0], mean)
        assert torch.equal(results[0][1], count)


@EVERY
@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2**31))
def test_equal_rows_share_a_code(backend, n, m, seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(0, 2, (2, 1, size, 2), generator=generator).float() for size in (n, m))
    with use_backend(backend):
        codes_x, codes_y = equal_rows(x, y)
    same = (x[:, :, :, None] == y[:, :, None]).all(-1)
    assert torch.equal(codes_x[:, :, :, None, 0] == codes_y[:, :, None, :, 0], same)


@pytest.mark.slow
@FAST
def test_the_ops_pass_torchs_own_checks(backend):
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 4, (2, 2, 5, 3), generator=generator)
    sources = torch.randint(0, 4, (2, 1, 6, 3), generator=generator)
    targets[0, 0, 0], sources[0, 0, 0] = IGNORED, IGNORED  # not NO_BUCKET: NaN would equal nothing
    value = torch.randn(2, 1, 6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    with use_backend(backend):
        for order in (-1, 0, 1):
            torch.library.opcheck(bucket_sum, (targets, sources, value, order, 4, False))
        for order in (0, 1):
            torch.library.opcheck(torch.ops.annattn.bucket_mean.default, (targets, sources, value, order, 4, False))
        torch.library.opcheck(torch.ops.annattn.newest.default, (targets, sources, 4))
        torch.library.opcheck(torch.ops.annattn.equal_rows.default, (value.detach(), value.detach()))


def test_an_unknown_backend_is_refused():
    with pytest.raises(InputError, match="backend: got 'cuda', expected one of"), use_backend("cuda"):
        pass


class _Tired(TorchBackend):
    def __init__(self, name):
        self.name = name

    def unsupported_reasons(self, call):
        return [f"{self.name} is tired"]


def test_when_none_can_run_every_reason_is_told(monkeypatch):
    for name in BACKENDS:
        monkeypatch.setitem(dispatch._loaded, name, _Tired(name))
    with pytest.raises(BackendError) as raised:
        choose(Call("hash", torch.device("cpu"), torch.float32, (1, 1, 1), (1, 1, 1), 1, 1))
    for name in BACKENDS:
        assert f"{name}: {name} is tired" in str(raised.value)


@pytest.mark.parametrize("name", ["numba", "torch"])
def test_a_backend_without_a_kernel_for_windows_says_so(name):
    band = Call("band", torch.device("cpu"), torch.float32, (1, 1, 5), (1, 1, 5), 0, 4)
    assert dispatch.find(band) is None
    with use_backend(name):
        assert dispatch.find(band) is None
        with pytest.raises(BackendError, match=f"{name}: there is no kernel for the softmax of a window"):
            choose(band)
        query, key, value = ROWS
        aa.window_attention(query, key, value, HYPERPLANES, window=2)  # torch's own operations do without


HYPERPLANES = Hyperplane(4).sample(tables=2, hashes=3)
ROWS = tuple(torch.randn(3, 1, 1, 5, 4))


def attend(hasher):
    query, key, value = ROWS
    aa.anna_attention(query, key, value, hasher)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: attend(Euclidean(4).sample(tables=2, hashes=3)), "Euclidean.* is not compiled"),
        (lambda: attend(Hyperplane(4).sample(tables=2, hashes=64)), "do not fit one code"),
        (lambda: exact_gradient(aa.anna_attention), "only constant weights are compiled"),
        (lambda: exact_gradient(aa.latest_match_attention), "only constant weights are compiled"),
    ],
)
def test_a_backend_asked_for_by_name_says_what_it_cannot_do(call, reason):
    call()  # another backend can
    with use_backend("numba"), pytest.raises(BackendError, match=reason):
        call()


def exact_gradient(attend):
    query = ROWS[0].clone().requires_grad_()
    attend(query, ROWS[1], ROWS[2], HYPERPLANES, gradient="exact").sum().backward()


@pytest.mark.slow
def test_a_backend_is_imported_when_it_is_first_considered():
    script = """
import sys, torch, annattn as aa
from annattn.kernels import use_backend
x = torch.randn(1, 1, 5, 4)
with use_backend("torch"):
    aa.anna_attention(x, x, x, aa.lsh.Hyperplane(4).sample(tables=2, hashes=3))
assert "numba" not in sys.modules
aa.anna_attention(x, x, x, aa.lsh.Hyperplane(4).sample(tables=2, hashes=3))
assert "numba" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_backend_that_cannot_be_imported_is_passed_over_and_named(monkeypatch):
    monkeypatch.setitem(BACKENDS, "absent", "annattn.kernels.absent:Backend")
    call = Call("hash", torch.device("cpu"), torch.float32, (1, 1, 1), (1, 1, 1), 1, 1, family=Hyperplane(1), buckets=2)
    choose(call)
    with pytest.raises(BackendError, match="'absent' cannot run here: it cannot be imported"), use_backend("absent"):
        choose(call)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rows_are_divided_by_their_counts_whatever_their_layout(backend, dtype):
    rows = torch.arange(2 * 3 * 5 * 4).reshape(2, 5, 3, 4).transpose(1, 2).to(dtype)
    counts = torch.arange(2 * 3 * 5).reshape(2, 3, 5)
    call = Call("bucket_sum", rows.device, torch.float32, (2, 3, 5), (2, 3, 5), 1, 4)
    with use_backend(backend):
        got = choose(call).divide_rows(rows, counts)
    torch.testing.assert_close(got, rows / counts.clamp(min=1)[..., None])
