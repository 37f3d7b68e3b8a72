"""A layer of exact-match or ANNA attention on machines (the paper's Theorems "MPC simulates EMA" and "… ANNA").

Token machines compute the queries, keys and values of all heads. The records of all heads and tables are sorted
together, keys before queries in every bucket. A tree carries the sums and counts of a bucket to the machines that hold
its queries, and these answer the token machines. Heads run in parallel: a bucket is named by head, table and code.

If a token machine has no room for the records of all tables, it sends its row down a tree to machines that make the
records of some tables each, hear the answers for them, and add them up on the way back: the paper's tree for ANNA.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annattn.compiler.mechanisms import Anna
from annattn.compiler.token_placement import TokenPlacement, padded
from annattn.compiler.transformer import Layer
from annattn.errors import InputError
from annattn.lsh import Hasher
from annattn.mpc.model import Mail, Numbers, Words, real_words, word_reals
from annattn.mpc.parts.copies import Copies
from annattn.mpc.parts.match import Match
from annattn.mpc.parts.runs import RunSums
from annattn.mpc.parts.stages import fold, index_within, join_mail, unfold

__all__ = ["CollisionLayer", "CollisionShape"]

QUERY = np.uint64(2**63)
"""The bit of a tag that marks a query, so that it sorts after the keys of its bucket; the rest is the token."""


@dataclass(frozen=True)
class CollisionShape:
    """What decides the sizes of a layer on machines: ℓ, H, and the words of a bucket's code and of a value."""

    tables: int
    heads: int
    code_words: int
    value_words: int

    @classmethod
    def of(cls, layer: Layer) -> "CollisionShape":
        """That of a layer of exact-match or ANNA attention."""
        values = max(head.value_width for head in layer.heads)
        if not isinstance(layer.attention, Anna):
            return cls(1, len(layer.heads), max(head.width for head in layer.heads), values)
        hasher = layer.attention.hasher
        digits = hasher.hashes * hasher.family.digits_per_hash
        code = 1 if hasher.buckets is not None else -(-digits // _digits_per_word(hasher))
        return cls(hasher.tables, len(layer.heads), code, values)

    @property
    def record(self) -> int:
        """Head and table, code, tag, value, count."""
        return 1 + self.code_words + 1 + self.value_words + 1

    @property
    def answer(self) -> int:
        """Token, head, sums, count."""
        return 2 + self.value_words + 1

    def records(self, tokens: int) -> int:
        """A key and a query for each token, head and table."""
        return 2 * self.tables * self.heads * tokens

    def copies(self, placement: TokenPlacement, width: int, memory_words: int) -> Copies | None:
        """How many machines make the records of a token machine, and the tree to them; None without room.

        A token machine makes all records itself if it can. Only one that serves a single token has copies, so that
        they are few: each makes records of up to s words, and the tree is as wide as s words allow, for rows on the way
        down and for sums on the way up.
        """
        late_row = -(-width // self.answer) * self.answer
        row, made, heard = (
            -(-width // self.record) * self.record,
            self.records(1) * self.record,
            self.heads * self.answer,
        )
        if placement.per_machine * max(made + row, self.tables * heard + late_row) <= memory_words:
            return Copies(placement.machines, 1, 2)
        share = memory_words // (2 * self.heads * self.record)
        arity = min(memory_words // row - 1, (memory_words - late_row) // heard)
        if placement.per_machine > 1 or self.tables < 2 or share < 1 or arity < 2:
            return None
        # At least two copies, and equal shares, which may save one.
        share = -(-self.tables // max(2, -(-self.tables // share)))
        return Copies(placement.machines, -(-self.tables // share), arity)


class CollisionLayer:
    """Rounds: 1 to deal out the records, sort + 2·depth + 1 to match them, and twice the depth of the tree of copies.

    A record is (bucket, tag, value, count). Meanwhile a token machine keeps the rows of its tokens, folded into records
    as wide as those that are moving.
    """

    def __init__(self, layer: Layer, placement: TokenPlacement, width: int, memory_words: int) -> None:
        self.layer, self.placement, self.width = layer, placement, width
        shape = CollisionShape.of(layer)
        self.tables, self.bucket, self.values = shape.tables, 1 + shape.code_words, shape.value_words
        self.record, self.answer = shape.record, shape.answer
        self.sums = RunSums(keys=range(self.bucket), columns=slice(self.bucket + 1, self.record))
        self.match = Match(
            n=shape.records(placement.tokens),
            width=self.record,
            keys=range(self.bucket + 1),
            summary=self.sums,
            memory_words=memory_words,
        )
        copies = shape.copies(placement, width, memory_words)
        assert copies is not None, "asked for only where it fits"
        self.copies = copies
        self.share = -(-self.tables // copies.copies)
        """The tables of one copy; of its home, if that makes all records itself."""

    @classmethod
    def fits(cls, layer: Layer, placement: TokenPlacement, width: int, memory_words: int) -> bool:
        """Whether all machines have room for what they send and keep, and the records can be sorted."""
        shape = CollisionShape.of(layer)
        if shape.copies(placement, width, memory_words) is None:
            return False
        # The summary of a run (whether there is one, its bucket, its sums and its count) is as long as a record.
        n, record = shape.records(placement.tokens), shape.record
        return Match.fits(n=n, width=record, length=record, memory_words=memory_words)

    @property
    def machines(self) -> int:
        """The number of machines besides the token machines: copies rest while records are matched."""
        return max(self.match.machines, self.copies.machines)

    @property
    def rounds(self) -> int:
        """One round to deal out, then those to sort, scan and answer; down the tree before, up the tree after."""
        return 1 + self.match.rounds + 2 * self.copies.depth

    def begin(self, token: Numbers, x: Tensor) -> Mail:
        """Every token machine keeps its rows, and deals out the records of its tokens or sends the rows to copies."""
        home = self.placement.machine_of(token)
        rows = fold(real_words(padded(x, self.width)), self.record)
        home_of_part = np.repeat(home, -(-self.width // self.record))
        keep = Mail(home_of_part, home_of_part, rows)
        if self.copies.depth == 0:
            return join_mail(keep, self._records(token, x, home, range(self.tables)))
        top = np.zeros_like(home_of_part)
        part, to = self.copies.below(self.copies.depth, home_of_part, top)
        return join_mail(keep, Mail(self.placement.machines + to, home_of_part[part], rows[part]))

    def _records(self, token: Numbers, x: Tensor, sender: Numbers, tables: range) -> Mail:
        """The keys and queries of every head in some tables, for tokens with these rows."""
        parts = [_nothing(self.record)]
        local = self.layer.local(x)
        for h, head in enumerate(self.layer.heads):
            value = np.zeros((len(token), self.values + 1))
            own = head.value(local).double().numpy()
            value[:, : own.shape[1]], value[:, -1] = own, 1.0
            asks, offers = (np.ones(len(token), bool),) * 2
            if head.takes_part is not None:
                asks, offers = (mask.numpy() for mask in head.takes_part(local))
            for side, rows, present in ((0, head.key(local), offers), (1, head.query(local), asks)):
                codes, hashable = self._codes(rows, tables)
                tag = token.astype(np.uint64) + np.uint64(side) * QUERY
                data = real_words(value) if side == 0 else np.zeros(value.shape, np.uint64)
                for at, table in enumerate(tables):
                    number = ((token * len(self.layer.heads) + h) * 2 + side) * self.tables + table
                    bucket = np.full(len(token), h * self.tables + table, np.uint64)
                    words = np.column_stack([bucket, codes[:, at], tag, data])
                    to = self.placement.machines + number // self.match.rows
                    parts.append(Mail(to, sender, words).take(present & hashable))
        return join_mail(*parts)

    def _codes(self, rows: Tensor, tables: range) -> tuple[Words, NDArray[np.bool_]]:
        """The code of each row in some tables, as words, and which rows can match at all."""
        rows = rows.double() if rows.is_floating_point() else rows.to(torch.float64)
        if isinstance(self.layer.attention, Anna):
            hasher = _some_tables(self.layer.attention.hasher, tables)
            if not bool(hasher.hashable(rows).all()):
                raise InputError("query or key", given="NaN or infinity", expected="finite numbers under ANNA")
            codes = hasher(rows)[..., None] if hasher.buckets is not None else _packed(hasher, rows)
            return codes.numpy().view(np.uint64), np.ones(len(rows), bool)
        words = np.zeros((len(rows), 1, self.bucket - 1), np.uint64)
        # Adding 0.0 turns -0.0 into 0.0, so that equal numbers have equal bit patterns.
        words[:, 0, : rows.shape[1]] = real_words(rows.numpy() + 0.0)
        return words, np.asarray(~np.isnan(rows.numpy()).any(axis=1))

    def step(self, i: int, mail: Mail) -> Mail:
        """Rounds after the first: the token machines wait; the others copy, sort, scan, answer and add up."""
        first, depth = self.placement.machines, self.copies.depth
        at_home = mail.dest < first
        kept, away = mail.take(at_home), mail.take(~at_home)
        away = Mail(away.dest - first, away.src - first, away.words)
        if i < depth:
            return join_mail(Mail(kept.dest, kept.dest, kept.words), self._down(depth - 1 - i, away))
        i -= depth
        if i >= self.match.rounds:
            return join_mail(Mail(kept.dest, kept.dest, kept.words), self._up(i - self.match.rounds, away))
        if i == 0:
            # These records came from token machines or copies, whose numbers mean nothing to a sort.
            away = Mail(away.dest, away.dest, away.words)
        sent = self.match.step(i, away, lambda mail: mail, self._answer)
        if i < self.match.rounds - 1:
            return join_mail(
                Mail(kept.dest, kept.dest, kept.words), Mail(sent.dest + first, sent.src + first, sent.words)
            )
        rows = unfold(kept.words, self.width)
        home = kept.dest[:: -(-self.width // self.record)]
        folds = -(-self.width // self.answer)
        again = Mail(np.repeat(home, folds), np.repeat(home, folds), fold(rows, self.answer))
        return join_mail(again, Mail(sent.dest, sent.src + first, sent.words))

    def _down(self, level: int, mail: Mail) -> Mail:
        """Nodes of the tree send rows on; copies, at level 0, make the records of their tables."""
        first = self.placement.machines
        home, node = self.copies.home_and_node(mail.dest)
        if level:
            part, to = self.copies.below(level, home, node)
            return Mail(first + to, first + mail.dest[part], mail.words[part])
        folds = -(-self.width // self.record)
        x = torch.from_numpy(word_reals(unfold(mail.words, self.width)))
        copy, home, node = mail.dest[::folds], home[::folds], node[::folds]
        token = home * self.placement.per_machine + index_within(copy)
        parts = [_nothing(self.record)]
        for number in np.unique(node):
            here = np.flatnonzero(node == number)
            tables = range(number * self.share, min((number + 1) * self.share, self.tables))
            parts.append(self._records(token[here], x[here], first + copy[here], tables))
        return join_mail(*parts)

    def _up(self, level: int, mail: Mail) -> Mail:
        """Nodes of the tree add up what they heard for each token and head, and tell the node or home above."""
        first = self.placement.machines
        sums = self.copies.add(mail, keys=2)
        home, node = self.copies.home_and_node(sums.dest)
        to = home if level + 1 == self.copies.depth else first + self.copies.above(home, node)
        return Mail(to, first + sums.dest, sums.words)

    def _answer(self, mail: Mail, carried: Words) -> Mail:
        known = self.sums.known(mail, carried)
        tag = mail.words[:, self.bucket]
        query = np.flatnonzero(tag >= QUERY)
        token = tag[query] % QUERY
        head, table = np.divmod(mail.words[query, 0].astype(np.int64), self.tables)
        to = self.placement.machine_of(token.astype(np.int64))
        if self.copies.depth:
            to = self.placement.machines + to * self.copies.copies + table // self.share
        return Mail(to, mail.dest[query], np.column_stack([token, head.astype(np.uint64), known[query]]))

    def finish(self, mail: Mail) -> tuple[Numbers, Tensor]:
        """The tokens and their rows after the layer: sums over counts, then the layer's element-wise functions."""
        own = mail.take(mail.src == mail.dest)
        rows = unfold(own.words, self.width)
        token = self.placement.tokens_of(own.dest[:: -(-self.width // self.answer)])
        told = mail.take(mail.src != mail.dest)
        total = np.zeros((len(token), len(self.layer.heads), self.values + 1))
        at = np.searchsorted(token, told.words[:, 0].astype(np.int64))
        np.add.at(total, (at, told.words[:, 1].astype(np.int64)), word_reals(told.words[:, 2:]))
        count = total[..., -1:]
        mean = np.divide(total[..., :-1], count, out=np.zeros_like(total[..., :-1]), where=count > 0)
        local = self.layer.local(torch.from_numpy(word_reals(rows)))
        reads = [
            head.read(torch.from_numpy(np.ascontiguousarray(mean[:, h, : head.value_width])))
            for h, head in enumerate(self.layer.heads)
        ]
        return token, self.layer.update(local, reads)


def _some_tables(hasher: Hasher, tables: range) -> Hasher:
    """The hash functions of some tables."""
    functions = slice(tables.start * hasher.hashes, tables.stop * hasher.hashes)
    return replace(hasher, tables=len(tables), parameters=tuple(drawn[functions] for drawn in hasher.parameters))


def _digits_per_word(hasher: Hasher) -> int:
    """How many hash values fit into a word, whose highest bit stays free."""
    values = hasher.family.values
    return 1 if values is None else max(1, int(63 / math.log2(max(values, 2))))


def _packed(hasher: Hasher, rows: Tensor) -> Tensor:
    """Codes that do not fit one word: the hash values, as many as fit into each of several words."""
    digits, per_word = hasher.digits(rows), _digits_per_word(hasher)
    digits = torch.nn.functional.pad(digits, (0, -digits.shape[-1] % per_word))
    words = digits.unflatten(-1, (-1, per_word))
    packed = words[..., 0]
    for at in range(1, per_word):
        packed = packed * (hasher.family.values or 1) + words[..., at]
    return packed


def _nothing(width: int) -> Mail:
    return Mail(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, width), np.uint64))
