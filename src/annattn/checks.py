"""Checks of arguments: each returns the value in the form the library works with, or raises InputError."""

import difflib
import math
import operator
from collections.abc import Iterable
from typing import Any

from annattn.errors import InputError

__all__ = [
    "LARGEST_COUNT",
    "LARGEST_FACTOR",
    "did_you_mean",
    "keep_counts",
    "keep_number",
    "require_choice",
    "require_count",
    "require_factor",
    "require_flag",
    "require_instance",
    "require_number",
]

LARGEST_FACTOR = 2.0**127
"""The largest factor of scores: from twice this on, float32 only has infinity, which times zero is NaN."""

LARGEST_COUNT = 2**31 - 1
"""The largest size of anything that is made: products of two fit 64 bits."""


def require_count(name: str, value: Any, *, least: int = 1, most: int | None = None, hint: str = "") -> int:
    """An integer of at least `least`, as a Python int: a NumPy one would wrap around in a product.

    >>> require_count("tables", 8)
    8
    >>> require_count("tables", 2.5)
    Traceback (most recent call last):
    annattn.errors.InputError: tables: got 2.5, expected an integer of at least 1
    """
    try:
        # Whatever counts as an integer, but not a bool, and not a tensor or array with axes.
        found = None if isinstance(value, bool) or getattr(value, "shape", ()) else operator.index(value)
    except TypeError:
        found = None
    if found is None or found < least:
        raise InputError(name, given=repr(value), expected=f"an integer of at least {least}", hint=hint)
    if most is not None and found > most:
        expected = "an integer below 2^31" if most == LARGEST_COUNT else f"at most {most:,}"
        raise InputError(name, given=repr(value), expected=expected, hint=hint)
    return found


def keep_counts(owner: Any, *names: str, least: int = 1, most: int | None = None, hint: str = "") -> None:
    """Check these fields of a frozen dataclass as `require_count` does, and keep each as the Python int it is.

    >>> class Sizes:
    ...     tables = 200
    >>> keep_counts(Sizes, "tables", most=100)
    Traceback (most recent call last):
    annattn.errors.InputError: tables: got 200, expected at most 100
    """
    for name in names:
        object.__setattr__(owner, name, require_count(name, getattr(owner, name), least=least, most=most, hint=hint))


def require_instance(name: str, value: Any, kind: type, expected: str, *, hint: str = "") -> None:
    """Raise InputError unless the value is of this kind.

    >>> require_instance("state", {}, dict, "a dict")
    """
    if not isinstance(value, kind):
        raise InputError(name, given=type(value).__name__, expected=expected, hint=hint)


def require_flag(name: str, value: Any) -> bool:
    """True or False, and nothing that merely counts as one of them.

    >>> require_flag("is_causal", -1)
    Traceback (most recent call last):
    annattn.errors.InputError: is_causal: got -1, expected True or False
    """
    if not isinstance(value, bool):
        raise InputError(name, given=repr(value), expected="True or False")
    return value


def require_choice(name: str, value: Any, choices: Iterable[str], *, hint: str = "") -> str:
    """One of several words.

    >>> require_choice("empty", "none", ("zero", "nan"))
    Traceback (most recent call last):
    annattn.errors.InputError: empty: got 'none', expected one of "zero", "nan"
    """
    listed = tuple(choices)
    if not isinstance(value, str) or value not in listed:
        expected = "one of " + ", ".join(f'"{choice}"' for choice in listed)
        raise InputError(name, given=repr(value), expected=expected, hint=hint)
    return value


def require_number(name: str, value: Any, expected: str, *, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number from `low` to `high`, as a float; `expected` says in words what is allowed.

    >>> require_number("noise", 0.5, "a number from 0 to 1", low=0, high=1)
    0.5
    """
    if isinstance(value, bool | str | bytes) or getattr(value, "shape", ()):
        raise InputError(name, given=repr(value), expected=expected)
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not (math.isfinite(found) and low <= found <= high):
        raise InputError(name, given=repr(value), expected=expected)
    return found


def keep_number(owner: Any, name: str, expected: str, *, low: float = -math.inf, high: float = math.inf) -> None:
    """Check a field of a frozen dataclass as `require_number` does, and keep it as the Python float it is.

    >>> class Sizes:
    ...     noise = 2.0
    >>> keep_number(Sizes, "noise", "a number from 0 to 1", low=0, high=1)
    Traceback (most recent call last):
    annattn.errors.InputError: noise: got 2.0, expected a number from 0 to 1
    """
    object.__setattr__(owner, name, require_number(name, getattr(owner, name), expected, low=low, high=high))


def require_factor(name: str, value: Any) -> float:
    """A number that scores are multiplied by, as a float.

    >>> require_factor("scale", 1e39)
    Traceback (most recent call last):
    annattn.errors.InputError: scale: got 1e+39, expected a number from -2^127 to 2^127
    """
    return require_number(name, value, "a number from -2^127 to 2^127", low=-LARGEST_FACTOR, high=LARGEST_FACTOR)


def did_you_mean(name: str, names: Iterable[str], *, likeness: float = 0.4) -> str:
    """A hint with the name that was probably meant, or nothing if none is similar enough; case does not matter.

    >>> did_you_mean("khop", ["KHop", "Sort"])
    'did you mean KHop?'
    """
    by_lower_case = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), by_lower_case, 1, likeness)
    return f"did you mean {by_lower_case[near[0]]}?" if near else ""
