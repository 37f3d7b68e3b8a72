"""Locality-sensitive hash families and the hashers drawn from them; nothing here knows of attention."""

import json
from functools import lru_cache

from torch import Tensor

from annattn.lsh.codes import IGNORED, NO_BUCKET
from annattn.lsh.cross_polytope import CrossPolytope
from annattn.lsh.euclidean import Euclidean
from annattn.lsh.family import HashFamily, Sensitivity
from annattn.lsh.hasher import Hasher, compact_rows, pairs_of_half_keys
from annattn.lsh.hyperplane import Hyperplane
from annattn.lsh.identity import Identity

__all__ = [
    "FAMILIES",
    "IGNORED",
    "NO_BUCKET",
    "CrossPolytope",
    "Euclidean",
    "HashFamily",
    "Hasher",
    "Hyperplane",
    "Identity",
    "Sensitivity",
    "compact_rows",
    "pairs_of_half_keys",
    "restore",
]

FAMILIES: dict[str, type[HashFamily]] = {
    "hyperplane": Hyperplane,
    "cross_polytope": CrossPolytope,
    "euclidean": Euclidean,
    "identity": Identity,
}
"""Every family by name; the shared tests run over it."""


def restore(spec: str, parameters: tuple[Tensor, ...]) -> Hasher:
    """The hasher of a listed family that has this `spec` and these parameters.

    >>> hasher = Hyperplane(4).sample(tables=2, hashes=3, seed=1)
    >>> restore(hasher.spec, hasher.parameters) == hasher
    True
    """
    family, tables, hashes, seed, heads, shared = _read(spec)
    return Hasher(family, tables, hashes, seed, parameters, heads, shared)


@lru_cache(maxsize=1024)
def _read(spec: str) -> tuple[HashFamily, int, int, int, int, bool]:
    read = json.loads(spec)
    makers = {make.__name__: make for make in FAMILIES.values()}
    family = makers[read["family"]["name"]](**read["family"]["options"])
    return family, read["tables"], read["hashes"], read["seed"], read["heads"], read["shared"]
