"""What every listed mechanism promises; a new entry of MECHANISMS is tested by being listed."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annattn.attention import Mechanism
from tests.strategies import Inputs, attention_inputs, brute_force, mechanisms

DIM = 3
EVERY = mechanisms(lambda config: True)


WITH_MASKS = mechanisms(lambda config: config.takes_mask)
WITH_ORDER = mechanisms(lambda config: config.causal != "never")


@cache
def drawn(mechanism: Mechanism) -> dict[str, Any]:
    return mechanism.options(DIM)


def call(mechanism: Mechanism, inputs: Inputs) -> torch.Tensor:
    inputs, config, options = fitted(mechanism, inputs), mechanism.config, {**drawn(mechanism)}
    if config.takes_mask:
        options["key_mask"] = inputs.key_mask
    if config.causal == "optional":
        options["is_causal"] = inputs.is_causal
    rows = (inputs.query,) if config.shared_query_key else (inputs.query, inputs.key)
    return mechanism.attend(*rows, inputs.value, **options)


def fitted(mechanism: Mechanism, inputs: Inputs) -> Inputs:
    """These inputs as far as the mechanism takes them."""
    config = mechanism.config
    query = inputs.key if config.shared_query_key else inputs.query
    is_causal = inputs.is_causal if config.causal == "optional" else config.causal == "always"
    return Inputs(query, inputs.key, inputs.value, is_causal, inputs.key_mask if config.takes_mask else None)


def random_inputs(queries=6, keys=6, *, is_causal=True, key_mask=None, seed=0, heads=2) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(3, DIM, generator=generator, dtype=torch.float64)

    def rows(head_count, n):
        return pool[torch.randint(3, (2, head_count, n), generator=generator)]

    value = torch.randn(2, heads, keys, 2, generator=generator, dtype=torch.float64)
    return Inputs(rows(2 * heads, queries), rows(heads, keys), value, is_causal, key_mask)


@EVERY
@given(data=st.data())
def test_equals_the_reference(mechanism: Mechanism, data):
    # Float64 alone: where weights are not counts, sums are not exact, and the reference works in float64.
    inputs = fitted(mechanism, data.draw(attention_inputs(DIM, dtypes=(torch.float64,))))
    expected = brute_force(mechanism.weights, inputs, mechanism.weights_need, **mechanism.options(DIM))
    tolerance = 1e-6 if mechanism.by_angle else 1e-11
    torch.testing.assert_close(call(mechanism, inputs), expected, rtol=tolerance, atol=tolerance)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_equal_the_reference_up_to_their_rounding(mechanism: Mechanism, dtype):
    exact = random_inputs(9, 9)
    inputs = fitted(mechanism, Inputs(exact.query.to(dtype), exact.key.to(dtype), exact.value.to(dtype), True, None))
    out = call(mechanism, inputs)
    assert out.dtype == dtype
    expected = brute_force(mechanism.weights, inputs, mechanism.weights_need, **mechanism.options(DIM))
    scale = expected.abs().max().item()
    eps = torch.finfo(dtype).eps
    tolerance = 16 * eps + (4 * torch.finfo(torch.float32).eps ** 0.5 if mechanism.by_angle else 0)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance * scale)


@WITH_MASKS
@pytest.mark.parametrize("spoil", [torch.nan, torch.inf, 1e30])
def test_a_masked_key_changes_nothing(mechanism: Mechanism, spoil):
    mask = torch.tensor([[True, False, True, True, False, True], [False, True, True, True, True, False]])
    inputs = random_inputs(key_mask=mask)
    before = call(mechanism, inputs)
    key, value = (x.masked_fill(~mask[:, None, :, None], spoil) for x in (inputs.key, inputs.value))
    after = call(mechanism, Inputs(inputs.query, key, value, True, mask))
    assert torch.equal(before, after)
    assert before.isfinite().all()


@WITH_MASKS
def test_an_all_true_mask_is_no_mask(mechanism: Mechanism):
    inputs = random_inputs()
    masked = Inputs(inputs.query, inputs.key, inputs.value, True, torch.ones(2, 6, dtype=torch.bool))
    torch.testing.assert_close(call(mechanism, masked), call(mechanism, inputs), rtol=1e-12, atol=1e-12)


@WITH_ORDER
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (4, 6), (6, 4), (140, 140)])
def test_causal_output_ignores_the_future(mechanism: Mechanism, queries, keys):
    inputs = random_inputs(queries, keys)
    before = call(mechanism, inputs)
    for cut in range(1, keys, max(1, keys // 7)):
        key, value = inputs.key.clone(), inputs.value.clone()
        key[:, :, cut:] = key[:, :, cut:].flip(1) + 1
        value[:, :, cut:] = 1e3
        rows = before.shape[2]
        unseen = max(0, min(rows, cut + rows - keys))  # queries whose horizon ends before the cut
        query = inputs.query.clone()
        query[:, :, unseen:] = query[:, :, unseen:].flip(1) + 1
        after = call(mechanism, Inputs(query, key, value, True, None))
        torch.testing.assert_close(after[:, :, :unseen], before[:, :, :unseen], rtol=1e-13, atol=1e-13)


@WITH_MASKS
def test_no_visible_key_gives_zeros(mechanism: Mechanism):
    for inputs in (
        random_inputs(3, 0),
        random_inputs(3, 3, key_mask=torch.zeros(2, 3, dtype=torch.bool)),
    ):
        out = call(mechanism, inputs)
        assert out.shape == (*fitted(mechanism, inputs).query.shape[:3], 2)
        assert out.count_nonzero() == 0
    if mechanism.config.causal != "never" and not mechanism.config.shared_query_key:
        early = call(mechanism, random_inputs(5, 2))
        assert early[:, :, :3].count_nonzero() == 0
        assert early[:, :, 3:].count_nonzero() > 0


@EVERY
@pytest.mark.parametrize(("queries", "keys", "width"), [(0, 4, 2), (1, 1, 2), (4, 4, 0), (0, 0, 0)])
def test_degenerate_shapes_are_fine(mechanism: Mechanism, queries, keys, width):
    inputs = random_inputs(queries, keys)
    inputs = Inputs(inputs.query, inputs.key, inputs.value[..., :width], True, None)
    assert call(mechanism, inputs).shape == (*fitted(mechanism, inputs).query.shape[:3], width)


@EVERY
def test_an_empty_batch_is_fine(mechanism: Mechanism):
    inputs = random_inputs()
    empty = Inputs(inputs.query[:0], inputs.key[:0], inputs.value[:0], True, None)
    assert call(mechanism, empty).shape == (0, *fitted(mechanism, empty).query.shape[1:3], 2)


@EVERY
def test_strided_inputs_equal_contiguous_ones(mechanism: Mechanism):
    inputs = random_inputs(7, 7)
    # As a fused projection leaves them: (batch, n, heads, dim) with the heads moved forward.
    query, key, value = (
        x.transpose(1, 2).contiguous().transpose(1, 2) for x in (inputs.query, inputs.key, inputs.value)
    )
    assert not query.is_contiguous()
    assert torch.equal(call(mechanism, Inputs(query, key, value, True, None)), call(mechanism, inputs))


@pytest.mark.slow
@EVERY
def test_gradients_of_values_are_exact(mechanism: Mechanism):
    inputs = random_inputs(5, 7, key_mask=torch.rand(2, 7) < 0.8)
    value = inputs.value.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: call(mechanism, Inputs(inputs.query, inputs.key, v, True, inputs.key_mask)), value
    )


@pytest.mark.slow
@EVERY
def test_compiles_into_one_graph(mechanism: Mechanism):
    options = mechanism.options(DIM)
    if mechanism.config.causal == "optional":
        options["is_causal"] = True

    def attend(query, key, value):
        rows = (key,) if mechanism.config.shared_query_key else (query, key)
        return mechanism.attend(*rows, value, **options)

    inputs = random_inputs(9, 9)
    torch.compiler.reset()  # the mechanisms share one `attend`, and its compilations are counted
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    args = (inputs.query, inputs.key, inputs.value)
    torch.testing.assert_close(compiled(*args), attend(*args))
