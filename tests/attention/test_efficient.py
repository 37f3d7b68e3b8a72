"""What efficient mechanisms claim: work that grows as their papers say, and none of the usual codes' faults."""

import math
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from annattn.attention import MECHANISMS, BasedFeatures, PerformerFeatures, PolySketchFeatures, low_rank_attention
from annattn.attention.linformer import linformer_attention
from annattn.errors import InputError

DIM = 16
EXPONENTS = {
    "low_rank": 1.0, "performer": 1.0, "polysketch": 1.0, "based": 1.0, "reformer": 1.0, "reformer_rounds": 1.0,
    "hyper": 1.0, "kdeformer": 1.0, "routing": 1.0, "linformer": 1.0, "scatterbrain": 1.0, "sliding_window": 1.0,
}  # fmt: skip


def operations(name: str, n: int, *, is_causal: bool) -> int:
    mechanism = MECHANISMS[name]
    options: dict[str, Any] = mechanism.options(DIM)
    if name == "linformer":
        options = {"key_map": torch.randn(4, n), "value_map": torch.randn(4, n)}
    query, key, value = torch.randn(3, 1, 1, n, DIM)
    given = (query,) if mechanism.config.shared_query_key else (query, key)
    if mechanism.config.causal == "optional":
        options["is_causal"] = is_causal
    with FlopCounterMode(display=False) as counter:
        mechanism.attend(*given, value, **options)
    return counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", EXPONENTS)
def test_multiplications_grow_as_claimed(name: str, is_causal: bool):
    few, many = (operations(name, n, is_causal=is_causal) for n in (512, 4096))
    # A causal call reads each token once per level of cuts at 3 · 2^k: 8 levels for 512 tokens, 11 for 4,096.
    slack = math.log(11 / 8, 8) + 0.01 if name == "hyper" and is_causal else 0.05
    assert few > 0
    assert math.log(many / few, 8) <= EXPONENTS[name] + slack


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("length", [0.0, 1.0, 30.0, 300.0])
@pytest.mark.parametrize(
    "features",
    [PerformerFeatures(DIM, 32), PolySketchFeatures(DIM, 8), BasedFeatures()],
    ids=lambda f: type(f).__name__,
)
def test_features_of_any_length_give_finite_numbers(features, length, dtype):
    torch.manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(3, 1, 2, 40, DIM), dim=-1) * length
    query, key, value = x.to(dtype).requires_grad_()
    out = low_rank_attention(query, key, value / max(length, 1), features=features, is_causal=True)
    assert out.isfinite().all()


def test_performer_estimates_softmax():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, 30, 8, dtype=torch.float64) / 2
    exact = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    errors = []
    for count in (64, 1024):
        drawn = [low_rank_attention(query, key, value, features=PerformerFeatures(8, count, seed)) for seed in range(8)]
        errors.append((torch.stack(drawn) - exact).square().mean().item() ** 0.5)
    assert errors[1] < errors[0] / 2.5  # four times fewer errors with sixteen times the features, but for chance


def test_polysketch_estimates_the_fourth_power():
    torch.manual_seed(0)
    x = torch.randn(DIM, dtype=torch.float64)
    unit = torch.nn.functional.layer_norm(x, (DIM,))
    estimates = []
    for seed in range(20):
        features = PolySketchFeatures(DIM, rank=200, seed=seed)
        estimates.append((features.query(x) @ features.key(x)).item() ** 0.5)
    assert sum(estimates) / 20 == pytest.approx((unit @ unit).item() ** 2 / DIM, rel=0.1)


@pytest.mark.parametrize("refused", [{"is_causal": True}, {"key_mask": torch.ones(1, 5, dtype=torch.bool)}])
def test_linformer_refuses_what_it_cannot_do(refused):
    x, maps = torch.zeros(1, 1, 5, 2), torch.ones(2, 8)
    with pytest.raises(InputError, match="every key"):
        linformer_attention(x, x, x, key_map=maps, value_map=maps, **refused)


def test_kdeformer_refuses_a_causal_call():
    x = torch.zeros(1, 1, 5, DIM)
    mechanism = MECHANISMS["kdeformer"]
    with pytest.raises(InputError, match="is_causal"):
        mechanism.attend(x, x, x, is_causal=True, **mechanism.options(DIM))


def test_any_allowed_seed_samples_columns():
    x = torch.randn(1, 1, 9, DIM)
    for name in ("hyper", "kdeformer"):
        mechanism = MECHANISMS[name]
        assert mechanism.attend(x, x, x, seed=2**63 - 1, **mechanism.options(DIM)).isfinite().all()


def test_causal_hyperattention_of_a_prefix_is_the_prefix_of_the_whole():
    mechanism = MECHANISMS["hyper"]
    query, key, value = torch.randn(3, 1, 2, 60, DIM, dtype=torch.float64)
    whole = mechanism.attend(query, key, value, is_causal=True, **mechanism.options(DIM))
    for n in (5, 13, 24, 59):
        part = mechanism.attend(
            query[:, :, :n], key[:, :, :n], value[:, :, :n], is_causal=True, **mechanism.options(DIM)
        )
        torch.testing.assert_close(part, whole[:, :, :n])
