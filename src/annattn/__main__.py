"""`python -m annattn`: the command line, where a launcher wants a module."""

from annattn.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
