"""Calls that are odd but right give what plain ones give, and others a sentence: every mechanism."""

import pytest
import torch
from torch.autograd import forward_ad

import annattn as aa
from annattn.attention import Mechanism
from annattn.attention.softmax import fused_softmax
from annattn.errors import AnnattnError, InputError, NoMemoryError
from annattn.kernels import use_backend
from tests.attention.test_mechanisms import DIM, EVERY, WITH_MASKS, call, random_inputs
from tests.strategies import Inputs, mechanisms

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),  # of torch, by torch
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # of torch.vmap over its own kernel
    pytest.mark.filterwarnings("ignore:.*searchsorted.*non-contiguous:UserWarning"),  # torch.vmap's copies
]

HASHER = aa.lsh.Hyperplane(8).sample(tables=4, hashes=3)
LAYOUTS = {
    "heads after tokens": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "the other way round": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "every second number": lambda x: torch.stack([x, x + 1], -1)[..., 0],
    "every second row": lambda x: x.repeat_interleave(2, 2)[:, :, ::2],
}


def given(n: int = 20, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    inputs = random_inputs(n, n, heads=1)
    # As wide as queries, since torch's fused attention, which a window is computed by, takes no other values.
    value = torch.randn(2, 1, n, DIM, generator=torch.Generator().manual_seed(n))
    return [x.to(dtype) for x in (inputs.query[:, :1], inputs.key, value)]


def _negated(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, -x).conj().imag


def attend(mechanism: Mechanism, *rows: torch.Tensor, key_mask: torch.Tensor | None = None) -> torch.Tensor:
    return call(mechanism, Inputs(rows[0], rows[1], rows[2], False, key_mask))


def with_gradients(mechanism: Mechanism, rows: list[torch.Tensor], weight: torch.Tensor) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_() for x in rows]
    out = attend(mechanism, *leaves)
    grads = torch.autograd.grad(out, leaves, weight, allow_unused=True)
    return [out, *(g for g in grads if g is not None)]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@EVERY
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_in_memory_changes_neither_output_nor_gradient(mechanism: Mechanism, layout):
    rows, weight = given(), torch.randn(2, 1, 20, DIM)
    laid = [LAYOUTS[layout](x) for x in rows]
    found = with_gradients(mechanism, laid, LAYOUTS[layout](weight))
    assert_equal(found, with_gradients(mechanism, rows, weight))


