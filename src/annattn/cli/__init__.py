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
    try:
        app()
    except AnnattnError as error:
        sys.stderr.write(f"annattn: {error}\n")
        sys.exit(2)
