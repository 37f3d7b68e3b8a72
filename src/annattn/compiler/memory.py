"""What a token holds when it plays a machine: its number and its mail, as one row of real numbers.

A row is (token, words per record, number of records), followed by the records: the other machine, then the words. A
word of more than 32 bits is written as two numbers of 32 bits (limbs), so that float64 holds it exactly and averages
can be undone.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annattn.mpc.model import Limits, Mail, Numbers, Words
from annattn.mpc.parts.stages import index_within

__all__ = ["LIMB_BITS", "MachineRows", "to_limbs", "to_words"]

LIMB_BITS = 32
FRONT = 3


@dataclass(frozen=True)
class MachineRows:
    """Reads and writes the rows of machines with these limits."""

    limits: Limits

    @property
    def limbs(self) -> int:
        """Numbers per word: 1, or 2 for words of more than 32 bits."""
        return 1 if self.limits.word_bits <= LIMB_BITS else 2

    @property
    def width(self) -> int:
        """The most columns a row can have: 3 + s·(1 + limbs), for s records of one word."""
        return FRONT + self.limits.memory_words * (1 + self.limbs)

    def write(self, token: Numbers, owner: Numbers, other: Numbers, words: Words) -> Tensor:
        """Rows of the given tokens with the records of each owner; tokens and owners must be in increasing order."""
        record = 1 + self.limbs * words.shape[1]
        place = index_within(owner)
        count = np.bincount(np.searchsorted(token, owner), minlength=len(token))
        rows = np.zeros((len(token), FRONT + record * int(count.max(initial=0))))
        rows[:, 0], rows[:, 1], rows[:, 2] = token, words.shape[1] * (count > 0), count
        column = FRONT + place * record
        data = np.column_stack([other, to_limbs(words, self.limbs)])
        rows[np.searchsorted(token, owner)[:, None], column[:, None] + np.arange(record)] = data
        return torch.from_numpy(rows)

    def read(self, rows: Tensor) -> tuple[Numbers, Mail]:
        """The tokens, and their records as mail: dest is the owner, src the other machine."""
        block = rows.numpy()
        token, count = block[:, 0].astype(np.int64), block[:, 2].astype(np.int64)
        width = max(1, int(block[:, 1].max(initial=0)))
        record = 1 + self.limbs * width
        index = np.repeat(np.arange(len(block)), count)
        column = FRONT + index_within(index) * record
        data = block[index[:, None], column[:, None] + np.arange(record)]
        return token, Mail(token[index], data[:, 0].astype(np.int64), to_words(data[:, 1:], self.limbs))


def to_limbs(words: Words, limbs: int) -> NDArray[np.float64]:
    """Words as real numbers; if a word takes two, the low half comes first.

    >>> to_limbs(np.array([[2**32 + 7]], dtype=np.uint64), 2)
    array([[7., 1.]])
    """
    if limbs == 1:
        return words.astype(np.float64)
    halves = np.stack([words & np.uint64(2**LIMB_BITS - 1), words >> np.uint64(LIMB_BITS)], axis=-1)
    return halves.reshape(*words.shape[:-1], 2 * words.shape[-1]).astype(np.float64)


def to_words(numbers: NDArray[np.float64] | NDArray[np.int64], limbs: int) -> Words:
    """The words that `to_limbs` wrote.

    >>> to_words(np.array([[7.0, 1.0]]), 2)
    array([[4294967303]], dtype=uint64)
    """
    whole = numbers.astype(np.uint64)
    if limbs == 1:
        return whole
    return whole[..., ::2] | (whole[..., 1::2] << np.uint64(LIMB_BITS))
