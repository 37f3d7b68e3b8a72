"""Theorem "ANNA solves Match2": one layer, one head, embedding dimension 1, for every N and M.

The paper's construction has query x and key M − x. That misses one residue: x ≡ y ≡ 0 add up to 0 mod M, but token 0
has query 0 and key M, and token M has query M and key 0. Query x mod M and key (−x) mod M correct this, and are
element-wise functions like any other. `as_printed` keeps the paper's version, and the row counts its errors.
"""

import itertools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annattn.compiler import Anna, Attention, ExactMatch, Head, Layer, Transformer
from annattn.errors import InputError
from annattn.lsh import Euclidean
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, exactly, exponent, silent

__all__ = ["as_printed", "by_counting", "by_pairs", "hashing", "match2_transformer", "row"]

WIDTH, FAILURE = 0.25, 1e-9
EVERY = {"tiny": 3, "quick": 5, "full": 5}
SIZES = {"tiny": (16, 256), "quick": (16, 256, 4096, 65_536), "full": (16, 256, 4096, 65_536, 1_048_576)}


def match2_transformer(modulus: int, attention: Attention | None = None) -> Transformer:
    """T(X)_i = 1 if some j has x_i + x_j ≡ 0 mod M, else 0: one layer, one head, queries, keys and values 1 wide.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [5.0]], dtype=torch.float64)
    >>> match2_transformer(7)(x).flatten().tolist()
    [1.0, 0.0, 1.0, 1.0]
    """
    if not 1 <= modulus <= 2**52:
        raise InputError("modulus", given=modulus, expected="an integer from 1 to 2^52, exact in float64")
    head = Head(
        query=lambda x: x % modulus,
        key=lambda x: -x % modulus,
        value=torch.ones_like,
        width=1,
        value_width=1,
    )
    return Transformer([Layer([head], attention or ExactMatch())])


def as_printed(modulus: int) -> Transformer:
    """The paper's construction, query x and key M − x, which misses pairs that are both 0 mod M.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [5.0]], dtype=torch.float64)
    >>> as_printed(7)(x).flatten().tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    head = Head(query=lambda x: x, key=lambda x: modulus - x, value=torch.ones_like, width=1, value_width=1)
    return Transformer([Layer([head])])


def by_pairs(x: NDArray[np.int64], modulus: int) -> NDArray[np.int64]:
    """Match2 by the Definition: every pair of tokens.

    >>> by_pairs(np.array([0, 1, 2, 5]), 7).tolist()
    [1, 0, 1, 1]
    """
    return ((x[:, None] + x[None]) % modulus == 0).any(axis=1).astype(np.int64)


def by_counting(x: NDArray[np.int64], modulus: int) -> NDArray[np.int64]:
    """Match2 directly: whether the opposite of each token's residue occurs.

    >>> by_counting(np.array([0, 1, 2, 5]), 7).tolist()
    [1, 0, 1, 1]
    """
    residues = {value % modulus for value in x.tolist()}
    return np.array([int(-value % modulus in residues) for value in x.tolist()], dtype=np.int64)


def hashing(n: int) -> Anna:
    """One table of p-stable hashes that tells integers apart: N²·p2^z ≤ 1e-9. Equal rows always meet.

    >>> hashing(1000).hasher.tables
    1
    """
    family = Euclidean(1, width=WIDTH)
    hashes = math.ceil(math.log(n**2 / FAILURE) / -math.log(family.collision_probability(1.0)))
    return Anna(family.sample(tables=1, hashes=hashes, seed=n))


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "ANNA solves Match2": every input of small size, tokens 0 and M included, and random ones up to large N.

    >>> row("tiny").holds
    True
    """
    trials, missed, built = Trials(), 0, []
    most = EVERY[effort]
    for n, modulus in itertools.product(range(1, most), range(1, most + 1)):
        progress(f"every input of N = {n}, M = {modulus}")
        transformer, printed = match2_transformer(modulus), as_printed(modulus)
        built.append(transformer)
        for given in itertools.product(range(modulus + 1), repeat=n):
            x = np.array(given)
            expected = by_pairs(x, modulus)
            trials.add(np.array_equal(_run(transformer, x), expected))
            missed += not np.array_equal(_run(printed, x), expected)
    widths = []
    for n in SIZES[effort]:
        progress(f"N = {n:,}")
        rng = np.random.default_rng(n)
        for modulus in (n, n**2):
            # About as many residues as tokens, so that both answers occur; 0 and M always.
            x = np.concatenate([rng.integers(0, modulus + 1, n - 2), [0, modulus]])
            x[: n // 4] = -x[n // 4 : 2 * (n // 4)] % modulus
            expected = by_counting(x, modulus)
            for attention in (ExactMatch(), hashing(n)):
                transformer = match2_transformer(modulus, attention)
                built.append(transformer)
                trials.add(np.array_equal(_run(transformer, x), expected))
        widths.append(built[-1].sizes.query_width)
    sizes = [transformer.sizes for transformer in built]
    return trials.verdict(
        "ANNA-transformer solves Match2",
        f"query x mod M, key (−x) mod M, value 1; on EMA and on one hash table; every X in [0, M]^N for N < {most}, "
        f"M ≤ {most}",
        sizes=SIZES[effort],
        bounds=[
            exactly("layers", max(s.layers for s in sizes), 1, "1"),
            exactly("heads", max(s.heads for s in sizes), 1, "1"),
            exactly("embedding dimension", max(max(s.query_width, s.value_width) for s in sizes), 1, "1"),
        ],
        exponents=[exponent("embedding dimension", SIZES[effort], widths, 0, "0")],
        notes=[f"the construction as printed, key M − x, is wrong on {missed:,} of the small inputs"],
    )


def _run(transformer: Transformer, x: NDArray[np.int64]) -> NDArray[np.int64]:
    rows: Tensor = torch.from_numpy(x.astype(np.float64))[:, None]
    out = transformer(rows)[:, 0].numpy()
    return np.where((out == 0) | (out == 1), out, -1).astype(np.int64)
