"""k-hop induction heads: complete the most recent bigram, k times over."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.checks import LARGEST_COUNT, require_count, require_flag
from annattn.errors import InputError
from annattn.tasks.base import Batch, Task
from annattn.tasks.splits import fingerprint

__all__ = ["KHop"]

_BLANK, _NULL, _FIRST_LETTER = 0, 1, 2


@dataclass(frozen=True)
class KHop(Task):
    """Definition k-hop induction heads: the target at letter i is w_{σ^k(w,i)}, and null where a hop does not exist.

    σ(w, i) = max({0} ∪ {j : j ≤ i, w_{j-1} = w_i}), with positions counted from 1. The definition leaves some things to
    the reader. Here they are as follows:

    - w_0 does not exist, so j starts at 2. σ = 0 means "no such letter": σ(w, 0) = 0 and w_0 is the null symbol, so
      a missing hop stays missing.
    - j = i is allowed. It happens exactly when w_{i-1} = w_i, and then σ(w, i) = i: the hop lands on its own letter
      and every further hop stays there. The rule "one after the last position before i with the same letter" gives the
      same i.
    - By default (`repeats=False`) every letter differs from the one before, which rules that out: every hop moves back.
      `repeats=True` draws every letter uniformly and independently.
    - k = 0 is no hop: the target is the letter itself.

    A sequence is the hop count as first token, followed by n - 1 letters. A target starts with the blank and uses the
    letters' own ids. Training batches draw k from `asked_from` … `asked_to`, held-out ones use k = hops. The defaults,
    0 … hops, are those of the data set that the paper takes; equal ones ask for the same number of hops every time.
    All positions count, as in the paper; `targets != task.special["null"]` picks those that have an answer. Splits
    partition the words: a word is never in two splits, whatever hop count comes before it.

    >>> task = KHop(n=10, letters=3, hops=2)
    >>> one, two = task.encode("aabcbabca", hops=1), task.encode("aabcbabca", hops=2)
    >>> task.decode(task.solve(one)), task.decode(task.solve(two))
    ('_.a..cbabb', '_.a....bca')
    >>> KHop(hops=4, asked_from=3).sample(6, seed=0).inputs[:, 0].tolist()  # 6 is the token for no hops
    [10, 10, 9, 9, 10, 10]

    Args:
        n: length of a sequence, including the first token.
        letters: size of the alphabet.
        hops: the largest hop count.
        repeats: whether a letter may equal the one before it.
        asked_from: the smallest hop count in training batches.
        asked_to: the largest one there; None is `hops`.
        favour_many: training batches ask for the larger of two counts drawn from that range, so that the largest, which
            takes longest to learn, comes about twice as often, and the smallest is not forgotten.
    """

    n: int = 100
    letters: int = 4
    hops: int = 4
    repeats: bool = False
    asked_from: int = 0
    asked_to: int | None = None
    favour_many: bool = False

    def __post_init__(self) -> None:
        require_flag("repeats", self.repeats)
        require_flag("favour_many", self.favour_many)
        self._whole("n", 2, "pass n=100: one hop count and 99 letters")
        self._whole("letters", 1 if self.repeats else 2, "pass letters=4")
        self._whole("hops", 0, "pass hops=1 for induction heads")
        for name in ("asked_from", "asked_to"):
            if getattr(self, name) is not None:
                self._whole(name, 0, f"pass {name}={self.hops} to ask for {self.hops} hops")
        if not self.asked_from <= self._most_asked <= self.hops:
            given = f"{self.asked_from} to {self._most_asked}"
            raise InputError("hops asked for in training", given=given, expected=f"a range within 0 to {self.hops}")

    @property
    def input_vocab(self) -> int:
        """Blank, null, the letters, and one token per hop count from 0."""
        return _FIRST_LETTER + self.letters + self.hops + 1

    @property
    def target_vocab(self) -> int:
        """Blank, null and the letters."""
        return _FIRST_LETTER + self.letters

    @property
    def special(self) -> Mapping[str, int]:
        """The blank, the null symbol, the first letter, and the token for zero hops; k hops are k more."""
        return {
            "blank": _BLANK,
            "null": _NULL,
            "first_letter": _FIRST_LETTER,
            "zero_hops": _FIRST_LETTER + self.letters,
        }

    def encode(self, word: str, hops: int) -> NDArray[np.int64]:
        """Encode a word of the letters a, b, c, … as a sequence that asks for `hops` hops.

        >>> KHop(n=4, letters=3, hops=1).encode("cab", hops=1).tolist()
        [6, 4, 2, 3]
        """
        tokens = np.array([self._hop_token(hops), *(ord(letter) - ord("a") + _FIRST_LETTER for letter in word)])
        return self._rows(tokens)[0]

    def decode(self, row: ArrayLike) -> str:
        """Decode letters to a, b, c, …, the blank to _, the null symbol to . and k hops to the number k.

        >>> KHop(n=4, letters=3, hops=1).decode([6, 4, 2, 3])
        '1cab'
        """
        names = ["_", ".", *(chr(ord("a") + letter) for letter in range(self.letters))]
        names += [str(hops) for hops in range(self.hops + 1)]
        tokens = np.asarray(row)
        self._check_range(tokens, 0, len(names) - 1, "row")
        return "".join(names[token] for token in tokens.tolist())

    def sample(
        self, batch: int, seed: int | tuple[int, ...], *, split: str = "train", hops: int | None = None
    ) -> Batch:
        """Draw a labelled batch of one split; `hops` gives all its rows the same hop count.

        >>> KHop(n=100, hops=4).sample(3, seed=0, split="test").inputs[:, 0].tolist()
        [10, 10, 10]
        """
        inputs = self._inputs(batch, seed, split)
        if hops is None and split != "train":
            hops = self.hops
        if hops is not None:
            inputs[:, 0] = self._hop_token(hops)
        return self._label(inputs)

    def labels(self, inputs: ArrayLike) -> NDArray[np.int64]:
        """Find the previous occurrence of every letter by one stable sort, then compose hops by doubling."""
        x = self._rows(inputs)
        # Index i of a row is the paper's position i. Index 0, where the hop count is, plays the missing w_0.
        word = x.copy()
        word[:, 0] = _NULL
        hop = _sigma(word)
        at = np.broadcast_to(np.arange(self.n), x.shape)
        left = x[:, 0] - self.special["zero_hops"]
        while left.any():
            at = np.where((left & 1).astype(np.bool_)[:, None], np.take_along_axis(hop, at, axis=1), at)
            left >>= 1
            if left.any():
                hop = np.take_along_axis(hop, hop, axis=1)
        targets = np.take_along_axis(word, at, axis=1)
        targets[:, 0] = _BLANK
        return targets.reshape(np.shape(inputs))

    def mask(self, inputs: ArrayLike) -> NDArray[np.bool_]:
        """Every position counts, including the first."""
        return np.ones(np.shape(inputs), dtype=np.bool_)

    def _solve_one(self, x: list[int]) -> list[int]:
        k = x[0] - self.special["zero_hops"]
        w = x  # w[1] is the first letter: the hop count before it makes Python count from 1 as the paper does
        targets = [_BLANK]
        for i in range(1, len(w)):
            position = i
            for _ in range(k):
                candidates = [0]
                for j in range(2, position + 1):
                    if w[j - 1] == w[position]:
                        candidates.append(j)
                position = max(candidates)
            targets.append(w[position] if position > 0 else _NULL)
        return targets

    def _check_tokens(self, x: NDArray[np.int64]) -> None:
        zero_hops = self.special["zero_hops"]
        self._check_range(x[:, :1], zero_hops, zero_hops + self.hops, "first token (the hop count)")
        self._check_range(x[:, 1:], _FIRST_LETTER, zero_hops - 1, "letters")

    def _draw(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        x = np.empty((rows, self.n), dtype=np.int64)
        asked = rng.integers(self.asked_from, self._most_asked + 1, size=(1 + self.favour_many, rows))
        x[:, 0] = self.special["zero_hops"] + asked.max(axis=0)
        if self.repeats:
            x[:, 1:] = _FIRST_LETTER + rng.integers(self.letters, size=(rows, self.n - 1))
            return x
        # Steps of 1 … letters - 1 around the alphabet reach every letter but the last one, all equally often.
        steps = rng.integers(1, self.letters, size=(rows, self.n - 1))
        steps[:, 0] = rng.integers(self.letters, size=rows)
        x[:, 1:] = _FIRST_LETTER + np.cumsum(steps, axis=1) % self.letters
        return x

    def _fingerprint(self, x: NDArray[np.int64]) -> NDArray[np.uint64]:
        return fingerprint(x[:, 1:], ordered=True)

    @property
    def _most_asked(self) -> int:
        return self.hops if self.asked_to is None else self.asked_to

    def _hop_token(self, hops: int) -> int:
        if require_count("hops", hops, least=0, most=LARGEST_COUNT, hint=f"pass hops={self.hops}") > self.hops:
            raise InputError("hops", given=hops, expected=f"at most {self.hops}", hint=f"make KHop(hops={hops})")
        return self.special["zero_hops"] + hops


def _sigma(word: NDArray[np.int64]) -> NDArray[np.int64]:
    """Compute σ(w, i) for every column i ≥ 1 of rows whose column 0 equals no letter; σ(w, 0) = 0."""
    # NumPy sorts 16-bit integers by radix, which is several times faster.
    narrow = word.astype(np.int16) if word.max(initial=0) < 2**15 else word
    order = np.argsort(narrow, axis=1, kind="stable")
    sorted_word = np.take_along_axis(narrow, order, axis=1)
    after_previous = np.zeros_like(word)
    after_previous[:, 1:] = np.where(sorted_word[:, 1:] == sorted_word[:, :-1], order[:, :-1] + 1, 0)
    hop = np.empty_like(word)
    np.put_along_axis(hop, order, after_previous, axis=1)
    return hop
