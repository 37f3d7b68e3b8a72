"""Which backend runs: the first in the list that has no reason not to."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

from torch import Tensor

from annattn.errors import BackendError, InputError
from annattn.kernels import numba_backend, torch_backend

__all__ = ["BACKENDS", "choose", "use_backend"]

# In order of preference. Each is a module with the functions of torch_backend and `unsupported_reasons(value)`.
BACKENDS: dict[str, ModuleType] = {
    "numba": numba_backend,
    "torch": torch_backend,
}

_wanted: ContextVar[str | None] = ContextVar("annattn_backend", default=None)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Insist on one backend inside a `with` block; it then runs or raises BackendError.

    >>> with use_backend("torch"):
    ...     pass
    """
    if name not in BACKENDS:
        raise InputError("backend", given=repr(name), expected=f"one of {', '.join(BACKENDS)}")
    token = _wanted.set(name)
    try:
        yield
    finally:
        _wanted.reset(token)


def choose(value: Tensor) -> ModuleType:
    """The backend for inputs like this one; raises BackendError with every backend's reasons when there is none."""
    wanted = _wanted.get()
    refusals = []
    for name, backend in BACKENDS.items():
        if wanted is not None and name != wanted:
            continue
        reasons = backend.unsupported_reasons(value)
        if not reasons:
            return backend
        refusals.append(f"{name}: {'; '.join(reasons)}")
    raise BackendError("no backend can run these inputs\n  " + "\n  ".join(refusals))
