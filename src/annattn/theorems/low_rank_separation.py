"""The separation from low-rank attention and recurrent networks on k-hop: what a decoder's state must hold.

The paper cites: a recurrent network or low-rank attention that solves k-hop has depth Ω(k) or memory Ω(N/k⁶). For
decoders, which read the word once from left to right, more can be shown by counting. A decoder of causal low-rank
attention keeps r·m numbers per layer and head, Σ_j k_j v_jᵀ; a recurrent network keeps its state. Let A letters be
keys, and let the word spell (a, f(a)) for all keys a and any f: keys → {x, y}. Whichever key comes next, its answer is
f of it. So two different f must leave the decoder in different states. There are 2^A of them, hence the state, of all
layers together, has at least A = N/2 bits, whatever the depth.

The row counts the states by trying all f, builds the smallest decoder it knows, which keeps k answers per letter, and
puts beside it what ANNA needs for the same word: layers, and the words of one machine.
"""

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from annattn.mpc.model import Words
from annattn.mpc.protocols import KHop
from annattn.mpc.protocols.induction_head import NOTHING, hop_letters
from annattn.theorems.verdict import Effort, Progress, Trials, Verdict, at_most, exactly, exponent, silent

__all__ = ["Decoder", "answers_after", "row"]

PLANNED = [2**e for e in range(10, 21, 2)]
KEYS = {"tiny": 4, "quick": 10, "full": 13}
SIZES = {"tiny": [16, 64], "quick": [16, 64, 256, 1024], "full": [16, 64, 256, 1024, 4096]}
HOPS = [1, 2, 4, 8]
MEMORY, ROOM = 0.75, 12


class Decoder:
    """Solves k-hop reading once: for every letter a, the answers for 0 … k-1 hops at the place after the latest a.

    k-hop at i is (k-1)-hop at σ(i), the place after the latest w_i, and that answer was known there. So the state is k
    letters per letter of the alphabet.

    >>> decoder = Decoder(letters=3, k=2)
    >>> [decoder.read("abc".index(letter)) for letter in "aabcbabca"][-1], decoder.state_letters
    (0, 6)
    """

    def __init__(self, letters: int, k: int) -> None:
        self.known = np.full((letters, k), int(NOTHING), np.uint64)
        self.before: int | None = None

    @property
    def state_letters(self) -> int:
        """The letters it keeps."""
        return self.known.size

    def read(self, letter: int) -> int:
        """The answer at the next place."""
        if self.before == letter:
            # The place after the latest occurrence is this one, so every hop stays here.
            answers = [letter] * (self.known.shape[1] + 1)
        else:
            answers = [letter, *self.known[letter].tolist()]
        if self.before is not None:
            self.known[self.before] = answers[:-1]
        self.before = letter
        return answers[-1]


def answers_after(keys: int, follows: tuple[int, ...]) -> tuple[int, ...]:
    """What every key would be answered after the word that spells (a, f(a)) for all keys a.

    >>> answers_after(2, (3, 2))
    (3, 2)
    """
    word = np.array([letter for key, value in enumerate(follows) for letter in (key, value)], np.uint64)
    return tuple(int(hop_letters(np.append(word, np.uint64(key)), 1)[-1]) for key in range(keys))


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """A decoder's state for k-hop grows like N; ANNA's layers grow like log k and its machines hold N^(3/4) words.

    >>> row("tiny").holds
    True
    """
    trials, bounds, notes = Trials(), [], []
    keys = KEYS[effort]
    progress(f"all words of {keys} keys")
    seen = {answers_after(keys, f) for f in itertools.product((keys, keys + 1), repeat=keys)}
    bounds.append(exactly("bits of state", math.log2(len(seen)), keys, "N/2", f"N = {2 * keys}, every decoder"))
    for n in SIZES[effort]:
        for k, letters in itertools.product(HOPS, (3, max(4, n // 4))):
            progress(f"decoding, N = {n}, k = {k}, {letters} letters")
            word = np.random.default_rng(n + k).integers(0, letters, n, dtype=np.uint64)
            decoder = Decoder(letters, k)
            trials.add(np.array_equal(_decoded(decoder, word), hop_letters(word, k)))
            at = f"N = {n:,}, k = {k}, {letters} letters"
            bounds.append(
                exactly("letters in the built decoder's state", decoder.state_letters, k * letters, "k·letters", at)
            )
    layers = []
    for n in PLANNED:
        memory, at = int(ROOM * n**MEMORY), f"N = {n:,}"
        for k in HOPS:
            built = KHop(n, memory, k=k)
            layers.append(built.rounds + 1)
            bounds.append(
                at_most(
                    "layers of ANNA",
                    layers[-1],
                    2 * math.log2(k) + KHop(n, memory).rounds + 1,
                    "2·log2 k + those of k = 1",
                    f"{at}, k = {k}",
                )
            )
        notes.append(
            f"N = {n:,}: a decoder keeps at least {n // 2:,} bits; the cited N/k⁶ is {n / 2**6:,.0f} for k = 2 and "
            f"{n / 4**6:,.3g} for k = 4; ANNA takes {layers[-1]} layers for k = {HOPS[-1]}, with s = {memory:,} words"
        )
    constant = layers[:: len(HOPS)]
    return trials.verdict(
        "Low-rank attention and recurrent networks need large states for k-hop",
        f"every word (a, f(a)) of {keys} keys; a decoder that keeps k letters per letter; k-hop on machines of "
        f"{ROOM}·N^{MEMORY:g} words",
        sizes=SIZES[effort],
        planned=PLANNED,
        bounds=bounds,
        exponents=[exponent("layers of ANNA for k = 1", PLANNED, constant, 0, "0")],
        notes=notes[:: len(notes) - 1],
    )


def _decoded(decoder: Decoder, word: Words) -> NDArray[np.uint64]:
    return np.array([decoder.read(int(letter)) for letter in word], np.uint64)
