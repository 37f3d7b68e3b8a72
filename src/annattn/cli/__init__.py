"""The command line: parse, call, print."""

import errno
import os
import sys

from annattn.errors import AnnattnError
from annattn.interrupts import stopped_by_signals
from annattn.memory import ran_out

__all__ = ["main"]

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

# The user named a file that does not exist, is of the wrong kind or may not be written; other errors are the system's.
_WRONG_FILE = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def main() -> None:
    """Run the `annattn` command."""
    with stopped_by_signals():
        try:
            _run(sys.argv[1:])
        except BrokenPipeError:
            # The reader of the output is gone, so what is still in the buffer goes nowhere.
            _discard_output()
            sys.exit(FAILED)


def _run(arguments: list[str]) -> None:
    code: object = 0
    if any("\0" in argument for argument in arguments):
        sys.exit(_print_error(BAD_INPUT, "an argument with a NUL character in it: no file has such a name"))
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
            code = _print_error(BAD_INPUT, f"{error} {_suggest_option(arguments)}")
    except SystemExit as left:
        code = left.code
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        code = _print_error(INTERRUPTED, "interrupted")
    except Exception as error:
        if ran_out(error):
            said = str(error).rpartition("DefaultCPUAllocator: ")[2]
            code = _print_error(FAILED, f"not enough memory here{': ' if said else ''}{said}")
        elif isinstance(error, OSError):
            code = _print_error(BAD_INPUT if isinstance(error, _WRONG_FILE) else FAILED, _describe(error))
        else:
            raise
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk, for example
        _discard_output()
        code = _print_error(FAILED, f"standard output: {_describe(error)}")
    sys.exit(code)  # type: ignore[arg-type]


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _suggest_option(arguments: list[str]) -> str:
    # The parser suggests commands and their options, but not its own two options.
    from annattn.checks import did_you_mean

    return did_you_mean(arguments[0], ("--help", "--version")) if arguments and arguments[0].startswith("-") else ""


def _describe(error: OSError) -> str:
    if error.errno is None:
        return str(error)
    where = f": {error.filename}" if error.filename else ""
    return ("the disk is full" if error.errno == errno.ENOSPC else os.strerror(error.errno)) + where


def _print_error(code: int, message: str) -> int:
    sys.stderr.write(f"annattn: {' '.join(message.split())}\n")
    return code
