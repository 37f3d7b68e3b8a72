"""What does not fit in memory is said in a sentence: before it is made, where its size is known, or when it fails."""

import os
from functools import cache

from annattn.errors import NoMemoryError

__all__ = ["memory_of_machine", "ran_out", "require_memory", "said"]

# Words of torch, of the C++ library, of Python and of the system's loader, which have no common error for it.
_NO_MEMORY = (
    "allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed", "bad_alloc",
    "can't start new thread", "failed to map segment",
)  # fmt: skip


@cache
def memory_of_machine() -> int:
    """Bytes of memory this machine has; more than anybody asks for where it does not say.

    >>> memory_of_machine() > 2**20
    True
    """
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 2**60


def require_memory(what: str, size: int, hint: str) -> None:
    """Raise NoMemoryError if so many bytes are more than the whole machine has.

    A system that promises memory before it has it would end the process later, without a word.

    >>> require_memory("tables", 2**70, "take fewer")
    Traceback (most recent call last):
    annattn.errors.NoMemoryError: tables: 1,180,591,620,717 GB are more than the ... GB of this machine; take fewer
    """
    if size > memory_of_machine():
        there = f"{memory_of_machine() / 1e9:.3g} GB of this machine"
        raise NoMemoryError(f"{what}: {size / 1e9:,.0f} GB are more than the {there}; {hint}")


def said(error: MemoryError | RuntimeError, sentence: str) -> MemoryError | RuntimeError:
    """The sentence as a NoMemoryError if this error says that memory ran out, whichever library found out; or itself.

    >>> said(MemoryError(), "too large"), said(RuntimeError("no"), "too large")
    (NoMemoryError('too large'), RuntimeError('no'))
    """
    return NoMemoryError(sentence) if ran_out(error) and not isinstance(error, NoMemoryError) else error


def ran_out(error: BaseException) -> bool:
    """Whether this error, or one that it was raised from, says that memory ran out.

    >>> ran_out(RuntimeError("std::bad_alloc")), ran_out(RuntimeError("no"))
    (True, False)
    """
    cause = error.__cause__ or error.__context__
    own = isinstance(error, MemoryError) or any(word in str(error) for word in _NO_MEMORY)
    return own or (cause is not None and ran_out(cause))
