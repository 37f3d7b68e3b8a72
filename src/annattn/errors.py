"""Every exception the library raises on purpose."""

__all__ = ["AnnattnError", "BackendError", "InputError", "PlanError", "WideCodeError"]


class AnnattnError(Exception):
    """Base of all errors raised by this library."""


class InputError(AnnattnError, ValueError):
    """An argument cannot be used: says what was given, what was expected and what to do.

    >>> str(InputError("tables", given=0, expected="an integer of at least 1", hint="pass tables=8"))
    'tables: got 0, expected an integer of at least 1; pass tables=8'
    """

    def __init__(self, what: str, *, given: object, expected: str, hint: str = "") -> None:
        super().__init__(f"{what}: got {given}, expected {expected}" + (f"; {hint}" if hint else ""))

    def __reduce__(self):
        # The message is all there is to carry; the default would call __init__ without its keywords.
        return _restore, (type(self), self.args[0])


def _restore(kind: type[InputError], message: str) -> InputError:
    error = kind.__new__(kind)
    error.args = (message,)
    return error


class PlanError(InputError):
    """No number of tables and hashes can give the guarantee that was asked for."""


class WideCodeError(InputError):
    """A tuple of hash values does not fit one 63-bit code, so it has no code that means the same in every call."""


class BackendError(AnnattnError, RuntimeError):
    """No kernel backend can run the given inputs; the message holds every backend's reasons."""
