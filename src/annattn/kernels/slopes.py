"""Which gradient queries and keys get, as a string that can travel into an op."""

from functools import partial

from annattn.errors import InputError
from annattn.kernels.gradient import Slope
from annattn.lsh import FAMILIES, Hasher, restore

__all__ = ["GRADIENTS", "read_slope", "write_slope"]

GRADIENTS = ("linear", "exact", "none")


def write_slope(hasher: Hasher, gradient: str, *, needed: bool) -> str:
    """Empty when there is nothing to compute; raises when the family cannot give what is asked of it."""
    if gradient not in GRADIENTS:
        raise InputError("gradient", given=repr(gradient), expected=f"one of {GRADIENTS}")
    if gradient == "none" or not needed:
        return ""
    if type(hasher.family) not in FAMILIES.values() or not hasher.family.linear_slope:
        raise InputError(
            "gradient",
            given=f"{gradient!r} with {hasher.family}",
            expected="a listed family whose collision probability is a function of the angle",
            hint='pass gradient="none", or detach queries and keys, to train the values alone',
        )
    return f"{gradient} {hasher.spec}"


def read_slope(written: str) -> Slope:
    """The w(x) of a written slope: z/2 or its like for "linear", z·p'(x)/p(x) for "exact"."""
    gradient, spec = written.split(" ", 1)
    hasher = restore(spec, ())
    if gradient == "linear":
        return Slope(constant=hasher.hashes * hasher.family.linear_slope)
    return Slope(constant=None, function=partial(_exact, hasher))


def _exact(hasher: Hasher, cosine):
    slope = hasher.family.log_slope(cosine)
    assert slope is not None
    return hasher.hashes * slope
