"""A layer of low-rank attention on machines (the paper's Lemma "MPC simulates low-rank Attention")."""

import numpy as np
import torch
from torch import Tensor

from annattn.compiler.token_placement import TokenPlacement, padded
from annattn.compiler.transformer import Layer
from annattn.mpc.model import Mail, Numbers, Words, real_words, word_reals
from annattn.mpc.parts.stages import fold, join_mail, unfold
from annattn.mpc.parts.tree import Tree, reduce_groups

__all__ = ["LowRankLayer"]


class LowRankLayer:
    """The sum Σ_j k_j v_jᵀ of every head goes up a tree of token machines and down again: max(1, 2·depth) rounds.

    The r x m matrices of all heads form one summary, which travels as records as wide as a token's row.
    """

    def __init__(self, layer: Layer, placement: TokenPlacement, width: int, memory_words: int) -> None:
        self.layer, self.placement, self.width = layer, placement, width
        self.length = _length(layer)
        self.folds = -(-self.length // width)
        self.tree = Tree(placement.machines, max(2, memory_words // (self.folds * width)), base=placement.machines)

    @classmethod
    def fits(cls, layer: Layer, placement: TokenPlacement, width: int, memory_words: int) -> bool:
        """Whether a token machine can hold its rows and one summary, and a node two summaries."""
        summary = -(-_length(layer) // width) * width
        return max(placement.per_machine * width + summary, 2 * summary) <= memory_words

    @property
    def machines(self) -> int:
        """The number of machines besides the token machines."""
        return self.tree.machines

    @property
    def rounds(self) -> int:
        """Up the tree and down again."""
        return max(1, 2 * self.tree.depth)

    def begin(self, token: Numbers, x: Tensor) -> Mail:
        """Every token machine keeps its rows and sends the sum of its tokens' products to its parent."""
        home = self.placement.machine_of(token)
        keep = Mail(home, home, real_words(padded(x, self.width)))
        if self.tree.depth == 0:
            return keep
        leaves, sums = self._products(home, self.layer.local(x))
        return join_mail(keep, self._send(leaves, self.tree.parent(0, leaves), sums))

    def _products(self, home: Numbers, local: Tensor) -> tuple[Numbers, Words]:
        first = np.flatnonzero(np.diff(home, prepend=-1))
        parts = []
        for head in self.layer.heads:
            key, value = head.key(local).double().numpy(), padded(head.value(local), head.value_width)
            parts.append((key[:, :, None] * value[:, None, :]).reshape(len(key), -1))
        # Added row by row, in order, so that the bits do not depend on which machines are computed together.
        return home[first], real_words(np.add.reduceat(np.hstack(parts), first, axis=0))

    def _send(self, src: Numbers, dest: Numbers, sums: Words) -> Mail:
        return Mail(np.repeat(dest, self.folds), np.repeat(src, self.folds), fold(sums, self.width))

    def step(self, i: int, mail: Mail) -> Mail:
        """Rounds after the first: nodes add up what their children sent, and then tell them the total."""
        level = self.tree.level(mail.dest)
        kept, inner = mail.take(level == 0), mail.take(level > 0)
        nodes, sums = reduce_groups(inner.dest[:: self.folds], unfold(inner.words, self.length), _add)
        depth = self.tree.depth
        up = i + 1
        if up < depth:
            sent = self._send(nodes, self.tree.parent(up, nodes), sums)
        else:
            which, children = self.tree.children(2 * depth - up, nodes)
            sent = self._send(nodes[which], children, sums[which])
        return join_mail(Mail(kept.dest, kept.dest, kept.words), sent)

    def finish(self, mail: Mail) -> tuple[Numbers, Tensor]:
        """The tokens and their rows after the layer: queries times the total, then the element-wise functions."""
        own = mail.take(mail.src == mail.dest)
        token = self.placement.tokens_of(own.dest)
        local = self.layer.local(torch.from_numpy(word_reals(own.words)))
        if self.tree.depth == 0:
            machine, sums = self._products(own.dest, local)
        else:
            told = mail.take(mail.src != mail.dest)
            machine, sums = told.dest[:: self.folds], unfold(told.words, self.length)
        matrix = word_reals(sums)[np.searchsorted(machine, own.dest)]
        reads, start = [], 0
        for head in self.layer.heads:
            end = start + head.width * head.value_width
            product = matrix[:, start:end].reshape(len(own), head.width, head.value_width)
            query = head.query(local).double().numpy()
            reads.append(head.read(torch.from_numpy((query[:, :, None] * product).sum(axis=1))))
            start = end
        return token, self.layer.update(local, reads)


def _length(layer: Layer) -> int:
    return sum(head.width * head.value_width for head in layer.heads)


def _add(left: Words, right: Words) -> Words:
    return real_words(word_reals(left) + word_reals(right))
