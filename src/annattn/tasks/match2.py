"""Match2: which tokens have a partner that completes them to a multiple of M."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.checks import LARGEST_COUNT, require_count, require_flag
from annattn.tasks.base import Batch, Task
from annattn.tasks.distinct import draw_distinct
from annattn.tasks.splits import HELD_OUT_SHARE, fingerprint, generator, rejection_sample

__all__ = ["Match2"]

_BINS = 4
# A bin is filled by rejection only if at least this share of uniform sequences falls into it. A pilot must meet it
# twice as often, or the bin's sequences are constructed.
_RARE = 1 / 64
_PILOT_TOKENS = 1 << 16


@final
@dataclass(frozen=True)
class Match2(Task):
    """Definition Match2: the target at i is 1 if some j has x_i + x_j = 0 mod M, else 0.

    - j = i is allowed, so M and (for even M) M/2 match themselves.
    - The paper's text draws tokens from {1, …, 36} for M = 37, its Algorithm "Match2 Dataset Generation" from
      {1, …, M}. Here the default is the text's {1, …, M - 1}, where a match needs two tokens; `with_zero=True` is
      the Algorithm's {1, …, M}. The ids 0 and M both mean zero; the sampler writes M, `labels` and `solve` take both.
    - A batch has equally many sequences from each of four bins, by share of ones: [0, 25 %), [25 %, 50 %),
      [50 %, 75 %) and [75 %, 100 %]. `bins` lists those that n and the tokens allow. If the batch does not divide
      evenly, the first bins get one sequence more.
    - A bin is filled by rejection from uniform sequences. If fewer than about one in 32 falls into it, it is filled by
      construction: the number of ones is uniform among those of the bin, then the number of complete pairs
      {x, M - x}, then the tokens.
    - Splits partition the multisets. Permutations of a sequence, drawn or added by `originals`, stay in its split, so
      held-out data is never a permutation of training data.

    >>> Match2(n=5, modulus=10).solve([3, 7, 5, 4, 4]).tolist()
    [1, 1, 1, 0, 0]

    Args:
        n: length of a sequence, the paper's N.
        modulus: the paper's M.
        with_zero: whether the sampler also draws the token M.
    """

    n: int = 32
    modulus: int = 37
    with_zero: bool = False

    def __post_init__(self) -> None:
        require_flag("with_zero", self.with_zero)
        self._whole("n", 1, "pass n=32")
        # Without the token M there is no token at all for M = 1.
        self._whole("modulus", 1 if self.with_zero else 2, "pass modulus=37")

    @property
    def input_vocab(self) -> int:
        """The tokens 0 … M."""
        return self.modulus + 1

    @property
    def target_vocab(self) -> int:
        """No match and match."""
        return 2

    @property
    def special(self) -> Mapping[str, int]:
        """The token that the sampler writes for zero."""
        return {"zero": self.modulus}

    @property
    def bins(self) -> tuple[int, ...]:
        """Those of the bins 0 … 3 that contain at least one sequence.

        >>> Match2(n=32, modulus=37).bins, Match2(n=2, modulus=37).bins
        ((0, 1, 2, 3), (0, 3))
        """
        return tuple(b for b in range(_BINS) if len(self._counts(b)))

    def bin_of(self, targets: ArrayLike) -> NDArray[np.int64]:
        """Return the bin, 0 … 3, of each row of targets.

        >>> Match2(n=4).bin_of([[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]).tolist()
        [0, 2, 3]
        """
        ones = np.asarray(targets).sum(axis=-1)
        return np.minimum(_BINS * ones // self.n, _BINS - 1)

    def sample(
        self, batch: int, seed: int | tuple[int, ...], *, split: str = "train", originals: int | None = None
    ) -> Batch:
        """Draw a balanced batch of one split, in random order.

        With `originals`, only that many rows are drawn, and the rest are permutations of them, bin by bin. The paper's
        dataset is `sample(10_000, seed, originals=250)`, except that its 250 rows are not balanced over the bins: the
        first bin has about 0.4 % of the uniform sequences, so often there is nothing in it to permute.

        >>> task = Match2()
        >>> batch = task.sample(8, seed=0)
        >>> sorted(task.bin_of(batch.targets).tolist())
        [0, 0, 1, 1, 2, 2, 3, 3]
        """
        sizes = self._shares(require_count("batch", batch, least=0, most=LARGEST_COUNT, hint="pass batch=32"))
        fresh = dict(sizes)
        if originals is not None:
            originals = require_count(
                "originals",
                originals,
                least=min(batch, len(sizes)),
                most=LARGEST_COUNT,
                hint="take at least one per bin",
            )
            fresh = {b: min(size, sizes[b]) for b, size in self._shares(originals).items()}
        rng = generator(seed, split)
        rows = []
        for b, size in sizes.items():
            drawn = self._draw_bin(b, fresh[b], rng, split)
            copied = drawn[rng.integers(max(1, len(drawn)), size=size - len(drawn))]
            rows += [drawn, rng.permuted(copied, axis=1)]
        return self._label(rng.permutation(np.concatenate(rows)))

    def labels(self, inputs: ArrayLike) -> NDArray[np.int64]:
        """Sort the residues of all rows at once and search for each token's negative."""
        rows = self._rows(inputs)
        residues = rows % self.modulus
        # (-x) mod M, not M - x, because the partner of residue 0 is 0.
        partners = -residues % self.modulus
        offsets = np.arange(len(rows), dtype=np.int64)[:, None] * self.modulus
        present = np.sort((residues + offsets).ravel())
        wanted = (partners + offsets).ravel()
        found = np.searchsorted(present, wanted)
        matches = present[np.minimum(found, max(0, len(present) - 1))] == wanted
        return matches.astype(np.int64).reshape(np.shape(inputs))

    def mask(self, inputs: ArrayLike) -> NDArray[np.bool_]:
        """Every position counts."""
        return np.ones(np.shape(inputs), dtype=np.bool_)

    def _solve_one(self, x: list[int]) -> list[int]:
        targets = []
        for i in range(len(x)):
            match = 0
            for j in range(len(x)):
                if (x[i] + x[j]) % self.modulus == 0:
                    match = 1
            targets.append(match)
        return targets

    def _check_tokens(self, x: NDArray[np.int64]) -> None:
        self._check_range(x, 0, self.modulus, "inputs")

    def _draw(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return rng.integers(1, self.modulus + int(self.with_zero), size=(rows, self.n))

    def _fingerprint(self, x: NDArray[np.int64]) -> NDArray[np.uint64]:
        return fingerprint(x % self.modulus, ordered=False)

    @property
    def _pairs(self) -> int:
        """The number of pairs {x, M - x} of two different tokens: x = 1 … _pairs."""
        return (self.modulus - 1) // 2

    @property
    def _self_matching(self) -> list[int]:
        """Tokens that are their own partner."""
        return [self.modulus // 2] * (self.modulus % 2 == 0) + [self.modulus] * self.with_zero

    def _counts(self, b: int) -> NDArray[np.int64]:
        """Return the numbers of ones that belong to bin b and that some sequence has."""
        ones = np.arange(self.n + 1)
        zeros = self.n - ones
        # Ones are self-matching tokens or both tokens of a pair; zeros are one side of another pair.
        pairs_for_ones = np.where(ones > 0, 0 if self._self_matching else 1, 0)
        possible = (ones >= 2 * pairs_for_ones) & (pairs_for_ones + (zeros > 0) <= self._pairs)
        in_bin = np.minimum(_BINS * ones // self.n, _BINS - 1) == b
        return ones[possible & in_bin]

    def _shares(self, total: int) -> dict[int, int]:
        """Divide a number of rows evenly over the bins."""
        bins = self.bins
        return {b: total // len(bins) + (at < total % len(bins)) for at, b in enumerate(bins)}

    def _draw_bin(self, b: int, count: int, rng: np.random.Generator, split: str) -> NDArray[np.int64]:
        """Draw sequences of one bin and one split."""

        def keep(x: NDArray[np.int64]) -> NDArray[np.bool_]:
            kept = self._in_split(x, split)
            kept[kept] = self.bin_of(self.labels(x[kept])) == b
            return kept

        what = f"bin {b} of split {split!r}"
        if b in _common_bins(self):
            return rejection_sample(
                count, lambda rows: self._draw(rows, rng), keep, what, rarest=_RARE * HELD_OUT_SHARE
            )
        return rejection_sample(count, lambda rows: self._build(rows, b, rng), keep, what)

    def _build(self, rows: int, b: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Build sequences of bin b: ones from complete pairs and self-matching tokens, zeros from half pairs."""
        ones = rng.choice(self._counts(b), size=(rows, 1))
        alone = np.array(self._self_matching, dtype=np.int64)
        most = np.minimum(ones // 2, self._pairs - (ones < self.n))
        complete = rng.integers(np.where((ones > 0) & (len(alone) == 0), 1, 0), most + 1)
        # The pairs of a row in random order, each with one side in front; the first `complete` pairs give both sides.
        pairs = 1 + draw_distinct(rng, rows, min(self.n, self._pairs), self._pairs)
        front = np.where(rng.integers(2, size=pairs.shape) == 1, self.modulus - pairs, pairs)
        sides = np.stack([front, self.modulus - front], axis=2).reshape(rows, 2 * pairs.shape[1])
        choices = np.concatenate([sides, np.tile(alone, (rows, 1))], axis=1)

        slot = np.arange(self.n)
        # The ones: both sides of every complete pair once, then any of these and of the self-matching tokens.
        again = rng.integers(np.maximum(1, 2 * complete + len(alone)), size=(rows, self.n))
        again = np.where(again < 2 * complete, again, sides.shape[1] + again - 2 * complete)
        one = np.where(slot < 2 * complete, slot, again)
        # The zeros: the front side of any pair that is not complete.
        zero = 2 * rng.integers(complete, np.maximum(pairs.shape[1], complete + 1), size=(rows, self.n))
        picked = np.where(slot < ones, one, zero)
        return rng.permuted(np.take_along_axis(choices, picked, axis=1), axis=1)


@lru_cache(maxsize=256)
def _common_bins(task: Match2) -> frozenset[int]:
    """Return the bins that a fixed pilot of uniform sequences meets often enough to fill them by rejection."""
    rows = max(128, min(4096, _PILOT_TOKENS // task.n))
    pilot = task._draw(rows, np.random.default_rng(0))
    met = np.bincount(task.bin_of(task.labels(pilot)), minlength=_BINS)
    return frozenset(np.flatnonzero(met >= 2 * _RARE * rows).tolist())
