"""Locality-sensitive hash families and the hashers drawn from them; nothing here knows of attention."""

from annattn.lsh.cross_polytope import CrossPolytope
from annattn.lsh.euclidean import Euclidean
from annattn.lsh.family import HashFamily, Sensitivity
from annattn.lsh.hasher import NO_BUCKET, Hasher, compact_rows
from annattn.lsh.hyperplane import Hyperplane
from annattn.lsh.identity import Identity

__all__ = [
    "FAMILIES",
    "NO_BUCKET",
    "CrossPolytope",
    "Euclidean",
    "HashFamily",
    "Hasher",
    "Hyperplane",
    "Identity",
    "Sensitivity",
    "compact_rows",
]

FAMILIES: dict[str, type[HashFamily]] = {
    "hyperplane": Hyperplane,
    "cross_polytope": CrossPolytope,
    "euclidean": Euclidean,
    "identity": Identity,
}
