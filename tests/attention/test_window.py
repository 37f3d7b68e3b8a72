"""Softmax near by and ANNA further off, against the dense formula, in every form and combination."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import annattn as aa
from annattn.attention.window import window_weights
from annattn.errors import InputError
from annattn.lsh import Hyperplane
from tests.strategies import attention_inputs, brute_force

DIM = 3
combinations = pytest.mark.parametrize("combine", ["gate", "joined"])


@combinations
@given(data=st.data())
def test_every_window_equals_the_dense_formula(combine, data):
    inputs = data.draw(attention_inputs(DIM, dtypes=(torch.float64,)))
    options = {
        "hasher": Hyperplane(DIM).sample(tables=4, hashes=2, seed=data.draw(st.integers(0, 99))),
        "window": data.draw(st.integers(0, 9)),
        "gate": data.draw(st.sampled_from([-1.5, 0.0, 2.0])),
        "scale": data.draw(st.sampled_from([None, 0.0, 1.0])),
        "combine": combine,
        "shift": data.draw(st.integers(0, 2)) if inputs.is_causal else 0,
    }
    expected = brute_force(window_weights, inputs, **options)
    out = aa.window_attention(inputs.query, inputs.key, inputs.value, **options, **inputs.masks)
    torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)


def long_inputs(n, m, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(2, h, k, 4, generator=generator) for h, k in ((4, n), (2, m), (2, m)))
    return query.double(), key.double(), value.double(), torch.rand(2, m, generator=generator) < 0.9


@combinations
@pytest.mark.parametrize("form", ["expected", "sampled"])
@pytest.mark.parametrize(("is_causal", "shift"), [(False, 0), (True, 0), (True, 1)])
def test_the_forms_that_train_equal_the_dense_formula(combine, form, is_causal, shift):
    query, key, value, mask = long_inputs(20, 20)
    hasher, gate, window = Hyperplane(4).sample(tables=6, hashes=2, seed=1, heads=2), 0.7, 5
    out = aa.window_attention(
        query, key, value, hasher, window=window, is_causal=is_causal, key_mask=mask, combine=combine, gate=gate,
        shift=shift, form=form, noise=0.25,
    )  # fmt: skip
    keys, values = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    unit = [torch.nn.functional.normalize(x, dim=-1) for x in (query, keys)]
    chances = (1 - torch.acos((unit[0] @ unit[1].mT).clamp(-1, 1)) / math.pi) ** 2
    if form == "sampled":
        codes = hasher.joint_codes(query, key)
        met = (codes[0][:, :, :, None] == codes[1].repeat_interleave(2, 1)[:, :, None]).sum(-1)
        chances = chances + 0.25 * (met.double() / 6 - chances)
    chances, taken = chances * mask[:, None, None], mask[:, None, None] & torch.ones(20, 1, dtype=torch.bool)
    if shift:
        chances = torch.nn.functional.pad(chances, (1, 0))[..., :-1]
    distance = torch.arange(20)[:, None] - torch.arange(20)
    allowed = taken & (distance >= 0 if is_causal else torch.ones(20, 20, dtype=torch.bool))
    far = chances * (allowed & (distance.abs() >= window))
    near = (query @ keys.mT / 2).exp() * (allowed & (distance.abs() < window))
    if combine == "joined":
        weights = math.exp(gate) * near + far
        expected = weights / weights.sum(-1, keepdim=True) @ values
    else:
        total = far.sum(-1, keepdim=True)
        # A sampled form that meets less than one key on average reads less than one value's worth.
        divisor = total.clamp(min=1 / 6) if form == "sampled" else total.clamp(min=1e-100)
        share = torch.where(total > 0, 1 / (1 + math.exp(-gate)), 1.0)
        expected = share * (near / near.sum(-1, keepdim=True) @ values) + (1 - share) * (far / divisor @ values)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)


@combinations
@pytest.mark.parametrize(("is_causal", "shift"), [(False, 0), (True, 0), (True, 1)])
def test_gradients_are_those_of_the_dense_formula_with_the_counts_held_fixed(combine, is_causal, shift):
    query, key, value, mask = long_inputs(40, 40)
    gate = torch.tensor([0.5, -1.0, 0.0, 1.0], dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (query, key, value, gate)]
    hasher, window = Hyperplane(4).sample(tables=5, hashes=2, seed=0, heads=2), 6
    out = aa.window_attention(
        query, key, value, hasher, window=window, is_causal=is_causal, key_mask=mask, combine=combine, gate=gate,
        shift=shift,
    )  # fmt: skip
    keys, values = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    codes = hasher.joint_codes(query.detach(), key.detach())
    counts = (codes[0][:, :, :, None] == codes[1].repeat_interleave(2, 1)[:, :, None]).sum(-1).double() / 5
    unit = [torch.nn.functional.normalize(x, dim=-1) for x in (query, keys)]
    log = hasher.hashes * hasher.family.linear_slope * (unit[0] @ unit[1].mT)
    soft = counts * torch.exp(log - log.detach()) * mask[:, None, None]
    if shift:
        soft = torch.nn.functional.pad(soft, (1, 0))[..., :-1]
    distance = torch.arange(40)[:, None] - torch.arange(40)
    allowed = mask[:, None, None] & (distance >= 0 if is_causal else torch.ones(40, 40, dtype=torch.bool))
    far = soft * (allowed & (distance.abs() >= window))
    near = (query @ keys.mT / 2).exp() * (allowed & (distance.abs() < window))
    if combine == "joined":
        weights = gate.exp()[:, None, None] * near + far
    else:
        share = gate.sigmoid()[:, None, None]
        parts = [x / x.sum(-1, keepdim=True).clamp(min=1e-100) for x in (near, far)]
        weights = share * parts[0] + (1 - share) * parts[1]
    expected = weights / weights.sum(-1, keepdim=True).clamp(min=1e-100) @ values
    torch.testing.assert_close(out, expected)
    pull = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = torch.autograd.grad(expected, leaves, pull)
    for got, want in zip(torch.autograd.grad(out, leaves, pull), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)
    assert all(grad.abs().max() > 1e-3 for grad in wanted)


@combinations
def test_a_window_as_long_as_the_sequence_is_softmax_attention(combine):
    query, key, value, _ = long_inputs(50, 50)
    hasher = Hyperplane(4).sample(tables=5, hashes=2)
    for is_causal in (False, True):
        out = aa.window_attention(query, key, value, hasher, window=50, combine=combine, gate=-3.0, is_causal=is_causal)
        # A longer one is the same, and takes no more memory.
        longer = aa.window_attention(
            query, key, value, hasher, window=2**40, combine=combine, gate=-3.0, is_causal=is_causal
        )
        torch.testing.assert_close(longer, out)
        expected = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, enable_gqa=True
        )
        torch.testing.assert_close(out, expected)


@pytest.mark.slow
def test_time_and_memory_of_the_band_are_linear():
    """No tensor of a call on n tokens has more than a fixed number of entries per token."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, tuple | list) else [out]:
                if isinstance(x, torch.Tensor):
                    self.size = max(self.size, x.numel())
            return out

    hasher = Hyperplane(8).sample(tables=4, hashes=6)
    sizes = []
    for n in (2048, 4096):
        query, key, value = torch.randn(3, 1, 1, n, 8)
        with Largest() as mode:
            aa.window_attention(query, key, value, hasher, window=32, is_causal=True)
        sizes.append(mode.size)
    assert sizes[1] <= 2.1 * sizes[0]
    assert sizes[1] < 4096**2 / 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": -1}, "window"),
        ({"window": 2, "combine": "sum"}, "combine"),
        ({"window": 2, "shift": 1}, "what follows a token is its future"),
        ({"window": 2, "form": "soft"}, "form"),
        ({"window": 2, "gate": torch.zeros(3)}, "one number per head"),
        ({"window": 2, "scale": math.nan}, "scale"),
    ],
)
def test_wrong_options_are_refused(options, message):
    query, key, value, _ = long_inputs(5, 5)
    with pytest.raises(InputError, match=message):
        aa.window_attention(query, key, value, Hyperplane(4).sample(tables=2, hashes=2), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"near": (torch.zeros(1, 1, 5, 8),)}, "near: got tuple, expected queries and keys, two tensors"),
        ({"near": torch.zeros(2, 1, 1, 5, 8)}, "near: got Tensor"),
        ({"near": (torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 5, 8))}, "near: got other shapes"),
        ({"gate": "half"}, "gate: got 'half', expected a number"),
        ({"gate": None}, "gate: got None, expected a number"),
    ],
)
def test_what_is_no_gate_and_no_pair_of_near_rows_is_named(options, said):
    x = torch.zeros(1, 1, 5, 8)
    with pytest.raises(aa.errors.InputError, match=said):
        aa.window_attention(x, x, x, aa.lsh.Hyperplane(8).sample(tables=2, hashes=2), window=2, **options)
