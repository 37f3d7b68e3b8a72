"""Engines, one per file: `ENGINES` lists them by name. To add one, write an `Engine` and add its line."""

from pkgutil import resolve_name

from annattn.errors import InputError
from annattn.mpc.engines.engine import Engine

__all__ = ["ENGINES", "Engine", "engine_named"]

ENGINES: dict[str, str | type[Engine]] = {
    "local": "annattn.mpc.engines.local:LocalEngine",
    "ray": "annattn.mpc.engines.ray:RayEngine",
}
"""Every engine by name: its class, or the address "module:class", which is imported when the engine is first chosen."""


def engine_named(name: str) -> type[Engine]:
    """The class of an engine, imported now unless it already was.

    >>> engine_named("local").__name__
    'LocalEngine'
    """
    if name not in ENGINES:
        raise InputError("engine", given=repr(name), expected=f"one of {', '.join(map(repr, ENGINES))}")
    entry = ENGINES[name]
    return resolve_name(entry) if isinstance(entry, str) else entry
