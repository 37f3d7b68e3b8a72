"""Proposition on Reformer: with a fixed pattern of chunks of size B, an output depends on at most B^L inputs.

So L layers cannot compute SUM while B^L < N: change an input that the last output does not see, and the sum changes
but the output does not. One ANNA layer can: with all queries and keys equal and v_i = N·x_i, the average is the sum.

The experiment takes a Reformer with random element-wise functions, changes every input in turn, and looks whether the
last output changes. It tries random chunks and the widest possible pattern. Layer ℓ of the latter joins the positions
that differ in digit ℓ to base B, so an output sees exactly B^L inputs, and the Proposition's count is tight. Two inputs
show the error: outside what the last output sees, one is 1 everywhere and the other M. T gives both the same answer, so
on one of them it is off by at least half their difference, (N − B^L)(M − 1)/2.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annattn.compiler import Anna, Head, Layer, Transformer
from annattn.lsh import Hyperplane
from annattn.theorems.verdict import (
    Bound,
    Effort,
    Progress,
    Trials,
    Verdict,
    at_least,
    at_most,
    exactly,
    exponent,
    silent,
)

__all__ = ["FixedReformer", "random_reformer", "row", "seen_by_last", "sum_transformer"]

LARGEST = 1000
CASES = {
    "tiny": ((16, 2, 2), (64, 4, 2)),
    "quick": ((64, 4, 2), (256, 4, 2), (256, 4, 3), (256, 2, 5), (512, 8, 2)),
    "full": ((64, 4, 2), (256, 4, 2), (256, 4, 3), (256, 2, 5), (512, 8, 2), (1024, 4, 4), (1024, 2, 8)),
}
SUMS = {"tiny": (16, 256), "quick": (16, 256, 4096, 65_536), "full": (16, 256, 4096, 65_536, 1_048_576)}


def sum_transformer(n: int) -> Transformer:
    """SUM at every position: one ANNA layer, one head; all queries and keys are equal and v_i = N·x_i.

    >>> sum_transformer(3)(torch.tensor([[5.0], [1.0], [4.0]], dtype=torch.float64)).flatten().tolist()
    [10.0, 10.0, 10.0]
    """
    head = Head(query=torch.ones_like, key=torch.ones_like, value=lambda x: n * x, width=1, value_width=1)
    return Transformer([Layer([head], Anna(Hyperplane(1).sample(tables=4, hashes=8)))])


@dataclass(frozen=True)
class FixedReformer:
    """Reformer without its sorting: layer ℓ attends by softmax within chunks that are fixed beforehand.

    chunks: for each layer, the positions of every chunk, (N/B, B). mixing: for each layer, the matrices of its
    element-wise functions Q = K and V. A residual and a nonlinearity make sure that nothing cancels.
    """

    chunks: tuple[Tensor, ...]
    mixing: tuple[tuple[Tensor, Tensor], ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Inputs (batch, N, d) to outputs of the same shape."""
        for chunks, (shared, to_value) in zip(self.chunks, self.mixing, strict=True):
            rows = torch.tanh(x @ shared)[:, chunks]
            weights = torch.softmax(rows @ rows.mT, dim=-1)
            inside = weights @ (x @ to_value)[:, chunks]
            x = x + torch.zeros_like(x).index_copy(1, chunks.flatten(), inside.flatten(1, 2))
        return x


