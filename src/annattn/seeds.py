"""Seeds: which numbers are accepted, how one seed gives several, and the scrambling of words that hashing needs."""

from typing import Any

import numpy as np

from annattn.errors import InputError

__all__ = ["LARGEST_SEED", "check_seed", "derive_seed", "scramble", "splitmix64"]

LARGEST_SEED = 2**63 - 1

_GOLDEN = 0x9E3779B97F4A7C15  # the step of splitmix64: 2^64 over the golden ratio


def check_seed(seed: Any) -> int:
    """A seed as a Python int, or an error: 0 to 2^63 - 1.

    >>> check_seed(3)
    3
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= LARGEST_SEED:
        raise InputError("seed", given=repr(seed), expected="an integer from 0 to 2^63 - 1")
    return int(seed)


def derive_seed(seed: int, *path: int) -> int:
    """A seed of its own for each path (a layer, a draw), of 32 bits.

    >>> derive_seed(0, 1) != derive_seed(0, 2)
    True
    """
    return int(np.random.SeedSequence([check_seed(seed), *path]).generate_state(1, np.uint32)[0])


def splitmix64(x: Any) -> Any:
    """The finaliser of splitmix64: a bijection of 64-bit words whose low bits depend on all bits.

    Takes an array of uint64; kernels compile this very function.

    >>> hex(splitmix64(np.array([0x9E3779B97F4A7C15], np.uint64))[0])  # its first number after seed 0
    '0xe220a8397b1dcdaf'
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def scramble(words: np.ndarray, salt: int) -> np.ndarray:
    """Words scrambled differently for each salt, the same everywhere: randomness that machines share.

    >>> scramble(np.zeros(1, np.uint64), salt=1)
    array([16294208416658607535], dtype=uint64)
    """
    return splitmix64(words + np.uint64(salt * _GOLDEN % 2**64))
