"""The command line: parse, call, print."""

import sys

from annattn.errors import AnnattnError

__all__ = ["main"]


def main() -> None:
    """Run the `annattn` command."""
    try:
        from annattn.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("cyclopts", "rich"):
            raise
        sys.exit(f"annattn: the command line needs {missing.name}; install it with: pip install 'annattn[cli]'")
    from cyclopts import CycloptsError

    try:
        app(sys.argv[1:], print_error=False, exit_on_error=False)
    except (AnnattnError, CycloptsError) as error:
        sys.exit(_failed(2, " ".join(str(error).split())))
    except MemoryError as error:
        sys.exit(_failed(1, f"not enough memory here: {error}"))


def _failed(code: int, message: str) -> int:
    sys.stderr.write(f"annattn: {message}\n")
    return code
