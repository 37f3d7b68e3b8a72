"""What every task has: parameters, a sampler, labels, and a brute force that checks the labels."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.checks import LARGEST_COUNT, require_count
from annattn.errors import InputError
from annattn.tasks.splits import SPLITS, check_split, generator, rejection_sample, split_index

__all__ = ["Batch", "Task"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Labelled sequences: `inputs` and `targets` as int64, `mask` as bool, all of shape (batch, n).

    A position counts in loss and error where the mask is True. Elsewhere its target is the task's blank.

    >>> from annattn.tasks import Sum
    >>> batch = Sum(n=4, largest=9).sample(2, seed=0)
    >>> batch.inputs.shape, batch.targets.shape, batch.mask.tolist()[0]
    ((2, 4), (2, 4), [False, False, False, True])
    """

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    mask: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.inputs)


class Task(ABC):
    """A synthetic task: `sample` draws labelled sequences, `labels` labels them fast, `solve` by brute force.

    Splits partition the sequences themselves. A hash of a sequence's content, which ignores reorderings that leave the
    task unchanged, sends it to `train`, `validation` or `test`. So no seed and no amount of data can put a sequence, or
    a reordered copy of it, into two splits.

    >>> from annattn.tasks import TASKS
    >>> for name, kind in TASKS.items():
    ...     task = kind()
    ...     batch = task.sample(2, seed=0)
    ...     assert (batch.targets == task.solve(batch.inputs)).all(), name
    """

    n: int

    @property
    @abstractmethod
    def input_vocab(self) -> int:
        """The number of input symbols; every input token is below it.

        >>> from annattn.tasks import Match2
        >>> Match2(modulus=37).input_vocab
        38
        """

    @property
    @abstractmethod
    def target_vocab(self) -> int:
        """The number of target symbols; every target is below it.

        >>> from annattn.tasks import Match2
        >>> Match2(modulus=37).target_vocab
        2
        """

    @property
    @abstractmethod
    def special(self) -> Mapping[str, int]:
        """Symbols with a meaning of their own, by name.

        >>> from annattn.tasks import InductionHeads
        >>> InductionHeads(letters=4).special
        {'blank': 0, 'null': 1, 'first_letter': 2, 'zero_hops': 6}
        """

    @abstractmethod
    def labels(self, inputs: ArrayLike) -> NDArray[np.int64]:
        """Label a matrix of sequences (batch, n), or one sequence (n,), with array operations.

        >>> from annattn.tasks import Match2
        >>> Match2(n=3, modulus=7).labels([[1, 6, 2], [3, 3, 4]]).tolist()
        [[1, 1, 0], [1, 1, 1]]
        """

    @abstractmethod
    def mask(self, inputs: ArrayLike) -> NDArray[np.bool_]:
        """Say which positions of `inputs` count in loss and error.

        >>> from annattn.tasks import Sum
        >>> Sum(n=3).mask([4, 5, 6]).tolist()
        [False, False, True]
        """

    @abstractmethod
    def _solve_one(self, x: list[int]) -> list[int]:
        """Label one sequence by loops that follow the paper's definition and share no code with `labels`."""

    @abstractmethod
    def _check_tokens(self, x: NDArray[np.int64]) -> None:
        """Raise if a (batch, n) matrix has a token in a place where the task does not allow it."""

    @abstractmethod
    def _draw(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw inputs (rows, n) from the whole space, whatever their split."""

    @abstractmethod
    def _fingerprint(self, x: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Hash that part of a sequence that two splits must not share."""

    @final
    def solve(self, x: ArrayLike) -> NDArray[np.int64]:
        """Label a matrix of sequences (batch, n), or one sequence (n,), by brute force: slow, but certainly right.

        >>> from annattn.tasks import Match2
        >>> Match2(n=3, modulus=7).solve([3, 3, 4]).tolist()
        [1, 1, 1]
        """
        rows = self._rows(x)
        solved = np.array([self._solve_one(row) for row in rows.tolist()], dtype=np.int64)
        return solved.reshape(np.shape(x))

    @final
    def split_of(self, x: ArrayLike) -> list[str]:
        """Name the split of each sequence of a matrix (batch, n).

        >>> from annattn.tasks import Sum
        >>> task = Sum()
        >>> task.split_of(task.sample(2, seed=0, split="test").inputs)
        ['test', 'test']
        """
        names = list(SPLITS)
        return [names[index] for index in split_index(self._fingerprint(self._rows(x)))]

    def sample(self, batch: int, seed: int | tuple[int, ...], *, split: str = "train") -> Batch:
        """Draw a labelled batch of one split; the same arguments give the same batch on every machine.

        >>> from annattn.tasks import Sum
        >>> batch = Sum(n=4).sample(2, seed=(0, 1))  # the data of step 1 of a run with seed 0
        >>> bool((batch.inputs.sum(axis=1) == batch.targets[:, -1]).all())
        True
        """
        return self._label(self._inputs(batch, seed, split))

    @final
    def _whole(self, name: str, low: int, hint: str) -> int:
        """Turn a parameter of the task into an int of at least `low`, or raise an error that names it."""
        number = require_count(name, getattr(self, name), least=low, most=LARGEST_COUNT, hint=hint)
        object.__setattr__(self, name, number)
        return number

    @final
    def _inputs(self, batch: int, seed: int | tuple[int, ...], split: str) -> NDArray[np.int64]:
        batch = require_count("batch", batch, least=0, most=LARGEST_COUNT, hint="pass batch=32")
        rng = generator(seed, split)
        return rejection_sample(
            batch, lambda rows: self._draw(rows, rng), lambda x: self._in_split(x, split), f"split {split!r}"
        )

    @final
    def _in_split(self, x: NDArray[np.int64], split: str) -> NDArray[np.bool_]:
        return split_index(self._fingerprint(x)) == check_split(split)

    @final
    def _label(self, inputs: NDArray[np.int64]) -> Batch:
        return Batch(inputs=inputs, targets=self.labels(inputs), mask=self.mask(inputs))

    @final
    def _rows(self, x: ArrayLike) -> NDArray[np.int64]:
        """Return `x` as a checked int64 matrix (batch, n)."""
        array = np.asarray(x)
        if array.ndim not in (1, 2) or array.shape[-1] != self.n:
            raise InputError(
                "inputs",
                given=f"shape {array.shape}",
                expected=f"(batch, {self.n}) or ({self.n},)",
                hint="a task has one length: make another task with that n",
            )
        # NumPy makes an empty list float64, but it has no token that could be wrong.
        if array.size and array.dtype.kind not in "iu":
            raise InputError(
                "inputs", given=f"dtype {array.dtype}", expected="integer tokens", hint="pass inputs.astype(np.int64)"
            )
        rows = np.atleast_2d(array).astype(np.int64)
        self._check_tokens(rows)
        return rows

    @final
    def _check_range(self, tokens: NDArray[np.int64], low: int, high: int, what: str) -> None:
        """Raise if a token lies outside low..high."""
        wrong = tokens[(tokens < low) | (tokens > high)]
        if wrong.size:
            raise InputError(
                what, given=int(wrong[0]), expected=f"tokens {low} to {high}", hint=f"see how {self} writes its symbols"
            )