@EVERY
def test_another_default_device_or_dtype_changes_nothing(mechanism: Mechanism):
    rows, weight = given(), torch.randn(2, 1, 20, DIM)
    expected = with_gradients(mechanism, rows, weight)
    with torch.device("meta"):
        assert_equal(with_gradients(mechanism, rows, weight), expected)
    try:
        torch.set_default_dtype(torch.float64)
        assert_equal(with_gradients(mechanism, rows, weight), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(mechanism: Mechanism, dtype):
    rows, weight = given(), torch.randn(2, 1, 20, DIM)
    with torch.autocast("cpu", dtype=dtype):
        leaves = [x.clone().requires_grad_() for x in rows]
        out = attend(mechanism, *leaves)
    grads = torch.autograd.grad(out, leaves, weight, allow_unused=True)
    assert_equal([out, *(g for g in grads if g is not None)], with_gradients(mechanism, rows, weight))


@mechanisms(lambda config: config.__name__ in ("AnnaConfig", "WindowConfig", "LatestMatchConfig", "ExactMatchConfig"))
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_a_backward_pass_inside_autocast_is_not_rounded_either(mechanism: Mechanism, backend):
    rows, weight = given(), torch.randn(2, 1, 20, DIM)
    with use_backend(backend):
        expected = with_gradients(mechanism, rows, weight)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = with_gradients(mechanism, rows, weight)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_exact_gradient_is_not_rounded_inside_autocast():
    rows = [torch.randn(1, 1, 30, 8, requires_grad=True) for _ in range(3)]
    for attention in (aa.anna_attention, aa.latest_match_attention):
        out = attention(rows[0], rows[1], rows[2], HASHER, gradient="exact").square().sum()
        expected = torch.autograd.grad(out, rows, retain_graph=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = torch.autograd.grad(out, rows)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@EVERY
@pytest.mark.parametrize(
    ("batch", "heads", "n", "m"), [(0, 1, 4, 4), (1, 0, 4, 4), (1, 1, 0, 4), (1, 1, 4, 0), (1, 1, 0, 0)]
)
def test_where_there_is_nothing_to_do_the_gradient_is_zero(mechanism: Mechanism, batch, heads, n, m):
    query, key, value = (torch.randn(batch, heads, rows, DIM, requires_grad=True) for rows in (n, m, m))
    out = attend(mechanism, query, key, value)
    assert not out.isnan().any()
    out.sum().backward()
    assert value.grad is not None
    assert mechanism.config.shared_query_key or not value.grad.any()


@EVERY
def test_transforms_of_torch_give_the_right_answer_or_a_sentence(mechanism: Mechanism):
    query, key, value = given()
    weight = torch.randn(2, 1, 20, DIM)
    leaf = value.clone().requires_grad_()
    (by_value,) = torch.autograd.grad(attend(mechanism, query, key, leaf), leaf, weight)

    def forward_mode() -> torch.Tensor:
        with forward_ad.dual_level():
            out = attend(mechanism, query, key, forward_ad.make_dual(value, value))
            tangent = forward_ad.unpack_dual(out).tangent
            assert tangent is not None
            return (tangent * weight).sum()

    many = torch.stack([value, value.flip(2)])
    one_by_one = torch.stack([attend(mechanism, query, key, each) for each in many])
    for found, expected in (
        (forward_mode, (by_value * value).sum()),
        (lambda: torch.func.grad(lambda v: (attend(mechanism, query, key, v) * weight).sum())(value), by_value),
        (lambda: torch.func.vjp(lambda v: attend(mechanism, query, key, v), value)[1](weight)[0], by_value),
        (lambda: torch.vmap(lambda v: attend(mechanism, query, key, v))(many), one_by_one),
        (lambda: torch.vmap(lambda q: attend(mechanism, q, key, value))(query[None])[0], None),
    ):
        try:
            answer = found()
        except AnnattnError:
            continue
        torch.testing.assert_close(
            answer, attend(mechanism, query, key, value) if expected is None else expected, rtol=1e-4, atol=1e-4
        )


@EVERY
def test_what_no_memory_holds_is_refused_in_words_before_it_is_made(mechanism: Mechanism):
    rows = [torch.ones(1, 1, 1, width).expand(1, 1, 2**44, width) for width in (DIM, DIM, 2)]
    with pytest.raises(NoMemoryError, match=r"attention of .* GB are more than the .* GB of this machine; take fewer"):
        attend(mechanism, *rows)


@EVERY
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_what_runs_out_of_memory_is_said_in_words(mechanism: Mechanism, error, monkeypatch):
    def full(*_, **__):
        raise error

    for name in ("accumulator", "anna_mean", "band_softmax", "hash_inputs", "expected_pairs", "equal_rows", "prepared"):
        for module in {mechanism.attend.__module__, "annattn.attention.pairs"}:
            monkeypatch.setattr(f"{module}.{name}", full, raising=False)
    with pytest.raises(NoMemoryError, match=r"attention over \(2, 1, 20, 3\).* does not fit in memory; take fewer"):
        attend(mechanism, *given())


@WITH_MASKS
def test_a_sparse_mask_is_named(mechanism: Mechanism):
    mask = torch.ones(2, 20).to_sparse().bool()
    with pytest.raises(InputError, match="key_mask: got a tensor of layout"):
        attend(mechanism, *given(), key_mask=mask)


@EVERY
def test_numbers_that_are_stored_in_another_way_are_named(mechanism: Mechanism):
    query, key, value = given()
    with pytest.raises(InputError, match=r"query.*: got a view as -x.*resolve_neg"):
        attend(mechanism, _negated(query), _negated(key), value)
    with pytest.raises(InputError, match=r"value: got torch\.float8_e4m3fn"):
        attend(mechanism, query, key, value.to(torch.float8_e4m3fn))
    with pytest.raises(InputError, match=r"query.*: got torch\.float8_e4m3fn"):
        attend(mechanism, query.to(torch.float8_e4m3fn), key.to(torch.float8_e4m3fn), value)


# Exact match takes equality as IEEE does: NaN equals nothing.
@mechanisms(lambda config: config.__name__ != "ExactMatchConfig")
@pytest.mark.parametrize("n", [1, 3, 20, 40])
def test_a_query_of_nan_gets_nan(mechanism: Mechanism, n):
    query, key, value = given(n)
    query[0, 0, n // 2, 1] = torch.nan
    key = query if mechanism.config.shared_query_key else key
    assert attend(mechanism, query, key, value)[0, 0, n // 2].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("keys", [1, 2, 7, 15, 16, 33])
def test_softmax_over_few_keys_takes_nan_for_nan(keys, dtype):
    query, key, value = torch.randn(1, 2, 3, 8).to(dtype), *torch.randn(2, 1, 1, keys, 8).to(dtype)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), enable_gqa=True
    )
    eps = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(fused_softmax(query, key, value).double(), expected, rtol=eps, atol=eps)
    key[0, 0, 0, 0] = torch.nan
    assert fused_softmax(query, key, value).isnan().all()


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_in_memory_changes_no_gradient_of_any_backend(backend, layout):
    query, key, value, weight = torch.randn(4, 1, 2, 30, 8)
    for attention in (aa.anna_attention, aa.latest_match_attention):
        results = []
        for laid in (lambda x: x, LAYOUTS[layout]):
            leaves = [laid(x).detach().requires_grad_() for x in (query, key, value)]
            with use_backend(backend):
                results.append(
                    torch.autograd.grad(attention(leaves[0], leaves[1], leaves[2], HASHER), leaves, laid(weight))
                )
        assert results[0][0].any()
        assert_equal(list(results[1]), list(results[0]))
