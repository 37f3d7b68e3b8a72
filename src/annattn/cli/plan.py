"""`annattn plan`: how many tables and hashes a guarantee takes, and their cost."""

import math
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from annattn.attention import Plan
from annattn.attention import plan as make_plan
from annattn.cli.families import Family, make_family
from annattn.cli.terminal import Integer, JsonFlag, print_json, stdout_console

__all__ = ["plan"]


def plan(
    *,
    n: Integer,
    radius: Annotated[float, Parameter(name=("--radius", "-r"))],
    approximation: Annotated[float, Parameter(name=("--approximation", "-c"))],
    failure: float = 0.1,
    family: Family = "hyperplane",
    dim: Integer = 64,
    width: float | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Find how many tables and hashes a guarantee takes, and what they cost.

    The guarantee is the paper's Theorem "LSH algorithm guarantee for ANNA". With probability at least 1 − failure,
    every query then meets every key within the radius and no key beyond approximation · radius. This holds for the
    worst input; on real data far fewer tables often suffice.

    Example: annattn plan --n 4096 --radius 0.1 --approximation 10

    Args:
        n: number of queries, and of keys.
        radius: a query meets every key within this distance, r in the paper. Distances are between unit vectors, so at
            most 2, except with the euclidean family.
        approximation: a query meets no key beyond this multiple of the radius, c in the paper.
        failure: the largest probability that anything goes wrong, η in the paper.
        family: the family of hash functions.
        dim: length of queries and keys.
        width: width of the euclidean family's slabs; 4 by default.
        as_json: print JSON instead of a table.
    """
    found = make_plan(n, make_family(family, dim, width), radius, approximation, failure)
    if as_json:
        print_json(_data(found))
        return
    console = stdout_console()
    console.print(f"[bold]{found.tables:,} tables of {found.hashes:,} hashes[/bold]")
    console.print(_table(found))
    for caveat in found.caveats:
        console.print(f"note: {caveat}", markup=False)


def _all_pairs(found: Plan) -> int:
    """Multiply-adds of attention over all pairs: for each pair a product of rows and a sum of values."""
    return 2 * found.n**2 * found.family.dim


def _table(found: Plan) -> Table:
    table = Table("what", "how much", "why", show_header=True)
    table.columns[1].justify = "right"
    near, far = found.radius, found.radius * found.approximation
    share = found.work / _all_pairs(found)
    compared = f"{1 / share:,.3g} times less" if share < 1 else f"{share:,.3g} times more"
    rows = [
        ("p1", f"{found.p1:.4g}", f"a pair at distance {near:g} agrees in one hash with at least this probability"),
        ("p2", f"{found.p2:.4g}", f"a pair at distance {far:g} agrees in one hash with at most this probability"),
        ("ρ", f"{found.quality:.3f}", "log(1/p1) / log(1/p2): the smaller, the fewer tables"),
        ("p1^z", f"{found.p1**found.hashes:.3g}", "a near pair meets in one table with at least this probability"),
        ("near pairs missed", f"{found.near_failure:.3g}", "expected number, at most n²·(1 − p1^z)^ℓ"),
        ("far pairs met", f"{found.far_failure:.3g}", "expected number, at most n²·ℓ·p2^z"),
        (
            "failure",
            f"{found.near_failure + found.far_failure:.3g}",
            f"upper bound on the probability of either, of at most {found.failure:g}",
        ),
        ("work", f"{found.work:.3g}", f"multiply-adds per head; {compared} than all pairs take"),
        ("memory", _bytes(4 * found.memory), "at most, per head in float32, with all tables at once"),
        (
            "memory, linear",
            _bytes(4 * found.linear_memory),
            "with one table at a time (the appendix's algorithm)",
        ),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _data(found: Plan) -> dict[str, object]:
    sizes = {name: getattr(found, name) for name in ("applies", "work", "memory", "linear_memory")}
    family = {"name": type(found.family).__name__, **vars(found.family)}
    data = {**asdict(found), "family": family, **sizes, "all_pairs_work": _all_pairs(found)}
    # ρ is infinite if far pairs always collide, and c may be given as infinite; JSON has no infinity.
    return {name: None if x in (math.inf, -math.inf) else x for name, x in data.items()}


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.3g} {unit}"
