"""The compiled gradient for queries and keys against the sum over all pairs."""

import pytest
import torch

from annattn.kernels import GradientInputs, Order, SumInputs, bucket_attention
from annattn.kernels.interface import Slope
from annattn.kernels.numba import memory
from annattn.kernels.numba.backend import NumbaBackend
from annattn.kernels.numba.gradient import _cuts
from annattn.kernels.ops import _bucket_attention, _bucket_attention_gradient
from annattn.kernels.torch import gradient as routes
from annattn.kernels.torch.backend import TorchBackend
from annattn.lsh import IGNORED, NO_BUCKET, Hyperplane

HASHER = Hyperplane(4).sample(tables=3, hashes=2)


def case(n, m, *, buckets, dim=5, width=3, share=1, tables=2, spread=1):
    """Everything the gradient is made from, in the order it is given; codes are random multiples of `spread`."""
    generator = torch.Generator().manual_seed(0)
    query_codes = torch.randint(0, buckets, (2, 2 * share, n, tables), generator=generator)
    key_codes = torch.randint(0, buckets, (2, 2, m, tables), generator=generator)
    query_codes, key_codes = spread * query_codes, spread * key_codes
    query_codes[0, 0, ::7], key_codes[0, 0, ::5], key_codes[1, 0, :1] = IGNORED, IGNORED, NO_BUCKET
    query, key, value, grad = (
        torch.randn(2, heads, size, wide, generator=generator, dtype=torch.float64)
        for heads, size, wide in ((2 * share, n, dim), (2, m, dim), (2, m, width), (2 * share, n, width))
    )
    query[0, 0, 1:2] = 0  # no direction
    return query, key, value, query_codes, key_codes, grad


def gradients(backend, inputs, *, is_causal, hint):
    query, key, value, query_codes, key_codes, grad = inputs
    order = Order.CAUSAL if is_causal else Order.ALL
    out, count = TorchBackend().bucket_mean(SumInputs(query_codes, key_codes, value, order, hint))
    return backend.query_key_gradient(
        GradientInputs(query, key, value, grad, out, count, Slope(1.5), order, query_codes, key_codes, hint)
    )


def over_all_pairs(monkeypatch, inputs, *, is_causal, hint):
    monkeypatch.setattr(routes, "_ALL_PAIRS", 10**9)
    return gradients(TorchBackend(), inputs, is_causal=is_causal, hint=hint)


SHAPES = {
    "one bucket": {"n": 150, "m": 131, "buckets": 1},
    "large buckets": {"n": 150, "m": 131, "buckets": 3, "share": 2},
    "small buckets, pair by pair": {"n": 90, "m": 90, "buckets": 60, "dim": 64, "width": 64},
    "both": {"n": 90, "m": 190, "buckets": 12, "dim": 33, "width": 40},
    "codes of 50 bits": {"n": 60, "m": 70, "buckets": 8, "spread": 2**50},
    "few queries": {"n": 4, "m": 150, "buckets": 2},
    "few keys": {"n": 150, "m": 4, "buckets": 2},
    "one token": {"n": 1, "m": 1, "buckets": 1},
    "one number": {"n": 30, "m": 30, "buckets": 2, "dim": 1, "width": 1},
    "no width": {"n": 30, "m": 30, "buckets": 2, "width": 0},
    "no keys": {"n": 3, "m": 0, "buckets": 2},
}


TRIVIAL = ("one token", "one number", "no width", "no keys")  # whose gradients are zero


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_sums_equal_those_over_all_pairs(monkeypatch, shape, is_causal, dtype):
    inputs = case(**shape)
    hint = shape["buckets"] if "spread" not in shape else 0
    wanted = over_all_pairs(monkeypatch, inputs, is_causal=is_causal, hint=hint)
    narrowed = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    got = gradients(NumbaBackend(), narrowed, is_causal=is_causal, hint=hint)
    tolerance = 1e-11 if dtype == torch.float64 else 2e-5
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance)
    if shape not in [SHAPES[name] for name in TRIVIAL]:
        assert all(x.abs().max() > 1e-2 for x in got)


@pytest.mark.parametrize("is_causal", [False, True])
def test_it_is_the_same_to_the_bit_for_any_number_of_threads_and_any_memory(monkeypatch, is_causal):
    # One bucket alone is cut by columns, a few among many by rows, and four groups go to threads of their own.
    cases = [case(700, 700, buckets=1, dim=40), case(700, 700, buckets=40, dim=40)]
    cases += [tuple(x[:1, :1] for x in given) for given in cases]
    cases = [tuple(x.float() if x.is_floating_point() else x for x in given) for given in cases]
    threads, results = torch.get_num_threads(), []

    def run():
        return [x for given in cases for x in gradients(NumbaBackend(), given, is_causal=is_causal, hint=40)]

    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(run())
    finally:
        torch.set_num_threads(threads)
    poison = {torch.int64: -7, torch.float32: torch.nan}
    monkeypatch.setattr(
        memory, "empty", lambda *shape, dtype=torch.int64: torch.full(shape, poison[dtype], dtype=dtype)
    )
    results.append(run())
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize(
    "sizes", [[5], [0, 0, 9, 0], [1] * 100, [1000, 1, 1], [1, 1000, 1], [1, 1, 1000], [40] * 50, [0]]
)
def test_every_bucket_and_line_is_in_exactly_one_piece(sizes):
    edges = torch.tensor([0, *sizes]).cumsum(0).numpy()
    met = torch.zeros(len(sizes), 3, dtype=torch.int64)
    for (first, last), (line, end) in _cuts(edges, 3):
        met[first:last, line:end] += 1
    assert (met[torch.tensor(sizes) > 0] == 1).all()
    assert met.max() <= 1


@pytest.mark.parametrize("is_causal", [False, True])
def test_inputs_of_any_layout(monkeypatch, is_causal):
    inputs = case(20, 20, buckets=3)
    wanted = over_all_pairs(monkeypatch, inputs, is_causal=is_causal, hint=3)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    wide = [torch.cat([x, x], -1)[..., : x.shape[-1]] for x in inputs]
    for given in (strided, wide):
        for a, b in zip(gradients(NumbaBackend(), given, is_causal=is_causal, hint=3), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("order", [0, 1])
def test_attend_and_its_gradient_pass_torchs_own_checks(order):
    query, key, value, query_codes, key_codes, grad = case(6, 7, buckets=2, dim=4)
    key_codes[1, 0, 0] = IGNORED  # not NO_BUCKET: NaN would equal nothing
    leaves = query.requires_grad_(), key.requires_grad_(), value.requires_grad_()
    for counted in (False, True):
        args = (*leaves, query_codes, key_codes, order, 2, False, "linear", HASHER.spec, counted)
        torch.library.opcheck(_bucket_attention, args)
    out, count = bucket_attention(
        *leaves, (query_codes, key_codes), HASHER, order=order, buckets=2, one_table_at_a_time=False, gradient="linear"
    )
    given = [x.detach() for x in (query, key, value)]
    torch.library.opcheck(
        _bucket_attention_gradient,
        (*given, query_codes, key_codes, grad, out.detach(), count, order, 2, "linear", HASHER.spec),
    )
