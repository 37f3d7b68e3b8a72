"""Names of machines, used as queries and keys, and hash functions that tell them apart."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annattn.attention import plan
from annattn.errors import CompileError
from annattn.lsh import Euclidean, Hasher

__all__ = ["Identifiers", "separating_hasher"]


@dataclass(frozen=True)
class Identifiers:
    """Names of q machines, and two more names that match nothing, each as ⌈log2(q + 2)⌉ signs.

    >>> names = Identifiers(2)
    >>> names.width, names([0, 1])
    (2, tensor([[-1., -1.], [ 1., -1.]], dtype=torch.float64))
    """

    machines: int

    @property
    def width(self) -> int:
        """The number of signs in a name: ⌈log2(q + 2)⌉."""
        return (self.machines + 1).bit_length()

    @property
    def silent(self) -> int:
        """The key of a token that sends nothing."""
        return self.machines

    @property
    def deaf(self) -> int:
        """The query of a token that plays no machine."""
        return self.machines + 1

    def __call__(self, number: NDArray[np.int64] | list[int]) -> Tensor:
        """The names of these machines, one per row."""
        bits = np.asarray(number, np.int64)[:, None] >> np.arange(self.width) & 1
        return torch.from_numpy(2.0 * bits - 1.0)


def separating_hasher(names: Identifiers, *, failure: float = 0.01, attempts: int = 20) -> Hasher:
    """Hash functions that put no two names into one bucket of any table: planned, drawn, and checked on every name.

    Different names are at least 2 apart. For the planner that means r → 0 and c·r = 2: the paper remarks that EMA is
    ANNA with r = 0 and c → ∞. All queries and keys of a compiled protocol are names, so checking the q + 2 names
    covers every pair that can occur.

    >>> hasher = separating_hasher(Identifiers(6))
    >>> hasher.tables
    1
    """
    family = Euclidean(names.width, width=1.0)
    radius = 1e-15
    found = plan(names.machines + 2, family, radius=radius, approximation=2 / radius, failure=failure)
    everyone = names(list(range(names.machines + 2)))
    for seed in range(attempts):
        hasher = family.sample(tables=found.tables, hashes=found.hashes, seed=seed)
        (codes,) = hasher.joint_codes(everyone)
        if all(len(torch.unique(table)) == len(everyone) for table in codes.unbind(-1)):
            return hasher
    raise CompileError(
        "hash functions",
        given=f"{attempts} draws of {found.tables} tables of {found.hashes} hashes",
        expected=f"one that separates {len(everyone)} names",
        hint="ask for a smaller failure",
    )
