"""`annattn plan`: how many tables and hashes a guarantee takes, and what they cost."""

import math
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from annattn.attention import Plan
from annattn.attention import plan as make_plan
from annattn.cli.families import Family, make_family
from annattn.cli.terminal import AsJson, Whole, output, print_json

__all__ = ["plan"]


def plan(
    *,
    n: Whole,
    radius: Annotated[float, Parameter(name=("--radius", "-r"))],
    approximation: Annotated[float, Parameter(name=("--approximation", "-c"))],
    failure: float = 0.1,
    family: Family = "hyperplane",
    dim: Whole = 64,
    width: float | None = None,
    as_json: AsJson = False,
) -> None:
    """How many tables and hashes a guarantee takes (Theorem "LSH algorithm guarantee for ANNA"), and what they cost.

    Except with the failure probability, every query then meets every key within the radius and none beyond
    approximation · radius. That is a guarantee for the worst input; on real data far fewer often do.

    Example: annattn plan --n 4096 --radius 0.1 --approximation 10

    Args:
        n: queries, and keys as many.
        radius: how near a key must be to be met for certain; distances are between unit vectors, so at most 2, but for
            the euclidean family.
        approximation: how many times farther a key must be never to be met, c in the paper.
        failure: how likely anything at all may go wrong, η in the paper.
        family: which hash functions.
        dim: length of queries and keys.
        width: width of the slabs of the euclidean family, 4 unless given.
        as_json: print JSON instead of a table.
    """
    found = make_plan(n, make_family(family, dim, width), radius, approximation, failure)
    if as_json:
        print_json(_data(found))
        return
    console = output()
    console.print(f"[bold]{found.tables:,} tables of {found.hashes:,} hashes[/bold]")
    console.print(_table(found))
    for caveat in found.caveats:
        console.print(f"note: {caveat}", markup=False)


def _all_pairs(found: Plan) -> int:
    """Multiply-adds of attention that looks at every pair: a product of rows and a sum of values each."""
    return 2 * found.n**2 * found.family.dim


def _table(found: Plan) -> Table:
    table = Table("what", "how much", "why", show_header=True)
    table.columns[1].justify = "right"
    near, far = found.radius, found.radius * found.approximation
    share = found.work / _all_pairs(found)
    compared = f"{1 / share:,.3g} times less" if share < 1 else f"{share:,.3g} times more"
    rows = [
        ("p1", f"{found.p1:.4g}", f"one hash agrees on a pair at distance {near:g}, at least"),
        ("p2", f"{found.p2:.4g}", f"one hash agrees on a pair at distance {far:g}, at most"),
        ("ρ", f"{found.quality:.3f}", "log(1/p1) / log(1/p2): tables grow with a power of n that grows with ρ"),
        ("p1^z", f"{found.p1**found.hashes:.3g}", "a near pair meets in one table"),
        ("near pairs missed", f"{found.near_failure:.3g}", "expected number at most, n²·(1 − p1^z)^ℓ"),
        ("far pairs met", f"{found.far_failure:.3g}", "expected number of false meetings at most, n²·ℓ·p2^z"),
        (
            "failure",
            f"{found.near_failure + found.far_failure:.3g}",
            f"chance that any of it happens is at most this; asked: {found.failure:g}",
        ),
        ("work", f"{found.work:.3g}", f"multiply-adds a head; {compared} than looking at all pairs"),
        ("memory", _bytes(4 * found.memory), "all tables at once, a head, in float32, at most"),
        ("memory, linear", _bytes(4 * found.linear_memory), "one table at a time (the appendix's algorithm)"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _data(found: Plan) -> dict[str, object]:
    sizes = {name: getattr(found, name) for name in ("applies", "work", "memory", "linear_memory")}
    family = {"name": type(found.family).__name__, **vars(found.family)}
    data = {**asdict(found), "family": family, **sizes, "all_pairs_work": _all_pairs(found)}
    # ρ is infinite when far pairs always collide, and c may be given so; JSON has no word for it.
    return {name: None if x in (math.inf, -math.inf) else x for name, x in data.items()}


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.3g} {unit}"