def random_reformer(n: int, chunk: int, layers: int, *, widest: bool, seed: int, dim: int = 4) -> FixedReformer:
    """A Reformer with random element-wise functions; its chunks are random, or those that see the most.

    >>> reformer = random_reformer(8, 2, 2, widest=True, seed=0)
    >>> reformer.chunks[1].tolist()
    [[0, 2], [1, 3], [4, 6], [5, 7]]
    """
    generator = torch.Generator().manual_seed(seed)
    place = torch.arange(n)
    chunks, mixing = [], []
    for layer in range(layers):
        if widest:
            step = chunk**layer
            order = torch.argsort((place // (step * chunk)) * step + place % step, stable=True)
        else:
            order = torch.randperm(n, generator=generator)
        chunks.append(order.reshape(-1, chunk))
        mixing.append(tuple(torch.randn(2, dim, dim, generator=generator, dtype=torch.float64) / 2))
    return FixedReformer(tuple(chunks), tuple(mixing))


def seen_by_last(reformer: FixedReformer, n: int, seed: int, dim: int = 4) -> NDArray[np.bool_]:
    """Which inputs the last output depends on: those that change it when they change alone.

    >>> seen_by_last(random_reformer(8, 2, 2, widest=True, seed=0), 8, seed=0).nonzero()[0].tolist()
    [4, 5, 6, 7]
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    last = reformer(x[None])[0, -1]
    moved = []
    for part in torch.arange(n).split(64):
        others = x.repeat(len(part), 1, 1)
        others[torch.arange(len(part)), part] += 1.0
        moved.append((reformer(others)[:, -1] != last).any(-1))
    return torch.cat(moved).numpy()


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Proposition on Reformer and the remark after it: at most B^L inputs, and SUM by one ANNA layer.

    >>> row("tiny").holds
    True
    """
    trials, bounds = Trials(), []
    for n, chunk, layers in CASES[effort]:
        progress(f"Reformer, N = {n:,}, B = {chunk}, L = {layers}")
        bounds += _one_pattern(n, chunk, layers)
    widths, built = [], []
    for n in SUMS[effort]:
        progress(f"SUM, N = {n:,}")
        transformer = sum_transformer(n)
        rng = np.random.default_rng(n)
        for x in (rng.integers(1, LARGEST + 1, n), np.full(n, LARGEST), np.ones(n, dtype=np.int64)):
            out = transformer(torch.from_numpy(x.astype(np.float64))[:, None])
            trials.add(bool((out == int(x.sum())).all()))
        built.append(transformer.sizes)
        widths.append(built[-1].value_width)
    bounds += [
        exactly("layers of ANNA for SUM", max(s.layers for s in built), 1, "1"),
        exactly("heads of ANNA for SUM", max(s.heads for s in built), 1, "1"),
    ]
    return trials.verdict(
        "Proposition: Reformer without sorting cannot compute SUM; one ANNA layer can",
        "random Reformers with fixed chunks, every input changed in turn; ANNA with equal keys and v_i = N·x_i",
        sizes=SUMS[effort],
        bounds=bounds,
        exponents=[exponent("embedding dimension of ANNA for SUM", SUMS[effort], widths, 0, "0")],
    )


def _one_pattern(n: int, chunk: int, layers: int) -> list[Bound]:
    name = f"N = {n}, B = {chunk}, L = {layers}"
    random = [seen_by_last(random_reformer(n, chunk, layers, widest=False, seed=s), n, seed=s).sum() for s in range(3)]
    widest = random_reformer(n, chunk, layers, widest=True, seed=0)
    seen = seen_by_last(widest, n, seed=0)
    enough = math.ceil(math.log(n) / math.log(chunk) - 1e-9)
    complete = random_reformer(n, chunk, enough, widest=True, seed=0) if chunk**enough == n else None
    bounds = [
        at_most("inputs seen, random chunks", max(random), chunk**layers, "B^L", name),
        exactly("inputs seen, widest chunks", seen.sum(), chunk**layers, "B^L", name),
        at_least("error of SUM", _error(widest, seen), _half_gap(n, chunk, layers), "(N−B^L)(M−1)/2", name),
    ]
    if complete is not None:
        every = seen_by_last(complete, n, seed=0).sum()
        bounds.append(exactly("inputs seen, L = log_B N", every, n, "N", f"N = {n}, B = {chunk}, L = {enough}"))
    return bounds


def _half_gap(n: int, chunk: int, layers: int) -> float:
    return (n - chunk**layers) * (LARGEST - 1) / 2


def _error(reformer: FixedReformer, seen: NDArray[np.bool_]) -> float:
    """The larger error on two inputs, which are 1 or M wherever the last output does not look."""
    low = torch.ones(len(seen), 4, dtype=torch.float64)
    high = torch.where(torch.from_numpy(seen)[:, None], low, float(LARGEST))
    errors = [abs(float(reformer(x[None])[0, -1, 0] - x[:, 0].sum())) for x in (low, high)]
    return max(errors)
