"""Facts in real text, and questions about them: in the manner of RULER's niah_single and niah_multikey."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from annattn.checks import require_count
from annattn.errors import InputError
from annattn.experiments.text.model import TextModel
from annattn.tasks.distinct import draw_distinct

__all__ = ["Answers", "Haystack", "ask", "plant_twice"]

_KEY, _VALUE = 6, 6  # letters and digits
_BEFORE, _BETWEEN, _AFTER = b"\nThe magic number of ", b" is ", b".\n"
_QUESTION = len(_BEFORE) + _KEY + len(_BETWEEN)
FACT = _QUESTION + _VALUE + len(_AFTER)
"""Bytes of a fact: «The magic number of qwerty is 123456.» on a line of its own."""
BLOCK = 16_384
"""Bytes read at a time."""


def draw_facts(count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """So many facts with different keys, as bytes (count, FACT).

    >>> bytes(draw_facts(1, np.random.default_rng(0))[0]).split()[:4]
    [b'The', b'magic', b'number', b'of']
    """
    codes = draw_distinct(rng, 1, count, 26**_KEY)[0]
    facts = np.empty((count, FACT), np.uint8)
    facts[:] = np.frombuffer(_BEFORE + b"a" * _KEY + _BETWEEN + b"0" * _VALUE + _AFTER, np.uint8)
    for place in range(_KEY):
        facts[:, len(_BEFORE) + place] += (codes // 26**place % 26).astype(np.uint8)
    facts[:, _QUESTION : _QUESTION + _VALUE] += rng.integers(10, size=(count, _VALUE), dtype=np.uint8)
    return facts


def plant_twice(
    rows: NDArray[np.int64], most: int, seed: int | tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Excerpts with 1 to `most` facts each, every one of them twice; and where the second time its answer stands.

    >>> rows, answers = plant_twice(np.zeros((2, 400), np.int64), 3, seed=0)
    >>> bool((answers.sum(1) % 6 == 0).all() and answers.any(1).all())
    True
    """
    rng = np.random.default_rng(seed)
    rows, answers = rows.copy(), np.zeros(rows.shape, bool)
    slots = rows.shape[1] // FACT
    for row, marked in zip(rows, answers, strict=True):
        count = int(rng.integers(1, min(most, slots // 2) + 1))
        facts = draw_facts(count, rng)
        # All first times before all second times would teach where to look; so each has its own two places.
        places = rng.permutation(slots)[: 2 * count].reshape(count, 2)
        places.sort(axis=1)
        starts = places * FACT + rng.integers(rows.shape[1] - slots * FACT + 1)
        for fact, (first, second) in zip(facts, starts, strict=True):
            for start in (first, second):
                row[start : start + FACT] = fact
            marked[second + _QUESTION : second + _QUESTION + _VALUE] = True
    return rows, answers


@dataclass(frozen=True, eq=False)
class Haystack:
    """Text with facts in it, and the facts in the order in which they are asked for.

    - depth: where each fact begins, as a share of the text.

    >>> hay = Haystack.make(np.zeros(5000, np.uint8), facts=3, seed=0)
    >>> hay.text.shape, hay.facts.shape, hay.depth.shape
    ((5000,), (3, 39), (3,))
    """

    text: NDArray[np.uint8]
    facts: NDArray[np.uint8]
    depth: NDArray[np.float64]

    @classmethod
    def make(cls, text: NDArray[np.uint8], facts: int, seed: int) -> "Haystack":
        """Overwrite places of the text, drawn at random, with facts; asked for in an order of its own."""
        facts = require_count("facts", facts)
        slots = len(text) // FACT
        if 2 * facts > slots:
            raise InputError(
                "facts",
                given=f"{facts} in {len(text):,} bytes",
                expected=f"at most {slots // 2}: a fact has {FACT} bytes, and half the text stays",
            )
        rng = np.random.default_rng([seed, len(text), facts])
        drawn, text = draw_facts(facts, rng), text.copy()
        # One fact in each of equal parts, at any place in it: all depths alike, and no two facts overlap.
        edges = np.linspace(0, slots, facts + 1).astype(np.int64)
        starts = FACT * rng.integers(edges[:-1], edges[1:]) + int(rng.integers(len(text) - slots * FACT + 1))
        order = rng.permutation(facts)
        for at, start in zip(order, starts, strict=True):
            text[start : start + FACT] = drawn[at]
        depth = np.empty(facts)
        depth[order] = starts / len(text)
        return cls(text, drawn, depth)


@dataclass(frozen=True, eq=False)
class Answers:
    """Which facts came out whole, and how many single digits.

    >>> Answers(np.array([True, False]), 0.75, 10).share
    0.5
    """

    is_right: NDArray[np.bool_]
    digits: float
    state_bytes: int

    @property
    def share(self) -> float:
        """Of the facts, those whose every digit is right."""
        return float(self.is_right.mean())


@torch.no_grad()
def ask(model: TextModel, hay: Haystack, *, block: int = BLOCK, report: Callable[[int], None] | None = None) -> Answers:
    """Read the text, then put all questions, one after the other; a fact is known if all its digits are likeliest.

    The questions with their true answers are read as one text that goes on after the haystack. Each digit is compared
    with the likeliest byte after the digits before it, so a fact counts exactly if greedy generation after its question
    gives it. Nothing that is read for one question says anything about another, as keys differ.

    Args:
        model: a text model in `eval()`.
        hay: the text and its facts.
        block: bytes read at a time; memory does not depend on the length of the text but for the state.
        report: called with the number of bytes read so far.
    """
    state = model.new_state()
    done = 0
    for start in range(0, len(hay.text), block):
        piece = torch.from_numpy(hay.text[start : start + block].astype(np.int64))[None]
        model(piece, state)
        done += piece.shape[1]
        if report:
            report(done)
    right = np.empty((len(hay.facts), _VALUE), bool)
    asked = max(1, block // FACT)
    for start in range(0, len(hay.facts), asked):
        facts = hay.facts[start : start + asked]
        tokens = torch.from_numpy(facts.astype(np.int64).reshape(1, -1))
        likeliest = model(tokens, state).argmax(-1).view(facts.shape).numpy()
        # What is predicted at a byte is the next one.
        first = _QUESTION - 1
        right[start : start + asked] = likeliest[:, first : first + _VALUE] == facts[:, _QUESTION : _QUESTION + _VALUE]
        done += tokens.shape[1]
        if report:
            report(done)
    return Answers(np.asarray(right.all(1)), float(right.mean()), state.nbytes)
