"""Which backend runs a call: the first in the list that has no reason not to."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from annattn.checks import require_choice
from annattn.errors import BackendError
from annattn.kernels.interface import Backend, Call

__all__ = ["BACKENDS", "asked_for", "choose", "find", "load", "use_backend"]

BACKENDS: dict[str, str | Backend] = {
    "numba": "annattn.kernels.numba.backend:NumbaBackend",
    "triton": "annattn.kernels.triton.backend:TritonBackend",
    "torch": "annattn.kernels.torch.backend:TorchBackend",
    "triton_atomic": "annattn.kernels.triton.backend:AtomicTritonBackend",
}
"""In order of preference: a backend, or the class to import and make when it is first considered.

The torch backend runs every bucket operation, so what comes after it runs only if asked for by name.
"""

_loaded: dict[str, Backend] = {}
_wanted: ContextVar[str | None] = ContextVar("annattn_backend", default=None)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Insist on one backend inside a `with` block; it then runs or raises BackendError, at once if it never could.

    >>> with use_backend("torch"):
    ...     pass
    """
    require_choice("backend", name, BACKENDS)
    try:
        missing = load(name).missing()
    except ImportError as error:
        missing = f"it cannot be imported: {error}"
    if missing is not None:
        raise BackendError(f"the backend {name!r} cannot run here: {missing}")
    token = _wanted.set(name)
    try:
        yield
    finally:
        _wanted.reset(token)


def asked_for(name: str) -> bool:
    """Whether `use_backend` insists on this backend now.

    >>> asked_for("torch")
    False
    """
    return _wanted.get() == name


def choose(call: Call) -> Backend:
    """The backend for a call; raises BackendError with every backend's reasons when there is none."""
    wanted = _wanted.get()
    refusals = []
    for name in BACKENDS if wanted is None else (wanted,):
        try:
            backend = _loaded.get(name) or load(name)
        except ImportError as missing:
            refusals.append(f"{name}: cannot be imported: {missing}")
            continue
        reasons = backend.unsupported_reasons(call)
        if not reasons:
            return backend
        refusals.append(f"{name}: {'; '.join(reasons)}")
    who = "no backend" if wanted is None else f"the backend {wanted!r}, asked for by name,"
    cannot = "can" if wanted is None else "cannot"
    raise BackendError(f"{who} {cannot} run {call.operation} on these inputs\n  " + "\n  ".join(refusals))


def find(call: Call) -> Backend | None:
    """The backend for a call that the caller can do without; None when there is none."""
    try:
        return choose(call)
    except BackendError:
        return None


def load(name: str) -> Backend:
    """The backend of this name, imported and made if it is the first time."""
    if name in _loaded:
        return _loaded[name]
    entry = BACKENDS[name]
    if isinstance(entry, Backend):
        return entry
    module, _, attribute = entry.partition(":")
    _loaded[name] = getattr(importlib.import_module(module), attribute)()
    return _loaded[name]
