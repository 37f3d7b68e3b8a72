"""The command line: parse, call, print."""

import errno
import os
import sys

from annattn.errors import AnnattnError
from annattn.interrupts import stopped_by_signals

__all__ = ["main"]

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

# What the user named is not there, is of the wrong kind, or may not be written; other errors of the system are its own.
_NAMED_WRONG = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def main() -> None:
    """Run the `annattn` command."""
    with stopped_by_signals():
        try:
            _run(sys.argv[1:])
        except BrokenPipeError:
            # Whoever read the output has gone; what is still in the buffer has nowhere to go either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(FAILED)


def _run(arguments: list[str]) -> None:
    code: object = 0
    try:
        try:
            from annattn.cli.app import make_app
        except ModuleNotFoundError as missing:
            if missing.name not in ("cyclopts", "rich"):
                raise
            sys.exit(f"annattn: the command line needs {missing.name}; install it with: pip install 'annattn[cli]'")
        from cyclopts import CycloptsError

        try:
            make_app(arguments)(arguments, print_error=False, exit_on_error=False)
        except (AnnattnError, CycloptsError) as error:
            code = _failed(BAD_INPUT, f"{error} {_option_meant(arguments)}")
    except SystemExit as left:
        code = left.code
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        code = _failed(INTERRUPTED, "interrupted")
    except MemoryError as error:
        code = _failed(FAILED, f"not enough memory here: {error}")
    except RuntimeError as error:
        # torch has no error of its own for this.
        if "DefaultCPUAllocator" not in str(error):
            raise
        code = _failed(FAILED, f"not enough memory here: {str(error).rpartition('DefaultCPUAllocator: ')[2]}")
    except OSError as error:
        code = _failed(BAD_INPUT if isinstance(error, _NAMED_WRONG) else FAILED, _told(error))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _failed(FAILED, f"standard output: {_told(error)}")
    sys.exit(code)  # type: ignore[arg-type]


def _option_meant(arguments: list[str]) -> str:
    # The parser suggests commands and the options of commands, but not its own two.
    from annattn.cli.names import nearest

    return nearest(arguments[0], ("--help", "--version")) if arguments[:1] and arguments[0].startswith("-") else ""


def _told(error: OSError) -> str:
    if error.errno is None:
        return str(error)
    where = f": {error.filename}" if error.filename else ""
    return ("the disk is full" if error.errno == errno.ENOSPC else os.strerror(error.errno)) + where


def _failed(code: int, message: str) -> int:
    sys.stderr.write(f"annattn: {' '.join(message.split())}\n")
    return code
