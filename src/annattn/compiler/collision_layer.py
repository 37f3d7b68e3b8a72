"""A layer of exact-match or ANNA attention on machines (the paper's Theorems "MPC simulates EMA" and "… ANNA").

Token machines compute the queries, keys and values of all heads. The records of all heads and tables are sorted
together, keys before queries in every bucket. A tree carries the sums and counts of a bucket to the machines that hold
its queries, and these answer the token machines. Heads run in parallel: a bucket is named by head, table and code.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annattn.compiler.mechanisms import Anna
from annattn.compiler.token_placement import TokenPlacement, padded
from annattn.compiler.transformer import Layer
from annattn.errors import InputError
from annattn.mpc.model import Mail, Numbers, Words, real_words, word_reals
from annattn.mpc.parts.match import Match
from annattn.mpc.parts.runs import RunSums
from annattn.mpc.parts.stages import fold, join_mail, unfold

__all__ = ["CollisionLayer"]

QUERY = np.uint64(2**63)
"""The bit of a tag that marks a query, so that it sorts after the keys of its bucket; the rest is the token."""


class CollisionLayer:
    """Rounds: 1 to deal out the records and sort + 2·depth + 1 to match them; a record is (bucket, tag, value, count).

    Meanwhile a token machine keeps the rows of its tokens, folded into records as wide as those that are moving.
    """

    def __init__(self, layer: Layer, placement: TokenPlacement, width: int, memory_words: int) -> None:
        self.layer, self.placement, self.width = layer, placement, width
        self.tables = layer.attention.hasher.tables if isinstance(layer.attention, Anna) else 1
        self.bucket = 1 + _code_words(layer)
        self.values = _value_words(layer)
        self.record, self.answer = _record(layer), 3 + self.values
        self.sums = RunSums(keys=range(self.bucket), columns=slice(self.bucket + 1, self.record))
        self.match = Match(
            n=2 * self.tables * len(layer.heads) * placement.tokens,
            width=self.record,
            keys=range(self.bucket + 1),
            summary=self.sums,
            memory_words=memory_words,
        )

    @classmethod
    def fits(cls, layer: Layer, placement: TokenPlacement, width: int, memory_words: int) -> bool:
        """Whether a token machine has room for what it sends and keeps, and the records can be sorted."""
        tables = layer.attention.hasher.tables if isinstance(layer.attention, Anna) else 1
        heads, record, answer = len(layer.heads), _record(layer), 3 + _value_words(layer)
        sends = 2 * tables * heads * record + -(-width // record) * record
        gets = tables * heads * answer + -(-width // answer) * answer
        length = 1 + 1 + _code_words(layer) + _value_words(layer) + 1
        room = placement.per_machine * max(sends, gets) <= memory_words
        return room and Match.fits(
            n=2 * tables * heads * placement.tokens, width=record, length=length, memory_words=memory_words
        )

    @property
    def machines(self) -> int:
        """The number of machines besides the token machines."""
        return self.match.machines

    @property
    def rounds(self) -> int:
        """One round to deal out, then those to sort, scan and answer."""
        return 1 + self.match.rounds

    def begin(self, token: Numbers, x: Tensor) -> Mail:
        """Every token machine keeps its rows and deals out the keys and queries of every head and table."""
        home = self.placement.machine_of(token)
        keep = real_words(padded(x, self.width))
        folds = -(-self.width // self.record)
        parts = [Mail(np.repeat(home, folds), np.repeat(home, folds), fold(keep, self.record))]
        local = self.layer.local(x)
        for h, head in enumerate(self.layer.heads):
            value = np.zeros((len(token), self.values + 1))
            own = head.value(local).double().numpy()
            value[:, : own.shape[1]], value[:, -1] = own, 1.0
            asks, offers = (np.ones(len(token), bool),) * 2
            if head.takes_part is not None:
                asks, offers = (mask.numpy() for mask in head.takes_part(local))
            for side, rows, present in ((0, head.key(local), offers), (1, head.query(local), asks)):
                codes, hashable = self._codes(rows)
                tag = token.astype(np.uint64) + np.uint64(side) * QUERY
                data = real_words(value) if side == 0 else np.zeros(value.shape, np.uint64)
                for table in range(self.tables):
                    number = ((token * len(self.layer.heads) + h) * 2 + side) * self.tables + table
                    bucket = np.full(len(token), h * self.tables + table, np.uint64)
                    words = np.column_stack([bucket, codes[:, table], tag, data])
                    to = self.placement.machines + number // self.match.rows
                    parts.append(Mail(to, home, words).take(present & hashable))
        return join_mail(*parts)

    def _codes(self, rows: Tensor) -> tuple[Words, NDArray[np.bool_]]:
        """The code of each row in each table, as words, and which rows can match at all."""
        rows = rows.double() if rows.is_floating_point() else rows.to(torch.float64)
        if isinstance(self.layer.attention, Anna):
            hasher = self.layer.attention.hasher
            if not bool(hasher.hashable(rows).all()):
                raise InputError("query or key", given="NaN or infinity", expected="finite numbers under ANNA")
            codes = hasher(rows)[..., None] if hasher.buckets is not None else hasher.digits(rows)
            return codes.numpy().view(np.uint64), np.ones(len(rows), bool)
        words = np.zeros((len(rows), 1, self.bucket - 1), np.uint64)
        # Adding 0.0 turns -0.0 into 0.0, so that equal numbers have equal bit patterns.
        words[:, 0, : rows.shape[1]] = real_words(rows.numpy() + 0.0)
        return words, np.asarray(~np.isnan(rows.numpy()).any(axis=1))

    def step(self, i: int, mail: Mail) -> Mail:
        """Rounds after the first: the token machines wait; the others sort, scan and finally answer."""
        first = self.placement.machines
        at_home = mail.dest < first
        kept, away = mail.take(at_home), mail.take(~at_home)
        moved = Mail(away.dest - first, away.src - first, away.words)
        if i == 0:
            # These records came from token machines, whose numbers mean nothing here; sorting uses only receivers.
            moved = Mail(moved.dest, moved.dest, moved.words)
        sent = self.match.step(i, moved, lambda mail: mail, self._answer)
        if i < self.match.rounds - 1:
            return join_mail(
                Mail(kept.dest, kept.dest, kept.words), Mail(sent.dest + first, sent.src + first, sent.words)
            )
        rows = unfold(kept.words, self.width)
        home = kept.dest[:: -(-self.width // self.record)]
        folds = -(-self.width // self.answer)
        again = Mail(np.repeat(home, folds), np.repeat(home, folds), fold(rows, self.answer))
        return join_mail(again, Mail(sent.dest, sent.src + first, sent.words))

    def _answer(self, mail: Mail, carried: Words) -> Mail:
        known = self.sums.known(mail, carried)
        tag = mail.words[:, self.bucket]
        query = np.flatnonzero(tag >= QUERY)
        token = tag[query] % QUERY
        head = mail.words[query, 0] // np.uint64(self.tables)
        home = self.placement.machine_of(token.astype(np.int64))
        return Mail(home, mail.dest[query], np.column_stack([token, head, known[query]]))

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


def _code_words(layer: Layer) -> int:
    if isinstance(layer.attention, Anna):
        hasher = layer.attention.hasher
        return 1 if hasher.buckets is not None else hasher.hashes * hasher.family.digits_per_hash
    return max(head.width for head in layer.heads)


def _value_words(layer: Layer) -> int:
    return max(head.value_width for head in layer.heads)


def _record(layer: Layer) -> int:
    """Head and table, code, tag, value, count."""
    return 1 + _code_words(layer) + 1 + _value_words(layer) + 1
