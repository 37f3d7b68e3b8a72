"""What every protocol in this folder knows about itself."""

from abc import abstractmethod
from collections.abc import Iterable
from difflib import get_close_matches
from inspect import signature
from typing import Any

import numpy as np

from annattn.errors import InputError, LeastMemoryError
from annattn.mpc.model import Words, whole
from annattn.mpc.parts.stages import Staged, least_memory

__all__ = ["Problem", "check_places", "in_both_orders", "of_few_records", "random_words"]


class Problem(Staged):
    """A protocol for n records and machines of `memory_words` words that knows the answer it should give.

    It is made by `Name(n, memory_words, **parameters)`. It has stages, a formula for its rounds, the published bound, a
    test for how much memory is enough, random inputs, and an independent, obvious oracle.
    """

    n: int
    bound: str
    """The number of rounds in the paper or the textbook, as text."""

    @abstractmethod
    def __init__(self, n: int, memory_words: int, **parameters: Any) -> None: ...

    @classmethod
    @abstractmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether machines with this memory are enough; if so, any larger memory must be enough too."""

    @abstractmethod
    def round_formula(self) -> int:
        """The number of rounds by a formula of n and the memory; the tests compare it with what runs."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Words:
        """A random input."""

    def variants(self, rng: np.random.Generator) -> dict[str, Words]:
        """Inputs by name that the shared tests try: random, in order, in reverse, of one record, of two.

        A protocol whose input has structure, such as a graph or a permutation, says here which ones are worth trying.
        """
        words = self.sample(rng)
        return in_both_orders(words) | of_few_records(words)

    @abstractmethod
    def oracle(self, words: Words) -> Any:
        """The right answer, computed in the most obvious way."""

    def agrees(self, output: Any, expected: Any) -> bool:
        """Whether an output is the right answer; equal, unless the protocol computes with real numbers."""
        return np.array_equal(output, expected)

    @classmethod
    def least_memory(cls, n: int, **parameters: Any) -> int:
        """The least memory, in words per machine, for n records."""
        n = whole("n", n)
        cls.check_names(parameters)
        return least_memory(lambda words: cls.fits(n, words, **parameters))

    @classmethod
    def parameters(cls) -> list[str]:
        """The names of the protocol's parameters besides n and memory_words.

        >>> from annattn.mpc.protocols import Sort
        >>> Sort.parameters()
        ['width', 'word_bits', 'seed']
        """
        return list(signature(cls).parameters)[2:]

    @classmethod
    def check_names(cls, parameters: Iterable[str]) -> None:
        """Refuse parameters that the protocol does not have."""
        known = cls.parameters()
        for name in parameters:
            if name not in known:
                expected = f"one of {', '.join(known)}" if known else "no parameters besides n and memory_words"
                near = get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else ""
                raise InputError(f"parameter of {cls.__name__}", given=name, expected=expected, hint=hint)

    def _require(self, n: int, memory_words: int, **parameters: Any) -> tuple[int, int]:
        n, memory_words = whole("n", n), whole("memory_words", memory_words, low=-(2**62), high=2**62)
        if memory_words < 1 or not self.fits(n, memory_words, **parameters):
            least = self.least_memory(n, **parameters)
            raise LeastMemoryError(type(self).__name__, n=n, memory_words=memory_words, least=least)
        return n, memory_words


def in_both_orders(words: Words) -> dict[str, Words]:
    """The input as it is, in increasing order, and in decreasing order.

    >>> in_both_orders(np.array([2, 1], np.uint64))["reversed"]
    array([2, 1], dtype=uint64)
    """
    rows = words.reshape(len(words), -1)
    ordered = rows[np.lexsort(rows.T[::-1])].reshape(words.shape)
    return {"random": words, "sorted": ordered, "reversed": ordered[::-1].copy()}


def of_few_records(words: Words) -> dict[str, Words]:
    """Inputs of the same size in which all records are the first one, or take turns with the last.

    >>> of_few_records(np.array([2, 1, 0], np.uint64))["two"]
    array([2, 0, 2], dtype=uint64)
    """
    place = np.arange(len(words))
    return {"equal": words[0 * place], "two": words[place % 2 * (len(words) - 1)]}


def check_places(n: int, word_bits: int) -> None:
    """Refuse words too small to hold the places 0 … n-1.

    >>> check_places(256, word_bits=8)
    """
    need = max(1, (n - 1).bit_length())
    if whole("word_bits", word_bits, high=64) < need:
        raise InputError("word_bits", given=word_bits, expected=f"at least {need}: places up to {n - 1} are words too")


def random_words(rng: np.random.Generator, shape: int | tuple[int, ...], word_bits: int) -> Words:
    """Uniform words of p bits.

    >>> random_words(np.random.default_rng(0), 3, 8).max() < 256
    np.True_
    """
    return rng.integers(0, 2**word_bits, shape, dtype=np.uint64, endpoint=False)
