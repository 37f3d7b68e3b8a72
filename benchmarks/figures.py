"""The goals that the project sets itself, each a ratio of times in the same run."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

import annattn as aa
from annattn.measure import exponent, median_of_blocks, median_seconds
from benchmarks.contenders import CONTENDERS, DIM, check_anna, hyperplanes, tokens
from benchmarks.memory import extra_memory

LARGE = 1_048_576


@dataclass(frozen=True)
class Figure:
    case: str
    goal: str
    measured: str
    reached: bool


def _ratio(case: str, value: float, bound: float, *, at_least: bool) -> Figure:
    goal = f"≥ {bound:g} ×" if at_least else f"≤ {bound:g} ×"
    return Figure(case, goal, f"{value:.3g} ×", value >= bound if at_least else value <= bound)


def one_head() -> list[Figure]:
    calls = {name: CONTENDERS[name].make(65_536) for name in ("floor", "anna", "causal")}
    floor, anna, causal = median_of_blocks(calls).values()
    softmax = median_seconds(CONTENDERS["softmax"].make(65_536))
    return [
        _ratio("n = 65,536, forward: softmax / ANNA", softmax / anna, 300, at_least=True),
        _ratio("n = 65,536, forward: ANNA / copy floor", anna / floor, 4, at_least=False),
        _ratio("n = 65,536: causal / non-causal", causal / anna, 1.5, at_least=False),
    ]


def long() -> list[Figure]:
    sizes = [16_384, 65_536, 262_144, LARGE]
    floor, largest = median_of_blocks(
        {name: CONTENDERS[name].make(LARGE) for name in ("floor", "anna")}, rounds=5
    ).values()
    times = [median_seconds(CONTENDERS["anna"].make(n)) for n in sizes[:-1]] + [largest]
    memory = extra_memory("anna", LARGE) / (4 * LARGE * DIM * 4)
    slope = exponent(sizes, times)
    return [
        _ratio("n = 1,048,576, forward: ANNA / copy floor", largest / floor, 5, at_least=False),
        _ratio("n = 1,048,576: extra peak memory / size of q, k, v, out", memory, 1, at_least=False),
        Figure("growth from 16,384 to 1,048,576", "exponent ≤ 1.1", f"{slope:.3f}", slope <= 1.1),
    ]


def eight_heads() -> list[Figure]:
    query, key, value = tokens(16_384, heads=8)
    hasher = hyperplanes()
    check_anna(query, key, value, hasher, aa.anna_attention(query, key, value, hasher))
    anna = median_seconds(lambda: aa.anna_attention(query, key, value, hasher))
    softmax = median_seconds(lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value))
    return [_ratio("8 heads, n = 16,384: softmax / ANNA", softmax / anna, 60, at_least=True)]


def training() -> list[Figure]:
    inputs = tuple(x.requires_grad_() for x in tokens(65_536))
    hasher = hyperplanes()

    def step(attend: Callable[..., torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attend(*inputs).sum(), inputs)

    anna = median_seconds(step(lambda q, k, v: aa.anna_attention(q, k, v, hasher, gradient="linear")))
    softmax = median_seconds(step(torch.nn.functional.scaled_dot_product_attention))
    return [_ratio("n = 65,536, forward + backward, linear: softmax / ANNA", softmax / anna, 50, at_least=True)]


def exact_match() -> list[Figure]:
    rows = torch.randint(0, 1000, (50_000, 16), generator=torch.Generator().manual_seed(0))
    rows = rows[torch.randint(0, len(rows), (LARGE,), generator=torch.Generator().manual_seed(1))]
    value = torch.randn(1, 1, LARGE, 16)
    query = rows[None, None]
    out = aa.exact_match_attention(query, query, value)
    same = (rows == rows[7]).all(-1)
    torch.testing.assert_close(out[0, 0, 7], value[0, 0, same].mean(0), rtol=1e-4, atol=1e-5)
    ours = median_seconds(lambda: aa.exact_match_attention(query, query, value))
    theirs = median_seconds(lambda: np.unique(rows.numpy(), axis=0))
    return [_ratio("EMA, n = 1,048,576 rows of 16 integers: EMA / np.unique", ours / theirs, 3, at_least=False)]


def decoding() -> list[Figure]:
    hasher = hyperplanes()
    query, key, value = tokens(1)
    caches = {}
    for context in (1024, LARGE):
        cache = aa.BucketCache(hasher, value_dim=DIM)
        _, keys, values = tokens(context)
        cache.append(keys, values)
        expected = aa.anna_attention(query, keys, values, hasher)
        torch.testing.assert_close(cache.attend(query), expected, rtol=1e-4, atol=1e-5)
        caches[context] = cache
    _, keys, values = tokens(262_144)
    times = median_of_blocks(
        {
            "short": lambda: caches[1024].step(query, key, value),
            "long": lambda: caches[LARGE].step(query, key, value),
            "softmax": lambda: torch.nn.functional.scaled_dot_product_attention(query, keys, values),
        }
    )
    return [
        _ratio("decode step at context 1,048,576 / at 1,024", times["long"] / times["short"], 1.2, at_least=False),
        _ratio("softmax step over 262,144 keys / decode step", times["softmax"] / times["long"], 100, at_least=True),
    ]


def peers() -> list[Figure]:
    anna, performer, reformer = (
        median_seconds(CONTENDERS[name].make(65_536)) for name in ("anna", "performer", "reformer")
    )
    return [
        _ratio("n = 65,536: performer-pytorch (256 features) / ANNA", performer / anna, 15, at_least=True),
        _ratio("n = 65,536: reformer-pytorch (8 hashes) / ANNA", reformer / anna, 100, at_least=True),
    ]


def cross_polytope() -> list[Figure]:
    query, key, value = tokens(65_536)
    hyperplane = hyperplanes()
    structured = aa.lsh.CrossPolytope(DIM, rotation="structured").sample(tables=8, hashes=1, seed=0)
    out = aa.anna_attention(query, key, value, structured)
    check_anna(query, key, value, structured, out)
    hashers = {"ours": structured, "base": hyperplane}
    times = median_of_blocks({name: lambda h=h: aa.anna_attention(query, key, value, h) for name, h in hashers.items()})
    return [_ratio("cross-polytope, 8 tables × 1 hash / hyperplanes", times["ours"] / times["base"], 5, at_least=False)]


FIGURES: dict[str, Callable[[], list[Figure]]] = {
    "one_head": one_head,
    "long": long,
    "eight_heads": eight_heads,
    "training": training,
    "exact_match": exact_match,
    "decoding": decoding,
    "peers": peers,
    "cross_polytope": cross_polytope,
}
