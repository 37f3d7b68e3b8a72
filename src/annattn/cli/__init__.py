"""The command line: parse, call, print."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the `annattn` command."""
    try:
        from annattn.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("cyclopts", "rich"):
            raise
        sys.exit(f"annattn: the command line needs {missing.name}; install it with: pip install 'annattn[cli]'")
    app()
