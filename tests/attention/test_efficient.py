"""What efficient mechanisms claim: work that grows as their papers say, and none of the usual codes' faults."""

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from annattn.attention import MECHANISMS, BasedFeatures, PerformerFeatures, PolySketchFeatures, low_rank_attention
from annattn.attention.linformer import linformer_attention
from annattn.errors import InputError

DIM = 16
EXPONENTS = {
    "low_rank": 1.0, "performer": 1.0, "polysketch": 1.0, "based": 1.0, "reformer": 1.0, "reformer_rounds": 1.0,
    "hyper": 1.0, "kdeformer": 1.0, "routing": 1.0, "linformer": 1.0, "scatterbrain": 1.0, "sliding_window": 1.0,
}  # fmt: skip


FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def fused_operations(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Torch counts its fused attention on GPUs only: two products of every query with every key of its block."""
    *blocks, rows, dim = query
    return 2 * math.prod(blocks) * rows * key[-2] * (dim + value[-1])


class BytesWritten(TorchDispatchMode):
    """Adds up the storage of every tensor that is made, which bounds what is held at any time."""

    def __init__(self):
        super().__init__()
        self.total = self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        given, made = ([x.untyped_storage() for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
                       for tree in ((args, kwargs), out))  # fmt: skip
        known = {one._cdata for one in given}
        sizes = [one.nbytes() for one in made if one._cdata not in known]
        self.total, self.largest = self.total + sum(sizes), max([self.largest, *sizes])
        return out


def operations(name: str, n: int, *, is_causal: bool) -> tuple[int, int]:
    """Multiplications, and bytes written."""
    mechanism = MECHANISMS[name]
    options: dict[str, Any] = mechanism.options(DIM)
    if name == "linformer":
        options = {"key_map": torch.randn(4, n), "value_map": torch.randn(4, n)}
    query, key, value = torch.randn(3, 1, 1, n, DIM)
    given = (query,) if mechanism.config.shared_query_key else (query, key)
    if mechanism.config.causal == "optional":
        options["is_causal"] = is_causal
    with FlopCounterMode(display=False, custom_mapping={FUSED: fused_operations}) as counter, BytesWritten() as written:
        mechanism.attend(*given, value, **options)
    return counter.get_total_flops(), written.total


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", EXPONENTS)
def test_multiplications_and_memory_grow_as_claimed(name: str, is_causal: bool):
    # A causal call reads each token once per level of cuts at 3 · 2^k: 8 levels for 512 tokens, 11 for 4,096.
    slack = math.log(11 / 8, 8) + 0.01 if name == "hyper" and is_causal else 0.05
    for few, many in zip(*(operations(name, n, is_causal=is_causal) for n in (512, 4096)), strict=True):
        assert few > 0
        assert math.log(many / few, 8) <= EXPONENTS[name] + slack


@pytest.mark.parametrize("exact_below", [64, 4096])
def test_a_few_queries_at_the_end_of_many_keys_cost_hyperattention_little(exact_below: int):
    options = MECHANISMS["hyper"].options(DIM) | {"block": 16, "columns": 16, "exact_below": exact_below}
    query, key, value = torch.randn(3, 1, 1, 4100, DIM)
    work = []
    for n in (8, 4100):  # the eight are on both sides of a cut
        with FlopCounterMode(display=False) as counter:
            MECHANISMS["hyper"].attend(query[:, :, -n:], key, value, is_causal=True, **options)
        work.append(counter.get_total_flops())
    assert work[0] < work[1] / 40


@pytest.mark.parametrize("n", [512, 1000])
def test_exact_pieces_of_a_large_batch_are_read_a_part_at_a_time(n: int):
    x = torch.randn(20, 4, n, 4)
    options = MECHANISMS["hyper"].options(4) | {"exact_below": 512}
    with BytesWritten() as written:
        MECHANISMS["hyper"].attend(x, x, x, is_causal=True, **options)
    assert written.largest <= 4 * 2**24


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", [name for name in EXPONENTS if name != "low_rank"])
def test_gradients_of_queries_and_keys_are_exact(name: str, is_causal: bool):
    mechanism = MECHANISMS[name]
    generator = torch.Generator().manual_seed(0)
    query, key, value = 3 * torch.randn(3, 1, 1, 9, 3, generator=generator, dtype=torch.float64)
    given = (query,) if mechanism.config.shared_query_key else (query, key)
    options: dict[str, Any] = mechanism.options(3)
    if mechanism.config.causal == "optional":
        options["is_causal"] = is_causal
    rows = [x.requires_grad_() for x in given]
    assert torch.autograd.gradcheck(lambda *x: mechanism.attend(*x, value, **options), rows)


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


def test_linformer_refuses_a_causal_call():
    x, maps = torch.zeros(1, 1, 5, 2), torch.ones(2, 8)
    with pytest.raises(InputError, match="every key"):
        linformer_attention(x, x, x, key_map=maps, value_map=maps, is_causal=True)


def test_linformer_of_padded_tokens_is_that_of_the_tokens_alone():
    x, maps = torch.randn(3, 1, 2, 9, 4, dtype=torch.float64), torch.randn(2, 3, 9, dtype=torch.float64)
    mask = torch.arange(9)[None] < 5
    padded = linformer_attention(*x, key_map=maps[0], value_map=maps[1], key_mask=mask)
    alone = linformer_attention(*x[:, :, :, :5], key_map=maps[0], value_map=maps[1])
    torch.testing.assert_close(padded[:, :, :5], alone)


def test_kdeformer_refuses_a_causal_call():
    x = torch.zeros(1, 1, 5, DIM)
    mechanism = MECHANISMS["kdeformer"]
    with pytest.raises(InputError, match="is_causal"):
        mechanism.attend(x, x, x, is_causal=True, **mechanism.options(DIM))


@pytest.mark.parametrize(("name", "is_causal"), [("hyper", False), ("hyper", True), ("kdeformer", False)])
def test_without_columns_a_query_reads_its_block_alone(name, is_causal):
    mechanism = MECHANISMS[name]
    options = mechanism.options(DIM) | {"columns": 0}
    query, key, value = torch.randn(3, 1, 1, 20, DIM, dtype=torch.float64)
    seen = torch.ones(20, 20).tril() if is_causal else torch.ones(20, 20)
    needs = {"value": value[0, 0], "is_causal": is_causal}
    needed = {need: needs[need] for need in mechanism.weights_need}
    weights = mechanism.weights(query[0, 0], key[0, 0], seen, **needed, **options)
    assert ((weights > 0).sum(1) < 20).all()
    causal = {"is_causal": True} if is_causal else {}
    torch.testing.assert_close(mechanism.attend(query, key, value, **causal, **options)[0, 0], weights @ value[0, 0])


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_reformer_that_does_not_sort_reads_the_nearest_tokens(is_causal):
    mechanism = MECHANISMS["reformer_rounds"]
    rows, value = torch.randn(2, 1, 1, 20, DIM, dtype=torch.float64)
    seen = torch.ones(20, 20).tril() if is_causal else torch.ones(20, 20)
    weights = mechanism.weights(rows[0, 0], rows[0, 0], seen, hasher=None, chunk=2)
    i, j = torch.arange(20)[:, None], torch.arange(20)
    assert torch.equal(weights > 0, (seen > 0) & ((i - j).abs() < 4) & (i != j) | ((i == 0) & (j == 0) & is_causal))
    out = mechanism.attend(rows, value, None, chunk=2, is_causal=is_causal)
    torch.testing.assert_close(out[0, 0], weights @ value[0, 0])


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
