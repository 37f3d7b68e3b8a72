"""The theorems: what each promises, built, measured and compared with its bound."""

from collections.abc import Sequence
from typing import Any

from annattn.measure import Progress, silent
from annattn.theorems import THEOREMS, Bound, Effort

__all__ = ["rows", "tightest"]

# Shares of the time that all theorems take at quick sizes.
_TIME = {
    "lsh-guarantee": 10,
    "linear-memory": 3,
    "anna-simulates-mpc": 9,
    "anna-simulates-mpc-improved": 15,
    "mpc-simulates-ema": 1,
    "mpc-simulates-anna": 5,
    "mpc-simulates-softmax": 2,
    "depth-lower-bounds": 2,
    "low-rank-separation": 2,
    "anna-simulates-low-rank": 10,
    "match2": 9,
    "induction-heads": 14,
    "k-hop": 20,
    "sum-and-reformer": 3,
}


def rows(
    *, effort: Effort = "quick", names: Sequence[str] = tuple(THEOREMS), progress: Progress = silent
) -> dict[str, Any]:
    """The rows of `annattn theorems`, each with the bounds nearest to breaking.

    >>> found = rows(effort="tiny", names=["k-hop"])
    >>> found["rows"][0]["holds"]
    True
    """
    total = sum(_TIME.get(name, 1) for name in names)
    found, done = [], 0
    for name in names:
        share = done / total
        verdict = THEOREMS[name](effort, lambda what, share=share, name=name: progress(share, f"{name}: {what}"))
        done += _TIME.get(name, 1)
        found.append(
            {
                "name": name,
                "theorem": verdict.theorem,
                "built": verdict.built,
                "sizes": list(verdict.sizes),
                "inputs": verdict.inputs,
                "equal": verdict.equal,
                "bounds": [str(bound) for bound in (*tightest(verdict.bounds), *verdict.exponents)],
                "broken": [str(bound) for bound in verdict.broken],
                "kept": len(verdict.bounds) + len(verdict.exponents) - len(verdict.broken),
                "holds": verdict.holds,
                "seconds": verdict.seconds,
            }
        )
    return {"effort": effort, "rows": found}


def tightest(bounds: Sequence[Bound]) -> list[Bound]:
    """For each thing that is bounded at several sizes, the bound nearest to breaking, the last among equals.

    >>> from annattn.theorems.verdict import at_most
    >>> [bound.at for bound in tightest([at_most("heads", 1, 4, "4", "N = 8"), at_most("heads", 3, 4, "4", "N = 9")])]
    ['N = 9']
    """
    found: dict[str, Bound] = {}
    for bound in bounds:
        if bound.what not in found or bound.slack <= found[bound.what].slack:
            found[bound.what] = bound
    return list(found.values())
