"""Theorem "LSH algorithm guarantee for ANNA", made concrete: how many tables and hashes a guarantee takes."""

import math
from dataclasses import dataclass

from annattn.checks import require_count
from annattn.errors import InputError, PlanError
from annattn.lsh import HashFamily

__all__ = ["Plan", "plan"]


@dataclass(frozen=True)
class Plan:
    """Tables ℓ and hashes z for which Algorithm 1 satisfies Definition "ANN Attention" with failure at most η.

    near_failure bounds the chance that some r-near pair never shares a bucket, far_failure that some pair beyond c·r
    does; their sum is at most `failure`. `applies` tells whether the theorem's own conditions hold; `caveats` says
    which do not and what that means. The union bounds hold either way.
    """

    n: int
    family: HashFamily
    radius: float
    approximation: float
    failure: float
    tables: int
    hashes: int
    p1: float
    p2: float
    quality: float
    near_failure: float
    far_failure: float
    caveats: tuple[str, ...]

    @property
    def applies(self) -> bool:
        """Whether c > √3 and ρ < 1/3, as the theorem asks."""
        return not self.caveats

    @property
    def work(self) -> int:
        """Multiply-adds per head: 2N rows through ℓ·z hash functions of m steps, then ℓ sums of m numbers per row."""
        return 2 * self.n * self.tables * self.family.dim * (self.hashes + 1)

    @property
    def memory(self) -> int:
        """Numbers Algorithm 1 stores: at most N buckets per table, each a sum of m numbers and a count."""
        return self.n * self.tables * (self.family.dim + 1)

    @property
    def linear_memory(self) -> int:
        """Numbers the appendix's linear-memory algorithm stores: one table, and one sum per query."""
        return 2 * self.n * (self.family.dim + 1)

    def __str__(self) -> str:
        lines = [
            f"{self.tables} tables of {self.hashes} hashes for n = {self.n}, {self.family}",
            f"  r = {self.radius:g}, c = {self.approximation:g}: p1 = {self.p1:.4g}, p2 = {self.p2:.4g}, "
            f"rho = {self.quality:.3f}",
            f"  failure at most {self.near_failure:.3g} (near pair missed) + {self.far_failure:.3g} (far pair met)",
            f"  {self.work:.3g} multiply-adds; {self.memory:.3g} numbers stored, "
            f"{self.linear_memory:.3g} with one table at a time",
        ]
        return "\n".join(lines + [f"  note: {caveat}" for caveat in self.caveats])


def plan(n: int, family: HashFamily, radius: float, approximation: float, failure: float = 0.1) -> Plan:
    """The tables and hashes of least ℓ·z whose union bounds hold for n queries and n keys.

    The proof's two bounds, with its constants kept: N²·ℓ·p2^z for "some pair beyond c·r meets in some table" and
    N²·(1 − p1^z)^ℓ for "some r-near pair meets in none". The paper fixes p2^z ≤ 0.1/N³, and then drops a factor log N
    from ℓ when it adds up the tables; here ℓ and z are the smallest for which the sum of both is at most `failure`.
    For a constant failure that takes about N^(2ρ/(1−ρ))·(log N)^(1/(1−ρ)) tables; for the theorem's own 1/N^(1−3ρ) it
    takes N^(3ρ)·(log N)^(1/(1−ρ)), which is the theorem's exponent: like for like only the constant is better.

    >>> import annattn as aa
    >>> found = aa.plan(256, aa.lsh.Hyperplane(16), radius=0.1, approximation=10)
    >>> found.tables, found.hashes, found.applies
    (53, 44, True)
    """
    n = require_count("n", n)
    n = int(n)
    if not isinstance(family, HashFamily):
        raise InputError(
            "family", given=repr(family), expected="a hash family", hint="for example aa.lsh.Hyperplane(64)"
        )
    if not 0 < failure < 1:
        raise InputError("failure", given=failure, expected="a probability between 0 and 1")
    found = family.sensitivity(radius, approximation)
    if not found.p1 > found.p2:
        raise PlanError(
            "radius and approximation",
            given=f"r = {radius:g}, c = {approximation:g} with p1 = {found.p1:.4g}, p2 = {found.p2:.4g}",
            expected="near pairs to collide more often than far ones",
            hint="take another radius, a larger approximation factor, or another family",
        )
    try:
        tables, hashes = _smallest(n, found.p1, found.p2, failure)
    except OverflowError:
        raise PlanError(
            "guarantee",
            given=f"n = {n:.3g}, c = {approximation:g}, failure {failure:g}" if n < 1e300 else "n beyond 1e300",
            expected="numbers of tables and hashes that a float can hold",
            hint="take fewer tokens, a larger approximation factor, or a larger failure",
        ) from None
    return Plan(
        n=n,
        family=family,
        radius=radius,
        approximation=approximation,
        failure=failure,
        tables=tables,
        hashes=hashes,
        p1=found.p1,
        p2=found.p2,
        quality=found.quality,
        near_failure=_near(n, found.p1, tables, hashes),
        far_failure=_far(n, found.p2, tables, hashes),
        caveats=tuple(_caveats(n, approximation, found.quality, tables)),
    )


