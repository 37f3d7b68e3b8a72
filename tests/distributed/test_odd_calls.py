"""Calls that are odd but right give what plain ones give; others end every rank with a sentence, none with a crash."""

import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import annattn as aa
from annattn import distributed
from tests.distributed.cases import CUT, WHOLE, Case, on_one, on_rank
from tests.distributed.pool import Pool

CASES = {
    "anna": Case(kind="anna", dtype=torch.float32, width=6),
    "anna, causal": Case(kind="anna", dtype=torch.float32, width=6, options={"is_causal": True}),
    "members": Case(kind="anna", dtype=torch.float32, width=6, options={"way": "members"}),
    "exact": Case(kind="exact", dtype=torch.float32),
    "latest": Case(kind="latest", dtype=torch.float32, width=6),
    "window": Case(kind="window", dtype=torch.float32, width=6, options={"window": 4}),
}
KINDS = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
LARGE = 2.0**122


def in_autocast(group: dist.ProcessGroup, case: Case) -> list[torch.Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return on_rank(group, case)[0]


def on_another_default_device(group: dist.ProcessGroup, case: Case) -> list[torch.Tensor]:
    attend = CUT[case.kind]

    def elsewhere(*args: Any, **options: Any) -> torch.Tensor:
        with torch.device("meta"):
            return attend(*args, **options)

    CUT[case.kind] = elsewhere
    try:
        return on_rank(group, case)[0]
    finally:
        CUT[case.kind] = attend


@KINDS
@pytest.mark.parametrize("odd", [in_autocast, on_another_default_device])
def test_neither_autocast_nor_another_default_device_changes_a_bit(pool, case, odd):
    for found, (expected, _) in zip(pool.run(2, odd, case), pool.run(2, on_rank, case), strict=True):
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def huge(group: dist.ProcessGroup, case: Case, of_value: float, of_grad: float) -> list[torch.Tensor]:
    tensors, whole, push = case.inputs()
    at, n = dist.get_rank(group) * case.cut[0], case.cut[0]
    rows = {name: x[:, :, at : at + n].clone() for name, x in tensors.items()}
    rows["value"] *= of_value
    for x in rows.values():
        x.requires_grad_()
    out = CUT[case.kind](**rows, **whole, group=group)
    out.backward(push[:, :, at : at + n] * of_grad)
    return [out.detach() / of_value, *(x.grad for x in rows.values() if x.grad is not None)]


@pytest.mark.parametrize("name", ["anna", "anna, causal", "members", "exact", "latest"])
@pytest.mark.parametrize(("of_value", "of_grad"), [(LARGE, 1.0), (1.0, LARGE)])
def test_what_leaves_the_range_on_the_way_is_finite_in_the_end(pool, name, of_value, of_grad):
    case = CASES[name].but(tables=32)
    plain = pool.run(2, huge, case, 1.0, 1.0)
    for found, expected in zip(pool.run(2, huge, case, of_value, of_grad), plain, strict=True):
        for at, (one, other) in enumerate(zip(found, expected, strict=True)):
            of_values = at == len(found) - 1
            scale = 1.0 if at == 0 else of_grad if of_values else of_grad * of_value
            torch.testing.assert_close(one / scale, other, rtol=1e-4, atol=1e-4)


def test_the_mean_of_the_largest_number_is_the_largest_number(pool):
    largest = torch.finfo(torch.float32).max
    for name in ("anna", "anna, causal", "members", "latest"):
        for out in pool.run(2, constant, CASES[name], largest):
            assert ((out == 0) | (out > 0.9999 * largest)).all()
            assert out.max().isfinite()


def constant(group: dist.ProcessGroup, case: Case, number: float) -> torch.Tensor:
    tensors, whole, _ = case.inputs()
    tensors["value"].fill_(number)
    return CUT[case.kind](**tensors, **whole, group=group)


def counts_of_numpy(group: dist.ProcessGroup) -> tuple[int, bool]:
    small: Any = (np.uint8(200), np.uint8(100))
    first = distributed.first_place(small[0] if dist.get_rank(group) == 0 else 5, group=group)
    hasher = aa.lsh.Hyperplane(6).sample(tables=2, hashes=3)
    x = torch.randn(1, 1, 150, 6, generator=torch.Generator().manual_seed(dist.get_rank(group)))
    options: dict[str, Any] = {"group": group, "is_causal": True}
    found = distributed.window_attention(x, x, x, hasher, window=small[0], shift=small[1], **options)
    return first, torch.equal(found, distributed.window_attention(x, x, x, hasher, window=200, shift=100, **options))


def test_counts_may_be_small_integers_of_numpy(pool):
    assert pool.run(2, counts_of_numpy) == [(0, True), (200, True)]


def without_end(group: dist.ProcessGroup) -> bool:
    case = Case(kind="window", options={"window": 10**15, "is_causal": True})
    tensors, whole, _ = case.inputs()
    whole["group"] = group
    far = CUT["window"](**tensors, **{**whole, "shift": 10**15})
    return torch.equal(far, CUT["window"](**tensors, **{**whole, "window": 100, "shift": 100}))


def test_a_window_and_a_shift_beyond_the_sequence_take_no_memory(pool):
    assert all(pool.run(2, without_end))


def no_coordinates(group: dist.ProcessGroup) -> torch.Tensor:
    rows = torch.ones(1, 1, 4, 0)
    return distributed.exact_match_attention(rows, rows, torch.arange(4.0).reshape(1, 1, 4, 1), group=group)


def test_rows_without_coordinates_are_all_equal(pool):
    for out in pool.run(2, no_coordinates):
        assert torch.equal(out, torch.full((1, 1, 4, 1), 1.5))


def one_is_odd(group: dist.ProcessGroup, what: str) -> None:
    hasher = aa.lsh.Hyperplane(6).sample(tables=2, hashes=3)
    x = torch.randn(1, 2, 8, 6)
    odd = dist.get_rank(group) == 1
    options: dict[str, Any] = {"group": group}
    if what == "patience":
        distributed.anna_attention(x, x, x, hasher, patience=-1 if odd else 60, **options)
    elif what == "meta":
        y = x.to("meta") if odd else x
        distributed.anna_attention(y, y, y, hasher, **options)
    elif what == "near":
        options["near"] = (x,) if odd else (x, x)
        distributed.window_attention(x, x, x, hasher, window=2, is_causal=True, **options)
    elif what == "near dtype":
        near = (x, x.double() if odd else x)
        distributed.window_attention(x, x, x, hasher, window=2, is_causal=True, near=near, **options)
    elif what == "transform" and odd:
        torch.func.grad(lambda v: distributed.anna_attention(x, x, v, hasher, **options).sum())(x)
    elif what == "changed":
        leaf = x.clone().requires_grad_()
        value = leaf * 1
        out = distributed.anna_attention(x, x, value, hasher, gradient="none", **options)
        if odd:
            value.add_(1)
        out.sum().backward()
    else:
        distributed.anna_attention(x, x, x, hasher, **options)


@pytest.mark.parametrize(
    ("what", "here", "elsewhere"),
    [
        ("patience", "patience: got -1", "rank 1 of 2 raised InputError: patience: got -1"),
        ("meta", "query: got a tensor on the device meta", "rank 1 of 2 raised InputError: query"),
        ("near", "near: got tuple, expected queries and keys", "rank 1 of 2 raised InputError: near"),
        ("near dtype", "ranks: got near", "ranks: got near"),
        ("transform", "attention: got a call inside torch.func", "rank 1 of 2 raised InputError in anna_attention"),
        ("changed", "modified by an inplace", "rank 1 of 2 raised RuntimeError in the backward pass of anna_attention"),
    ],
)
@pytest.mark.slow
def test_what_one_rank_cannot_do_ends_all_at_once(what, here, elsewhere):
    own = Pool()  # a group of which one raised between two exchanges cannot be used any more
    try:
        started = time.monotonic()
        said = [error[1] for fine, error in own.outcomes(2, one_is_odd, what) if not fine]
        assert len(said) == 2
        assert elsewhere in said[0]
        assert here in said[1]
        assert time.monotonic() - started < 50  # patience is 600 s, and a busy machine slow to start
    finally:
        own.close()


@pytest.mark.parametrize("kind", WHOLE)
def test_one_rank_alone_gives_what_no_ranks_give(pool, kind):
    case = Case(kind=kind, cut=(20,), options={"window": 4} if kind == "window" else {})
    ((found, _),) = pool.run(1, on_rank, case)
    for one, other in zip(found, on_one(case), strict=True):
        torch.testing.assert_close(one, other)
