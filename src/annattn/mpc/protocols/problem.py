"""What every protocol of this folder can tell about itself."""

from abc import abstractmethod
from typing import Any

import numpy as np

from annattn.errors import InputError, LeastMemoryError
from annattn.mpc.model import Words
from annattn.mpc.parts.stages import Staged, least_memory

__all__ = ["Problem", "positive", "random_words"]


class Problem(Staged):
    """A protocol made for n records and machines of `memory_words` words that knows the answer it should give.

    It is made as `Name(n, memory_words, **parameters)`. Its parts: the stages, the round count as a formula and the
    published bound beside it, the least memory it can live with, random inputs and an independent, obvious oracle.
    """

    n: int
    bound: str
    """The round count of the paper or the textbook, as text."""

    @abstractmethod
    def __init__(self, n: int, memory_words: int, **parameters: Any) -> None: ...

    @classmethod
    @abstractmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether machines of this memory are enough; true for more memory once it is true."""

    @abstractmethod
    def round_formula(self) -> int:
        """The rounds by formula, from n and the memory alone; the tests compare it with what runs."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Words:
        """A random input."""

    @abstractmethod
    def oracle(self, words: Words) -> Any:
        """The right answer, found in the most obvious way."""

    def agrees(self, output: Any, expected: Any) -> bool:
        """Whether an output is the right answer: equal, unless the protocol computes with real numbers."""
        return np.array_equal(output, expected)

    @classmethod
    def least_memory(cls, n: int, **parameters: Any) -> int:
        """The least words a machine needs for n records."""
        return least_memory(lambda words: cls.fits(n, words, **parameters))

    def _require(self, n: int, memory_words: int, **parameters: Any) -> None:
        positive("n", n)
        if memory_words < 1 or not self.fits(n, memory_words, **parameters):
            least = self.least_memory(n, **parameters)
            raise LeastMemoryError(type(self).__name__, n=n, memory_words=memory_words, least=least)


def positive(name: str, value: int) -> int:
    """The value, refused unless it is at least 1.

    >>> positive("k", 3)
    3
    """
    if value < 1:
        raise InputError(name, given=value, expected="an integer of at least 1")
    return value


def random_words(rng: np.random.Generator, shape: int | tuple[int, ...], word_bits: int) -> Words:
    """Uniform words of p bits.

    >>> random_words(np.random.default_rng(0), 3, 8).max() < 256
    np.True_
    """
    return rng.integers(0, 2**word_bits, shape, dtype=np.uint64, endpoint=False)
