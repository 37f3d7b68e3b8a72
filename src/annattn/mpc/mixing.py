"""Shared randomness: a fixed scrambling of words that every machine computes alike."""

import numpy as np

from annattn.mpc.model import Words

__all__ = ["mixed"]


def mixed(words: Words, salt: int) -> Words:
    """Words scrambled by the finaliser of splitmix64, differently for every salt.

    >>> hex(mixed(np.zeros(1, np.uint64), salt=1)[0])  # splitmix64's first number after seed 0
    '0xe220a8397b1dcdaf'
    """
    x = words + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x
