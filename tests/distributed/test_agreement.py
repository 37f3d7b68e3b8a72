"""Ranks that are called differently are told so, all of them, before anything is exchanged."""

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import annattn as aa
from annattn import distributed


def call_differently(group: dist.ProcessGroup, what: str) -> None:
    rank = dist.get_rank(group)
    odd = rank == 1
    dim, seed, heads, dtype = 6, 0, 2, torch.float32
    options: dict[str, Any] = {"is_causal": False}
    if odd:
        dim += what == "dim"
        seed += what == "seed"
        heads += what == "heads"
        dtype = torch.float64 if what == "dtype" else dtype
        options["is_causal"] = what == "is_causal"
    hasher = aa.lsh.Hyperplane(dim).sample(tables=2, hashes=3, seed=seed)
    if odd and what == "functions":
        object.__setattr__(hasher, "parameters", tuple(-x for x in hasher.parameters))
    query, key, value = torch.randn(3, 1, heads, 5, dim, dtype=dtype)
    query.requires_grad_(odd and what == "gradient")
    if what == "documents":
        options["documents"] = torch.tensor([0, 4 + rank, 15])
    if odd and what == "raises":
        value = value[:, :, :2]
    if odd and what == "causal lengths":
        query = query[:, :, :2]
    if what == "causal lengths":
        options["is_causal"] = True
    with distributed.counting() as traffic:
        try:
            if odd and what == "function":
                distributed.latest_match_attention(query, key, value, hasher, group=group)
            else:
                distributed.anna_attention(query, key, value, hasher, group=group, **options)
        except Exception:
            assert traffic.sent == 0
            raise


def call_late(group: dist.ProcessGroup, seconds: float) -> None:
    torch.manual_seed(dist.get_rank(group))
    if dist.get_rank(group) == 2:
        time.sleep(seconds)
    hasher = aa.lsh.Hyperplane(6).sample(tables=2, hashes=3)
    query, key, value = torch.randn(3, 1, 2, 5, 6)
    distributed.anna_attention(query, key, value, hasher, group=group, is_causal=True)


@pytest.mark.slow
def test_an_error_that_was_caught_is_no_reason_to_end_a_later_call_that_waits(pool):
    assert not any(fine for fine, _ in pool.outcomes(3, call_differently, "causal lengths"))
    pool.run(3, call_late, 2.0)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("dim", "query batch 1, heads 2, dim 6, torch.float32, cpu on rank 0, 2, batch 1, heads 2, dim 7"),
        ("seed", "seed of the hasher 0 on rank 0, 2, 1 on rank 1"),
        ("heads", "heads 3, dim 6, torch.float32, cpu on rank 1"),
        ("dtype", "torch.float64, cpu on rank 1"),
        ("is_causal", "is_causal False on rank 0, 2, True on rank 1"),
        ("functions", "hash functions drawn"),
        ("gradient", "gradients wanted of query, key and value"),
        ("documents", "documents boundaries [0, 4, 15] on rank 0, boundaries [0, 5, 15] on rank 1"),
        ("function", "call anna_attention on rank 0, 2, latest_match_attention on rank 1"),
        ("causal lengths", "slice of rank 1: got 2 queries and 5 keys"),
    ],
)
def test_every_rank_learns_who_differs_in_what(pool, what, said):
    for fine, error in pool.outcomes(3, call_differently, what):
        assert not fine
        assert error[0] == "InputError"
        assert said in error[1]
    for fine, _ in pool.outcomes(3, call_differently, "nothing"):
        assert fine  # the group is as good as before


def test_an_error_of_one_rank_reaches_the_others(pool):
    outcomes = pool.outcomes(3, call_differently, "raises")
    assert [error[0] for _, error in outcomes] == ["RankError", "InputError", "RankError"]
    assert "rank 1 of 3 raised InputError: value: got (batch, heads, n) = (1, 2, 2)" in outcomes[0][1][1]


def test_one_process_without_a_group_is_told_what_to_start():
    x = torch.zeros(1, 1, 2, 3)
    hasher = aa.lsh.Hyperplane(3).sample(tables=1, hashes=1)
    with pytest.raises(aa.errors.InputError, match="torchrun"):
        distributed.anna_attention(x, x, x, hasher)
