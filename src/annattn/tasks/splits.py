"""Which split a sequence belongs to: decided by its content, not by the order of drawing."""

import operator
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from annattn.errors import InputError
from annattn.seeds import splitmix64

__all__ = ["HELD_OUT_SHARE", "SPLITS", "check_split", "fingerprint", "generator", "rejection_sample", "split_index"]

SPLITS: dict[str, int] = {"train": 12, "validation": 2, "test": 2}
"""Sixteenths of the space of sequences. Choose a recipe on one of the held-out parts, and report on the other."""

_SIXTEENTHS = np.repeat(np.arange(len(SPLITS)), list(SPLITS.values()))
HELD_OUT_SHARE = 2 / 16
# Tokens drawn at once: enough to make NumPy calls worth it, few enough for any memory.
_CHUNK_TOKENS = 1 << 20


def fingerprint(rows: NDArray[np.int64], *, ordered: bool) -> NDArray[np.uint64]:
    """Hash every row to 64 bits; with `ordered=False`, all permutations of a row have the same hash.

    >>> import numpy as np
    >>> a, b = fingerprint(np.array([[1, 2, 3], [3, 1, 2]]), ordered=False)
    >>> bool(a == b)
    True
    >>> a, b = fingerprint(np.array([[1, 2, 3], [3, 1, 2]]), ordered=True)
    >>> bool(a == b)
    False
    """
    # Adding 1 keeps token 0 away from the scrambler's fixed point.
    words = splitmix64((rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    if ordered:
        # Multiplying by an odd factor is one-to-one modulo 2^64. A factor per position makes the sum depend on order.
        words *= splitmix64(np.arange(1, rows.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
    return splitmix64(words.sum(axis=1, dtype=np.uint64))


def split_index(fingerprints: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the index in `SPLITS` of the split of each fingerprint.

    >>> import numpy as np
    >>> index = split_index(fingerprint(np.arange(100_000)[:, None], ordered=True))
    >>> (np.bincount(index) / 100_000).round(2).tolist()
    [0.75, 0.13, 0.12]
    """
    return _SIXTEENTHS[(fingerprints >> np.uint64(60)).astype(np.int64)]


def check_split(split: str) -> int:
    """Return the index of a split; the error for an unknown one lists all.

    >>> check_split("validation")
    1
    """
    if split not in SPLITS:
        raise InputError("split", given=repr(split), expected=f"one of {', '.join(SPLITS)}", hint='pass split="train"')
    return list(SPLITS).index(split)


def generator(seed: int | tuple[int, ...], split: str) -> np.random.Generator:
    """Make the random generator of a seed and a split; every tuple such as (seed, step) has its own stream.

    >>> numbers = [int(generator(seed, "train").integers(2**60)) for seed in (7, (7, 0), (7, 1), 7)]
    >>> numbers[0] == numbers[3], len(set(numbers))
    (True, 3)
    """
    try:
        words = tuple(operator.index(word) for word in (seed if isinstance(seed, tuple) else (seed,)))
    except TypeError:
        words = ()
    if not words or min(words) < 0:
        raise InputError(
            "seed",
            given=repr(seed),
            expected="an integer of at least 0 or a tuple of them",
            hint="pass seed=0, or seed=(0, step) for fresh data at every training step",
        )
    return np.random.default_rng(np.random.SeedSequence(words[0], spawn_key=(check_split(split), *words[1:])))


def rejection_sample(
    count: int,
    draw: Callable[[int], NDArray[np.int64]],
    keep: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
    what: str,
    rarest: float = HELD_OUT_SHARE,
) -> NDArray[np.int64]:
    """Draw rows until `count` of them are kept; raise if `what` proves much rarer than the share `rarest`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> draw, falls = lambda rows: rng.integers(9, size=(rows, 2)), lambda x: x[:, 0] > x[:, 1]
    >>> rejection_sample(3, draw, falls, "falling pairs").shape
    (3, 2)
    """
    kept = [draw(0)]
    width = max(1, kept[0].shape[1])
    missing, misses, wanted = count, 0, 2 * count + 16
    while missing > 0:
        rows = draw(max(1, min(wanted, _CHUNK_TOKENS // width)))
        hits = rows[keep(rows)][:missing]
        kept.append(hits)
        missing -= len(hits)
        misses = 0 if len(hits) else misses + len(rows)
        # If its share is `rarest`, this happens with probability below e^-64.
        if misses * rarest >= 64:
            raise InputError(
                "sample",
                given=f"{misses} drawn sequences outside {what}",
                expected=f"some sequences inside {what}",
                hint="take longer sequences or more symbols, so that some can be held out",
            )
        # Draw a little more than the observed rate asks for, so that the next round is usually the last.
        rate = max(len(hits), 1) / len(rows)
        wanted = int(1.1 * missing / rate) + 8
    return np.concatenate(kept)
