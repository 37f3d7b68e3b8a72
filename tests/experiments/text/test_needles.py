"""Facts are where they are said to be, and only a model that knows them is called right."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from annattn.errors import InputError
from annattn.experiments.text import Haystack, ask, recall_hits
from annattn.experiments.text.needles import FACT, draw_facts, plant_twice


class Knows:
    """Stands for a model: it looks up, in what it has read, what followed the last bytes when they came before."""

    def __init__(self, *, forgets: bytes = b"") -> None:
        self.forgets = forgets

    def new_state(self):
        return SimpleNamespace(read=b"", nbytes=0)

    def __call__(self, tokens, state):
        logits = torch.zeros(1, tokens.shape[1], 256)
        for at, byte in enumerate(tokens[0].tolist()):
            state.read += bytes([byte])
            context = state.read[-10:]
            before = state.read.rfind(context, 0, -1)
            if before >= 0 and not (self.forgets and self.forgets in context):
                logits[0, at, state.read[before + 10]] = 1
        return logits


def hay(facts: int = 5, length: int = 2000, seed: int = 0) -> Haystack:
    return Haystack.make(np.full(length, ord("x"), np.uint8), facts, seed)


def test_every_fact_stands_once_in_the_text_at_its_depth_and_nothing_else_changes():
    found = hay(7, 3000)
    text = bytes(found.text)
    for fact, depth in zip(found.facts, found.depth, strict=True):
        assert text.count(bytes(fact)) == 1
        assert text.index(bytes(fact)) == round(depth * 3000)
        text_key = bytes(fact[21:27])
        assert text_key.isalpha()
        assert bytes(fact) == b"\nThe magic number of " + text_key + b" is " + bytes(fact[31:37]) + b".\n"
    assert text.count(b"x") == 3000 - 7 * FACT + sum(bytes(fact).count(b"x") for fact in found.facts)
    assert (np.argsort(found.depth) != np.arange(7)).any()  # asked for in another order


def test_depths_cover_the_text_and_seeds_differ():
    depth = np.concatenate([hay(20, 4000, seed).depth for seed in range(20)])
    assert np.histogram(depth, bins=10, range=(0, 1))[0].min() > 20
    assert not np.array_equal(hay(seed=1).text, hay(seed=2).text)
    assert np.array_equal(hay(seed=1).text, hay(seed=1).text)


def test_keys_differ():
    keys = {bytes(fact[21:27]) for fact in draw_facts(5000, np.random.default_rng(0))}
    assert len(keys) == 5000


def test_a_model_that_knows_is_right_and_one_that_forgets_a_key_is_wrong_there():
    found = hay()
    assert ask(Knows(), found).share == 1.0  # type: ignore[arg-type]
    assert ask(Knows(), found, block=100).share == 1.0  # type: ignore[arg-type]
    forgotten = bytes(found.facts[2][21:27])
    answers = ask(Knows(forgets=forgotten), found)  # type: ignore[arg-type]
    assert answers.is_right.tolist() == [True, True, False, True, True]
    assert answers.digits < 1.0


def test_a_model_that_was_shown_no_facts_knows_none():
    found = hay()
    bare = Haystack(np.full(2000, ord("x"), np.uint8), found.facts, found.depth)
    assert ask(Knows(), bare).share == 0.0  # type: ignore[arg-type]


def test_progress_counts_text_and_questions():
    seen: list[int] = []
    ask(Knows(), hay(), block=500, report=seen.append)  # type: ignore[arg-type]
    assert seen[:4] == [500, 1000, 1500, 2000]
    assert seen[-1] == 2000 + 5 * FACT


def test_training_text_has_each_fact_twice_and_marks_the_second_answer():
    rows, answers = plant_twice(np.zeros((30, 500), np.int64), 4, seed=3)
    counts = set()
    for row, marked in zip(rows, answers, strict=True):
        text = bytes(row.astype(np.uint8))
        keys = {text[at + 21 : at + 27] for at in range(500) if text.startswith(b"\nThe magic", at)}
        counts.add(len(keys))
        assert marked.sum() == 6 * len(keys)
        for key in keys:
            first, second = text.index(key), text.rindex(key)
            assert text[first + 10 : first + 16] == text[second + 10 : second + 16]
            assert marked[second + 10 : second + 16].all()
            assert not marked[first + 10 : first + 16].any()
    assert counts == {1, 2, 3, 4}


def test_too_many_facts_are_refused():
    with pytest.raises(InputError, match="at most 25: a fact has 39 bytes"):
        hay(26)


def test_recall_hits_are_those_of_a_search():
    rng = np.random.default_rng(0)
    rows = rng.integers(97, 100, size=(3, 200))
    found = recall_hits(rows)
    for row, marked in zip(rows, found, strict=True):
        text = bytes(row.astype(np.uint8))
        for end in range(200):
            first = text.find(text[end - 4 : end + 1]) + 4 if end >= 4 else end
            assert marked[end] == (end - first > 32)
    assert 0.1 < found.mean() < 0.95
