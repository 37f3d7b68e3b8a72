"""Rows that say "every protocol" or "every input", at the ends of what these words allow."""

import numpy as np
import pytest
import torch

from annattn.compiler import Anna, ExactMatch, Head, Layer, Transformer, to_protocol, to_transformer
from annattn.lsh import Hyperplane
from annattn.mpc import Limits, PerMachine, run, with_partners
from annattn.mpc.protocols import InductionHead, KHop, Sort

HABITS = {
    "say nothing": lambda machines: lambda turn, me, inbox: [],
    "keep": lambda machines: lambda turn, me, inbox: [(me, words) for _, words in inbox],
    "pass on": lambda machines: lambda turn, me, inbox: [((me + 1) % machines, words) for _, words in inbox],
    "swap ends": lambda machines: lambda turn, me, inbox: [(machines - 1 - me, words) for _, words in inbox],
    "all to one": lambda machines: lambda turn, me, inbox: [(turn % machines, words) for _, words in inbox],
}


@pytest.mark.parametrize(("memory", "width"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("machines", [1, 2, 5])
@pytest.mark.parametrize("habit", HABITS)
def test_protocols_of_few_machines_and_one_word_compile_and_have_few_partners(habit, machines, memory, width):
    full = memory // width * (1 if habit == "all to one" else machines)
    for bits in (1, 64):
        protocol = PerMachine(
            HABITS[habit](machines), rounds=2, limits=Limits(machines, memory, bits), input_width=width
        )
        for n in sorted({0, 1, full}):
            words = np.full((n, width), 2**bits - 1, dtype=np.uint64)
            expected = run(protocol, words).output
            assert len(expected) == (0 if habit == "say nothing" else n)
            for partners in (2, machines + 2):
                assert np.array_equal(run(with_partners(protocol, partners), words).output, expected)
            assert np.array_equal(to_transformer(protocol, example=words).run(words), expected)


def number(x):
    return x[:, :1]


@pytest.mark.parametrize("attention", [ExactMatch(), Anna(Hyperplane(1).sample(tables=60, hashes=2))])
@pytest.mark.parametrize("n", [1, 2, 50])
def test_tokens_that_are_all_alike_share_one_bucket_on_machines(attention, n):
    """A single bucket holds every record, so the tree of sums and the copies carry all of it."""
    model = Transformer([Layer([Head(number, number, lambda x: x[:, 1:], 1, 1)], attention, width=1)])
    rows = torch.tensor([[3.0, 8.0]] * n, dtype=torch.float64)
    for memory in (180, 2000):
        protocol = to_protocol(model, n, memory, dim=2)
        assert np.array_equal(run(protocol, protocol.encode(rows)).output, np.full((n, 1), 8.0))


@pytest.mark.parametrize("n", [1, 2, 3, 33])
def test_words_of_one_letter_and_lists_of_one_number(n):
    words = np.zeros(n, np.uint64)
    for protocol in (Sort(n, 60), InductionHead(n, 200), KHop(n, 200, k=3)):
        assert np.array_equal(run(protocol, words).output, protocol.oracle(words))
