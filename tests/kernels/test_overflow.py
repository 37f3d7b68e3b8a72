"""A sum may leave the range of its dtype where the mean does not: the answer is then that of smaller values."""

import numpy as np
import pytest
import torch

import annattn as aa
from annattn.kernels import use_backend
from annattn.outofcore import attend

HASHER = aa.lsh.Hyperplane(8).sample(tables=64, hashes=3)
BACKENDS = pytest.mark.parametrize("backend", ["torch", "numba"])
# Few rows are added up bucket by bucket; with many, few buckets have rows of their own.
LENGTHS = pytest.mark.parametrize("n", [12, 600])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
ATTENTIONS = {
    "anna": lambda q, k, v: aa.anna_attention(q, k, v, HASHER),
    "causal": lambda q, k, v: aa.anna_attention(q, k, v, HASHER, is_causal=True),
    "linear memory": lambda q, k, v: aa.anna_attention(q, k, v, HASHER, algorithm="linear_memory"),
    "latest match": lambda q, k, v: aa.latest_match_attention(q, k, v, HASHER),
    "exact match": lambda q, k, v: aa.exact_match_attention(q.sign(), q.sign(), v),
    "causal exact match": lambda q, k, v: aa.exact_match_attention(q.sign(), q.sign(), v, is_causal=True),
}
ALL = pytest.mark.parametrize("mechanism", ATTENTIONS.values(), ids=ATTENTIONS)


def inputs(n, dtype, heads=2):
    generator = torch.Generator().manual_seed(n)
    query, key = torch.randn(2, 1, heads, n, 8, generator=generator, dtype=dtype)
    value = torch.randn(1, heads, n, 3, generator=generator, dtype=dtype)
    value[..., 0] = 1.0  # sums of one sign, whose mean is 1
    return query, key, value


def factor(dtype) -> float:
    """A power of two by which every value here stays finite, and a sum of 64 does not."""
    return 2.0**124 if dtype == torch.float32 else 2.0**1020


@ALL
@BACKENDS
@DTYPES
@LENGTHS
def test_a_mean_is_finite_where_its_sum_is_not(mechanism, backend, dtype, n):
    query, key, value = inputs(n, dtype)
    with use_backend(backend):
        expected, out = mechanism(query, key, value), mechanism(query, key, value * factor(dtype))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out / factor(dtype), expected, rtol=200 * eps, atol=200 * eps)


@ALL
@BACKENDS
def test_the_mean_of_the_largest_number_is_the_largest_number(mechanism, backend):
    query, key, _ = inputs(600, torch.float32)
    largest = torch.finfo(torch.float32).max
    with use_backend(backend):
        out = mechanism(query, key, torch.full((1, 2, 600, 3), largest))
    assert ((out == 0) | (out > 0.9999 * largest)).all()
    assert out.max().isfinite()


@BACKENDS
def test_one_huge_value_changes_nothing_for_others_and_infinity_stays(backend):
    query, key, value = inputs(300, torch.float32)
    with use_backend(backend):
        before = ATTENTIONS["causal"](query, key, value)
        value[0, 1, 150, 2] = 3e38
        value[0, 1, 200, 1] = torch.inf
        after = ATTENTIONS["causal"](query, key, value)
    assert torch.equal(after[:, 0], before[:, 0])
    assert torch.equal(after[0, 1, :, 0], before[0, 1, :, 0])
    assert after[0, 1, :, 2].isfinite().all()
    assert after[0, 1, :, 1].isinf().any()
    assert not after.isnan().any()


@pytest.mark.parametrize("mechanism", [ATTENTIONS[name] for name in ("anna", "causal", "latest match")])
@BACKENDS
@LENGTHS
@pytest.mark.parametrize("huge", ["value", "grad"])
def test_gradients_are_finite_where_their_sums_are_not(mechanism, backend, n, huge):
    query, key, value = inputs(n, torch.float32)
    value[..., 0] += torch.linspace(-1, 1, n)
    grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    if n == 600:
        grad *= 2.0**-9  # a key has many queries, and the sum of what they want of it must be in range

    def gradients(value_factor, grad_factor):
        leaves = [x.clone().requires_grad_() for x in (query, key, value * value_factor)]
        with use_backend(backend):
            mechanism(*leaves).backward(grad * grad_factor)
        return [x.grad for x in leaves]

    large = 2.0**122
    expected = gradients(1, 1)
    found = gradients(large, 1) if huge == "value" else gradients(1, large)
    for one, other, name in zip(found, expected, "qkv", strict=True):
        scale = 1 if huge == "value" and name == "v" else large
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one / scale, other, rtol=1e-4, atol=1e-4)


@BACKENDS
def test_a_sum_is_infinite_only_where_it_must_be(backend):
    """What cancels again is not lost on the way."""
    largest = torch.finfo(torch.float32).max
    key = torch.ones(1, 1, 3, 1)
    leaf = torch.zeros(1, 1, 3, 1, requires_grad=True)
    with use_backend(backend):
        out = aa.exact_match_attention(key, key, leaf)
        out.backward(torch.tensor([largest, largest, -largest]).reshape(1, 1, 3, 1))
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, torch.full((1, 1, 3, 1), largest / 3))


@BACKENDS
@pytest.mark.parametrize("mechanism", ["anna", "latest_match"])
def test_a_cache_gives_the_same_token_by_token_and_at_once(backend, mechanism):
    query, key, value = inputs(40, torch.float32, heads=1)

    def outputs(value):
        with use_backend(backend):
            single, many = (aa.BucketCache(HASHER, value_dim=3, mechanism=mechanism) for _ in range(2))
        steps = [single.step(*(x[:, :, i : i + 1] for x in (query, key, value))) for i in range(40)]
        return torch.cat(steps, 2), many.step(query, key, value), single.attend(query)

    large = factor(torch.float32)
    for huge, expected in zip(outputs(value * large), outputs(value), strict=True):
        torch.testing.assert_close(huge / large, expected)


@pytest.mark.parametrize("memory", [2**16, 2**30])
def test_attention_over_files_gives_the_same(tmp_path, memory):
    arrays = dict(zip(("q", "k", "v"), inputs(300, torch.float32), strict=True))
    for name, array in arrays.items():
        scale = factor(torch.float32) if name == "v" else 1
        np.save(tmp_path / f"{name}.npy", (array[0] * scale).numpy())
    q, k, v, out = (tmp_path / f"{name}.npy" for name in "qkvo")
    attend(q, k, v, out, hasher=HASHER, memory_bytes=memory)
    found = torch.from_numpy(np.load(out))[None] / factor(torch.float32)
    torch.testing.assert_close(found, ATTENTIONS["anna"](*arrays.values()))
