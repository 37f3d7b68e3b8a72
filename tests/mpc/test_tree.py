"""Scans over trees of machines, with exactly as much memory as they need."""

import numpy as np
import pytest

from annattn.mpc.model import Mail
from annattn.mpc.parts.tree import Scan, Summary


class Sums(Summary):
    """The sum of each machine's records, in the first of `length` words."""

    def __init__(self, length: int) -> None:
        self.length = length

    def of(self, mail):
        machines, start = np.unique(mail.dest, return_index=True)
        summaries = np.zeros((len(machines), self.length), np.uint64)
        summaries[:, 0] = np.add.reduceat(mail.words[:, 0], start)
        return machines, summaries

    def combine(self, left, right):
        return left + right


@pytest.mark.parametrize("children", [2, 3, 7])
@pytest.mark.parametrize(("width", "length"), [(1, 1), (2, 1), (2, 3), (1, 4)])
def test_a_node_has_as_many_children_as_its_memory_holds_and_tells_each_what_came_before(width, length, children):
    words = (children + 1) * -(-length // width) * width
    assert Scan.fits(width=width, length=length, memory_words=words)
    assert Scan.fits(width=width, length=length, memory_words=words - 1) == (children > 2)
    leaves = children**2 + 1
    scan = Scan(leaves=leaves, width=width, length=length, memory_words=words, base=leaves)
    assert scan.tree.sizes == (leaves, children + 1, 2, 1)
    numbers = np.arange(1, leaves + 1, dtype=np.uint64)
    data = np.zeros((leaves, width), np.uint64)
    data[:, 0] = numbers
    own = np.arange(leaves)
    mail = Mail(own, own, data)
    for i in range(scan.rounds):
        sent = scan.step(i, mail, Sums(length))
        order = np.lexsort([sent.src, sent.dest])
        mail = sent.take(order)
        inner = mail.dest[mail.dest >= leaves]
        assert np.bincount(inner, minlength=1).max(initial=0) * width <= words
    found, before = scan.receive(mail)
    assert np.array_equal(found.dest, own)
    assert np.array_equal(before[:, 0], np.cumsum(numbers) - numbers)
