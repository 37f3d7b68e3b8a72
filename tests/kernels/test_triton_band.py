"""The kernels of the window in Triton's interpreter: the dense formula in float64, forward and backward."""

from importlib.util import find_spec

import pytest
import torch

import annattn as aa
from annattn.attention.band import band_softmax
from annattn.attention.packed import Documents
from annattn.errors import BackendError, InputError
from annattn.kernels import use_backend
from annattn.lsh import Hyperplane

pytestmark = [pytest.mark.triton, pytest.mark.skipif(not find_spec("triton"), reason="Triton is not installed")]

CASES = {
    "causal, heads that share": {"n": 40, "m": 40, "heads": (4, 2), "window": 7, "masked": True},
    "both sides": {"n": 40, "m": 40, "window": 35, "is_causal": False, "masked": True},
    "documents": {"n": 37, "m": 37, "heads": (2, 1), "window": 100, "is_causal": False, "packed": True, "masked": True},
    "a decode step": {"n": 1, "m": 50, "heads": (3, 1), "window": 40},
    "more queries than keys": {"n": 30, "m": 9, "window": 5, "is_causal": False, "masked": True},
    "more keys than queries": {"n": 9, "m": 70, "window": 33, "is_causal": False},
    "causal queries before the first key": {"n": 20, "m": 5, "window": 3},
    "a window of one": {"n": 5, "m": 5, "window": 1, "is_causal": False},
    "one token": {"n": 1, "m": 1, "window": 1},
    "one column": {"n": 9, "m": 9, "window": 4, "dim": 1, "width": 1},
    "dim of several depths": {"n": 9, "m": 9, "window": 4, "dim": 80, "width": 3},
    "values wider than keys": {"n": 9, "m": 9, "window": 4, "dim": 3, "width": 70},
    "bfloat16": {"n": 20, "m": 20, "window": 6, "dtype": torch.bfloat16},
    "float16": {"n": 20, "m": 20, "window": 6, "dtype": torch.float16, "scale": 0.0},
    "large float16": {"n": 9, "m": 9, "window": 6, "dtype": torch.float16, "size": 3000.0, "scale": 1e-6},
    "no width": {"n": 5, "m": 5, "window": 2, "width": 0},
}


def near_inputs(n, m, *, heads=(1, 1), dim=5, width=4, dtype=torch.float32, masked=False, packed=False, size=1.0):
    generator = torch.Generator().manual_seed(0)
    # Laid out as a projection leaves them, (batch, n, heads, dim), and values with every other column.
    query, key = (size * torch.randn(2, k, h, dim, generator=generator) for k, h in ((n, heads[0]), (m, heads[1])))
    value = torch.randn(2, heads[1], m, 2 * width, generator=generator)[..., ::2]
    mask = (torch.rand(m, 2, generator=generator) < 0.8).T if masked else None
    numbers = torch.randint(0, 3, (2, n), generator=generator).sort(1).values
    rows = [x.to(dtype) for x in (query.transpose(1, 2), key.transpose(1, 2), value)]
    return rows, mask, Documents(numbers, numbers, 3) if packed else None


def dense(query, key, value, *, window, scale, is_causal, mask, documents):
    n, m, share = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
    distance = torch.arange(n)[:, None] + (m - n) - torch.arange(m)
    seen = (distance < window) & (distance > (-1 if is_causal else -window))
    seen = seen if mask is None else seen & mask[:, None, None]
    seen = seen if documents is None else seen & documents.same()[:, None]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * query.double() @ key.double().repeat_interleave(share, 1).mT
    weights = torch.where(seen, scores, -torch.inf).softmax(-1)
    level = torch.where(seen, scores, -torch.inf).logsumexp(-1)
    return torch.where(seen, weights, 0) @ value.double().repeat_interleave(share, 1), level


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_band_and_its_gradients_equal_the_dense_formula(case):
    case = {"is_causal": True, "scale": None} | case
    options = {name: case.pop(name) for name in ("window", "is_causal", "scale")}
    rows, mask, documents = near_inputs(**case)
    leaves = [x.requires_grad_() for x in rows]
    with use_backend("triton"):
        near = band_softmax(*rows, key_mask=mask, documents=documents, **options)
        seen = near.log_total > -torch.inf
        generator = torch.Generator().manual_seed(1)
        pull, lift = (torch.randn(x.shape, generator=generator) for x in (near.mean, near.log_total))
        got = torch.autograd.grad((near.mean * pull).sum() + (near.log_total[seen] * lift[seen]).sum(), leaves)
    mean, level = dense(*rows, mask=mask, documents=documents, **options)
    assert near.mean.dtype == near.log_total.dtype == torch.float32
    torch.testing.assert_close(near.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(near.log_total.double(), level, rtol=1e-5, atol=1e-5)
    wanted = torch.autograd.grad((mean * pull).sum() + (level[seen] * lift[seen]).sum(), leaves)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype
        exact = a.dtype == torch.float32
        torch.testing.assert_close(a, b.nan_to_num(0), rtol=1e-4 if exact else 2e-2, atol=1e-4 if exact else 2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["gate", "joined"])
@pytest.mark.parametrize(("is_causal", "shift"), [(False, 0), (True, 0), (True, 1)])
def test_the_whole_layer_and_its_gradients_equal_the_torch_backend(combine, is_causal, shift):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, h, 12, d, generator=generator).requires_grad_() for h, d in ((2, 4), (1, 4), (1, 3))
    )
    gate = torch.tensor([0.5, -1.0], requires_grad=True)
    mask = torch.rand(1, 12, generator=generator) < 0.9
    hasher, found = Hyperplane(4).sample(tables=2, hashes=2), []
    for backend in ("torch", "triton"):
        with use_backend(backend):
            out = aa.window_attention(
                query,
                key,
                value,
                hasher,
                window=4,
                is_causal=is_causal,
                shift=shift,
                combine=combine,
                gate=gate,
                key_mask=mask,
            )
            pull = torch.arange(out.numel()).reshape(out.shape) % 7 - 3.0
            found.append((out, *torch.autograd.grad((out * pull).sum(), (query, key, value, gate))))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert a.abs().max() > 1e-2


