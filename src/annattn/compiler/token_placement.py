"""The token machines, which hold the rows of tokens while a protocol computes a transformer."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from annattn.errors import CompileError
from annattn.mpc.model import Numbers
from annattn.mpc.parts.stages import index_within

__all__ = ["TokenPlacement", "padded"]


@dataclass(frozen=True)
class TokenPlacement:
    """Tokens 0 … n-1, `per_machine` on each of the first ⌈n / per_machine⌉ machines.

    >>> TokenPlacement(tokens=5, per_machine=2).machines
    3
    """

    tokens: int
    per_machine: int

    @property
    def machines(self) -> int:
        """The number of token machines."""
        return -(-self.tokens // self.per_machine)

    def machine_of(self, token: Numbers) -> Numbers:
        """The machine of each token."""
        return token // self.per_machine

    def tokens_of(self, machine: Numbers) -> Numbers:
        """The tokens, given the machine of each one, in order."""
        return machine * self.per_machine + index_within(machine)


def padded(x: Tensor, width: int) -> NDArray[np.float64]:
    """Rows as float64, padded with zeros to the declared width."""
    if x.ndim != 2 or x.shape[1] > width:
        raise CompileError("rows", given=f"shape {tuple(x.shape)}", expected=f"at most {width} columns")
    rows = np.zeros((len(x), width))
    rows[:, : x.shape[1]] = x.double().numpy()
    return rows
