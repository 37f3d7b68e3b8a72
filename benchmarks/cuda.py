"""`python -m benchmarks --device cuda`: every prediction of the cost model beside what CUDA events measure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import annattn as aa
from annattn.attention.band import band_softmax
from annattn.kernels import use_backend
from annattn.measure.gpu import (
    GPUS,
    Gpu,
    attention_costs,
    decode_costs,
    gradient_costs,
    predicted_seconds,
    softmax_seconds,
    window_costs,
)
from benchmarks.contenders import DIM, check_anna, hyperplanes, tokens

SIZES = (4096, 16_384, 65_536, 262_144, 1_048_576)
WINDOW, HEADS = 256, 32
NO_GPU = "there is no CUDA here: torch sees no GPU, so nothing was measured"


@dataclass(frozen=True)
class Row:
    """A call, what it is predicted to take, and a check that raises if its answer is wrong."""

    label: str
    n: int
    predicted: float
    call: Callable[[], Any]
    check: Callable[[], None] | None = None


def seconds_of(call: Callable[[], Any], repeat: int = 10) -> float:
    """The median time of a call between two events on the GPU's own clock, after two calls to warm up."""
    for _ in range(2):
        call()
    times = []
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[repeat // 2]


def compare(console: Console) -> int:
    """Print predicted beside measured, or one line if there is no GPU; returns the exit code."""
    if not torch.cuda.is_available():
        console.print(NO_GPU)
        return 1
    name = torch.cuda.get_device_name()
    known = next((gpu for gpu in GPUS if gpu in name), "A100")
    title = f"{name}, predicted for {known}; one head, dim {DIM}, 8 tables of 8; a step has {HEADS} heads"
    console.print(table_of(every_row(GPUS[known], "cuda", SIZES), seconds_of, title))
    return 0


def table_of(rows: Iterator[Row], clock: Callable[[Callable[[], Any]], float], title: str) -> Table:
    """Predicted beside measured; a wrong answer is not worth timing."""
    table = Table("call", "tokens", "predicted ms", "measured ms", title=title)
    for row in rows:
        if row.check is not None:
            row.check()
        table.add_row(row.label, f"{row.n:,}", f"{1e3 * row.predicted:.3f}", f"{1e3 * clock(row.call):.3f}")
    return table


def every_row(gpu: Gpu, device: str, sizes: tuple[int, ...]) -> Iterator[Row]:
    """Everything the cost model predicts, at these lengths."""
    for n in sizes:
        for is_causal in (False, True):
            yield from _anna(gpu, device, n, is_causal)
        yield from _window(gpu, device, n)
        query, key, value = (x.to(device, torch.bfloat16) for x in tokens(n))
        yield Row(
            "torch softmax, bfloat16", n, softmax_seconds(n, gpu),
            lambda q=query, k=key, v=value: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        )  # fmt: skip
    yield from _decode(gpu, device, sizes[0])


def _anna(gpu: Gpu, device: str, n: int, is_causal: bool) -> Iterator[Row]:
    label, inputs, hasher = "ANNA, causal" if is_causal else "ANNA", tokens(n), hyperplanes()
    query, key, value = (x.to(device) for x in inputs)
    there = hasher.to(device)

    def attend(backend: str = "triton") -> Tensor:
        with use_backend(backend):
            return aa.anna_attention(query, key, value, there, is_causal=is_causal)

    def check() -> None:
        check_anna(*inputs, hasher, attend().cpu(), is_causal=is_causal)

    yield Row(label, n, predicted_seconds(attention_costs(n, is_causal=is_causal), gpu), attend, check)
    pull = torch.ones_like(value)
    for only_values, wanted in ((True, (value,)), (False, (query, key, value))):
        for x in wanted:
            x.requires_grad_()

        def backward(out: Tensor, backend: str = "triton", wanted: tuple[Tensor, ...] = wanted) -> tuple[Tensor, ...]:
            with use_backend(backend):
                return torch.autograd.grad(out, wanted, pull, retain_graph=True)

        def same_gradients(backward=backward) -> None:
            torch.testing.assert_close(backward(attend()), backward(attend("torch"), "torch"), rtol=1e-3, atol=1e-5)

        out = attend()
        costs = gradient_costs(n, is_causal=is_causal, only_values=only_values)
        which = "values" if only_values else "all"
        yield Row(
            f"{label}, backward, {which}", n, predicted_seconds(costs, gpu), lambda out=out, b=backward: b(out),
            same_gradients,
        )  # fmt: skip


def _window(gpu: Gpu, device: str, n: int) -> Iterator[Row]:
    rows = [x.to(device).requires_grad_() for x in tokens(n)]
    pull = torch.ones_like(rows[2])

    def attend(backend: str = "triton") -> Tensor:
        with use_backend(backend):
            return band_softmax(rows[0], rows[1], rows[2], window=WINDOW).mean

    def backward(out: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, rows, pull, retain_graph=True)

    def check() -> None:
        torch.testing.assert_close(attend(), attend("torch"), rtol=1e-4, atol=1e-5)

    def same_gradients() -> None:
        torch.testing.assert_close(backward(attend()), backward(attend("torch")), rtol=1e-3, atol=1e-4)

    label = f"window of {WINDOW}"
    yield Row(label, n, predicted_seconds(window_costs(n, window=WINDOW), gpu), attend, check)
    out = attend()
    predicted = predicted_seconds(window_costs(n, window=WINDOW, backward=True), gpu)
    yield Row(f"{label}, backward", n, predicted, lambda: backward(out), same_gradients)


def _decode(gpu: Gpu, device: str, n: int) -> Iterator[Row]:
    """A step after n tokens, by itself and captured in a CUDA graph."""
    hasher = hyperplanes().to(device)
    query, key, value = (x.to(device) for x in tokens(n + 1, heads=HEADS))
    new = [x[:, :, -1:].clone() for x in (query, key, value)]

    def cache_of(backend: str) -> aa.BucketCache:
        with use_backend(backend):
            cache = aa.BucketCache(hasher, heads=HEADS, value_dim=DIM)
            cache.append(key[:, :, :n], value[:, :, :n])
        return cache

    cache, predicted = cache_of("triton"), predicted_seconds(decode_costs(heads=HEADS), gpu)

    def step(cache: aa.BucketCache = cache, backend: str = "triton") -> Tensor:
        with use_backend(backend):
            return cache.step(new[0], new[1], new[2])

    def check() -> None:
        torch.testing.assert_close(step(), step(cache_of("torch"), "torch"), rtol=1e-5, atol=1e-6)

    yield Row("decode step", n, predicted, step, check)
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        yield Row("decode step, captured", n, predicted, graph.replay)
