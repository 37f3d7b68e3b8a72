"""Theorem "LSH algorithm guarantee for ANNA": how often Algorithm 1 breaks the Definition, and what it costs.

This is the proof with its constants kept and its sums carried out. With z hash functions such that p2^z ≤ 0.1/N³, and
ℓ = ⌈ln(N²/δ)/p1^z⌉ tables for δ = 0.1/N^(1−3ρ), the failure probability is at most η = δ + N²·ℓ·p2^z ≤ δ + 0.1·ℓ/N. The
paper then writes O(1/N^(1−3ρ)), but ℓ is Θ(N^(3ρ) log N), so η is O(log N/N^(1−3ρ)). And there are ℓ·z =
Θ(N^(3ρ) log² N) hash functions per token, where the paper counts N^(3ρ) log N.

`aa.plan` is asked for this η and may not need more hash functions than the proof. Then hashers are drawn, Algorithm 1
runs on them, and `aa.check_anna` says how often the Definition is broken. The inputs are two clusters: pairs within a
cluster are near, pairs across are just beyond c·r, so both kinds of failure have about N²/2 chances.
"""

import math
import time

import torch
from torch import Tensor

from annattn.attention import anna_attention, check_anna, plan, reference
from annattn.lsh import Hasher, Hyperplane
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_most, exponent, silent

__all__ = ["most_tables", "proof_sizes", "row", "two_clusters"]

DIM, RADIUS, APPROXIMATION = 32, 0.2, 6.0
PLANNED = [2**e for e in range(6, 21)]
MOST_TABLES = "10^ρ/p1·N^(3ρ)·((3−3ρ)·ln N + ln 10) + 1"
DRAWS = {
    "tiny": {32: 20, 64: 10},
    "quick": {64: 100, 128: 60, 256: 20},
    "full": {64: 400, 128: 200, 256: 100, 512: 20},
}


def proof_sizes(n: int, p1: float, p2: float) -> tuple[int, int, float]:
    """Tables ℓ, hashes z and failure η as the proof of the LSH guarantee chooses them, with all constants.

    >>> proof_sizes(256, p1=0.936, p2=0.59)
    (183, 36, 0.0706...)
    """
    quality = math.log(p1) / math.log(p2)
    hashes = math.ceil(math.log(10 * n**3) / -math.log(p2))
    missed = 0.1 / n ** (1 - 3 * quality)
    tables = math.ceil(math.log(n**2 / missed) / p1**hashes)
    return tables, hashes, missed + n**2 * tables * p2**hashes


def most_tables(n: int, p1: float, quality: float) -> float:
    """The proof's ℓ in closed form, a constant times N^(3ρ)·ln N.

    z < 1 + ln(10·N³)/ln(1/p2), so p1^(−z) < (10·N³)^ρ/p1, and ln(N²/δ) = ln(10·N^(3−3ρ)).

    >>> most_tables(256, p1=0.936, quality=0.1253) >= proof_sizes(256, p1=0.936, p2=0.59)[0]
    True
    """
    return 10**quality / p1 * n ** (3 * quality) * ((3 - 3 * quality) * math.log(n) + math.log(10)) + 1


