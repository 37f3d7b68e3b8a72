"""The hash families as options of a command."""

from typing import Literal

from annattn.errors import InputError
from annattn.lsh import FAMILIES, Euclidean, HashFamily

__all__ = ["Family", "make_family"]

Family = Literal["hyperplane", "cross_polytope", "euclidean"]


def make_family(name: Family, dim: int, width: float | None) -> HashFamily:
    """A family by its name; only the Euclidean one has a width.

    >>> make_family("euclidean", 8, 2.0)
    Euclidean(dim=8, width=2.0)
    """
    if width is None:
        return FAMILIES[name](dim)
    if FAMILIES[name] is not Euclidean:
        raise InputError("--width", given=f"{width:g} with {name}", expected="it only with --family euclidean")
    return Euclidean(dim, width)