def _near(n: int, p1: float, tables: int, hashes: int) -> float:
    together = p1**hashes
    return 0.0 if together >= 1 else n**2 * math.exp(tables * math.log1p(-together))


def _far(n: int, p2: float, tables: int, hashes: int) -> float:
    return n**2 * tables * p2**hashes


def _smallest(n: int, p1: float, p2: float, failure: float) -> tuple[int, int]:
    """(tables, hashes) of least product, the fewest tables among equals; beyond 1,000 hashes, to a thousandth."""
    best: tuple[int, int] | None = None
    # With fewer hashes than this even one table would meet far pairs too often.
    hashes = 0 if p2 <= 0 else max(0, math.floor(math.log(n**2 / failure) / -math.log(p2)) - 1)
    while True:
        hashes += max(1, hashes // 1000)
        together = p1**hashes
        if together <= 0:
            break
        # Without any far failure this many tables would do; more are never fewer.
        least = max(1, math.ceil(math.log(n**2 / failure) / -math.log1p(-together))) if together < 1 else 1
        if best is not None and least * hashes > best[0] * best[1]:
            break
        tables = _fewest_tables(n, p1, p2, hashes, failure, least)
        if tables is not None and (best is None or (tables * hashes, tables) < (best[0] * best[1], best[0])):
            best = (tables, hashes)
    if best is None:
        raise PlanError(
            "p1",
            given=f"{p1:.3g}",
            expected="a collision probability that some power of can be compensated by more tables",
            hint="take a smaller radius",
        )
    return best


def _fewest_tables(n: int, p1: float, p2: float, hashes: int, failure: float, least: int) -> int | None:
    """The fewest tables for which near and far failures add up to at most `failure`; None when none do."""
    far, together = p2**hashes, p1**hashes

    def fits(tables: int) -> bool:
        return _near(n, p1, tables, hashes) + _far(n, p2, tables, hashes) <= failure

    if far == 0 or together >= 1:
        # Where the bound is met exactly, rounding may ask for one table more.
        return next((tables for tables in (least, least + 1) if fits(tables)), None)
    # The sum is convex in the tables: it falls until the slopes of its two parts cancel.
    slope = math.log1p(-together)
    most = max(least, math.floor(math.log(min(far / -slope, 1.0)) / slope))
    if not fits(most):
        return most + 1 if fits(most + 1) else None
    while least < most:
        middle = (least + most) // 2
        if fits(middle):
            most = middle
        else:
            least = middle + 1
    return least


def _caveats(n: int, approximation: float, quality: float, tables: int) -> list[str]:
    found = []
    if approximation <= math.sqrt(3):
        found.append(
            f"c = {approximation:g} is not above √3: even the best family, ρ = 1/c², would need N^(3/c²) ≥ N tables"
        )
    if quality >= 1 / 3:
        found.append(
            f"ρ = {quality:.3f} is not below 1/3: the tables grow like N^(3ρ), so that the work is no longer "
            f"sub-quadratic (here {tables} tables for n = {n}) and the theorem's η = O(1/N^(1−3ρ)) does not shrink"
        )
    return found