@pytest.mark.slow
def test_heads_that_are_one_in_memory_and_a_mask_of_one_row_are_read_by_their_strides():
    rows, _, _ = near_inputs(20, 20)
    query, key, value = (x[:1, :1].expand(2, 3, -1, -1) for x in rows)
    mask = (torch.arange(20) % 5 != 2).expand(2, 20)
    with use_backend("triton"):
        near = band_softmax(query, key, value, window=6, key_mask=mask)
    mean, level = dense(query, key, value, window=6, scale=None, is_causal=True, mask=mask.contiguous(), documents=None)
    torch.testing.assert_close(near.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(near.log_total.double(), level, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_masked_keys_leave_no_trace_even_of_nan_and_a_key_that_is_seen_does():
    (query, key, value), _, _ = near_inputs(80, 80)
    mask = torch.ones(2, 80, dtype=torch.bool)
    mask[:, 7] = False
    with use_backend("triton"):
        wanted = band_softmax(query, key, value, window=6, key_mask=mask)
        key[:, :, 7], value[:, :, 7] = torch.nan, torch.inf
        got = band_softmax(query, key, value, window=6, key_mask=mask)
        assert torch.equal(got.mean, wanted.mean)
        assert torch.equal(got.log_total, wanted.log_total)
        key[0, 0, 3] = torch.nan
        spoiled = band_softmax(query, key, value, window=6, key_mask=mask)
    assert spoiled.mean[0, 0, 3:9].isnan().all()
    assert torch.equal(spoiled.mean[1], wanted.mean[1])
    assert torch.equal(spoiled.mean[0, 0, 9:], wanted.mean[0, 0, 9:])


@pytest.mark.filterwarnings("ignore:(overflow|invalid|divide by zero):RuntimeWarning")
def test_scores_beyond_float32_give_no_plausible_number():
    rows = torch.full((1, 1, 1, 2), 1e30)
    with use_backend("triton"):
        for key in (rows, -rows):
            assert band_softmax(rows, key, torch.ones(1, 1, 1, 1), window=1).mean.isnan().all()


@pytest.mark.slow
def test_buffers_full_of_nan_do_not_show(monkeypatch):
    from annattn.kernels.triton import band

    rows, _, _ = near_inputs(20, 9, heads=(2, 1))
    leaves = [x.requires_grad_() for x in rows]

    def attended():
        with use_backend("triton"):
            near = band_softmax(*rows, window=5)
            return near.mean, near.log_total, *torch.autograd.grad(near.mean.sum(), leaves)

    wanted = attended()

    def poisoned(*shape, dtype, device):
        shape = shape[0] if isinstance(shape[0], torch.Size) else shape
        return torch.full(shape, torch.nan if dtype.is_floating_point else 7, dtype=dtype, device=device)

    monkeypatch.setattr(band.torch, "empty", poisoned)
    for a, b in zip(attended(), wanted, strict=True):
        assert torch.equal(a, b)


def test_it_says_what_it_cannot_do():
    rows = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    with use_backend("triton"), pytest.raises(BackendError, match=r"a window of torch.float64 is not compiled"):
        band_softmax(rows, rows, rows, window=1)
    narrow = torch.ones(1, 1, 2, 2, requires_grad=True)
    with use_backend("triton"):
        near = band_softmax(narrow, narrow, narrow, window=1)
        (once,) = torch.autograd.grad(near.mean.sum(), narrow, create_graph=True)
    with pytest.raises(InputError, match="a second derivative of a window's softmax"):
        once.sum().backward()