def two_clusters(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Queries and keys on the unit sphere in two clusters: at most r apart within one, more than c·r apart across.

    Each row is at most r/2 from the centre of its cluster, at a right angle to the line between the centres. Scaling
    the rows back to the sphere shortens the distance across; the factor below makes up for it.

    >>> query, key = two_clusters(200, seed=0)
    >>> apart = torch.cdist(query, key)
    >>> bool((apart[::2, ::2] <= RADIUS).all()), bool((apart[::2, 1::2] > APPROXIMATION * RADIUS).all())
    (True, True)
    """
    generator = torch.Generator().manual_seed(seed)
    half_angle = math.asin(1.0001 * APPROXIMATION * RADIUS / 2 * math.hypot(1, RADIUS / 2))
    side = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat((n + 1) // 2)[:n, None]
    rows = []
    for _ in range(2):
        spread = torch.randn(n, DIM, generator=generator, dtype=torch.float64)
        spread[:, :2] = 0
        centre = torch.zeros(n, DIM, dtype=torch.float64)
        centre[:, :1], centre[:, 1:2] = math.cos(half_angle), side * math.sin(half_angle)
        moved = centre + RADIUS / 2 * spread / spread.norm(dim=1, keepdim=True)
        rows.append(moved / moved.norm(dim=1, keepdim=True))
    return rows[0], rows[1]


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "LSH algorithm guarantee for ANNA": failures of the Definition and η, work and memory as N grows.

    >>> row("tiny").holds
    True
    """
    trials, bounds, notes = Trials(), [], []
    family = Hyperplane(DIM)
    quality = family.quality(RADIUS, APPROXIMATION)
    found = family.sensitivity(RADIUS, APPROXIMATION)
    memory = []
    for n, draws in DRAWS[effort].items():
        progress(f"N = {n:,}, {draws} draws")
        of_proof, hashes_of_proof, failure = proof_sizes(n, found.p1, found.p2)
        planned = plan(n, family, RADIUS, APPROXIMATION, failure)
        hashers = [family.sample(tables=planned.tables, hashes=planned.hashes, seed=seed) for seed in range(draws)]
        query, key = two_clusters(n, seed=n)
        start = time.perf_counter()
        broken = sum(not _satisfied(query, key, hasher) for hasher in hashers)
        seconds = (time.perf_counter() - start) / draws
        for hasher in hashers[:2]:
            trials.add(_as_written(query, key, hasher))
        functions = planned.tables * planned.hashes
        memory.append(_numbers_stored(hashers[0], key))
        at = f"N = {n:,}"
        bounds += [
            at_most(
                "share of draws that fail", broken / draws, failure, "0.1/N^(1−3ρ) + N²·ℓ·p2^z", f"{at}, {draws} draws"
            ),
            at_most("ℓ·z", functions, of_proof * hashes_of_proof, "ℓ·z of the proof", at),
            at_most("numbers stored", memory[-1], n * of_proof * (DIM + 1), "N·ℓ·(m+1), ℓ of the proof", at),
        ]
        notes.append(f"N = {n}: ℓ = {planned.tables}, z = {planned.hashes}, {1000 * seconds:.1f} ms per draw")
    sizes = list(DRAWS[effort])
    plans = [plan(n, family, RADIUS, APPROXIMATION, proof_sizes(n, found.p1, found.p2)[2]) for n in PLANNED]
    work = [planned.work / math.log(planned.n) ** 2 for planned in plans]
    for planned in plans:
        limit = most_tables(planned.n, found.p1, quality)
        bounds.append(at_most("ℓ", planned.tables, limit, MOST_TABLES, f"N = {planned.n:,}"))
    stored = [numbers / math.log(n) for numbers, n in zip(memory, sizes, strict=True)]
    return trials.verdict(
        "LSH algorithm guarantee for ANNA",
        f"Algorithm 1 on {family}, r = {RADIUS:g}, c = {APPROXIMATION:g}, ρ = {quality:.3f}; ℓ, z from aa.plan",
        sizes=sizes,
        planned=PLANNED,
        bounds=bounds,
        exponents=[
            exponent("work/ln² N, N = 2^6 … 2^20", PLANNED, work, 1 + 3 * quality, "1+3ρ"),
            exponent("numbers stored/ln N", sizes, stored, 1 + 3 * quality, "1+3ρ"),
        ],
        notes=notes,
    )


def _weights(query: Tensor, key: Tensor, hasher: Hasher) -> Tensor:
    """The weights w_ij of Algorithm 1: attention with unit vectors as values."""
    units = torch.eye(len(key), dtype=torch.float64)
    return anna_attention(query[None, None], key[None, None], units[None, None], hasher, algorithm="tables")[0, 0]


def _satisfied(query: Tensor, key: Tensor, hasher: Hasher) -> bool:
    weights = _weights(query, key, hasher)
    return check_anna(weights, query, key, radius=RADIUS, approximation=APPROXIMATION, tables=hasher.tables).holds


def _as_written(query: Tensor, key: Tensor, hasher: Hasher, rows: int = 32) -> bool:
    """Whether some of the outputs equal those of the paper's pseudocode, line by line."""
    value = torch.arange(len(key), dtype=torch.float64)[:, None]
    fast = _weights(query, key, hasher)[:rows] @ value
    return torch.allclose(fast, reference.algorithm_1(query[:rows], key, value, hasher), rtol=1e-12, atol=0)


def _numbers_stored(hasher: Hasher, key: Tensor) -> int:
    """The numbers in the ℓ tables: a sum of m numbers and a count for every bucket that holds a key."""
    (codes,) = hasher.joint_codes(key)
    return sum(len(codes[:, table].unique()) for table in range(hasher.tables)) * (hasher.dim + 1)
