"""What ExactMatchAttention and AnnaAttention share: a query gets the sums and counts of the keys in its buckets.

The paper sorts queries and keys separately, lets "meta-information" machines introduce a bucket's queries to its keys,
and sends the values down the tree of the queries. Here queries and keys are sorted together, keys first in every
bucket, and a single tree carries a bucket's sums and counts to the machines after it. So no buckets are hashed to
machines, and nothing can fail.

Real values travel as float64 bit patterns and are added in float64, in an order that depends only on n and s. The
result differs from the exact mean of m numbers by at most (m + 1)·2^-53 times the mean of their absolute values.
"""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annattn.errors import InputError
from annattn.mpc.model import Limits, Mail, Words, real_words, spread, word_reals
from annattn.mpc.order import order_within
from annattn.mpc.parts.match import Match
from annattn.mpc.parts.runs import RunSums
from annattn.mpc.parts.stages import Stage, index_within, join_mail
from annattn.mpc.parts.tree import tree_depth
from annattn.mpc.protocols.problem import Problem

__all__ = ["CollisionAttention", "as_reals"]

QUERY = np.uint64(2**63)
"""The bit of a tag that marks a query; the rest of a tag is the token's place."""


class CollisionAttention(Problem):
    """Each of n tokens has a query, a key and a value; a record, of a key or a query, is (bucket, tag, value, count).

    Rounds: 1 to deal out the records, sort + 2·depth + 1 to match them, 1 to divide.
    """

    bound = "O(1/(ε'-ε)), Theorems MPC simulates EMA and MPC simulates ANNA"
    bucket_words: int
    value_dim: int
    tables: int
    row_words: int

    def _build(self, n: int, memory_words: int, seed: int) -> None:
        self.n = self.input_records = n
        self.input_width = self.row_words
        bucket, values = self.bucket_words, self.value_dim
        width = _record(bucket, values)
        self.sums = RunSums(keys=range(bucket), columns=slice(bucket + 1, width))
        self.match = Match(
            n=2 * self.tables * n,
            width=width,
            keys=range(bucket + 1),
            summary=self.sums,
            memory_words=memory_words,
            seed=seed,
        )
        self.held = memory_words // _token(bucket, values, self.tables, self.row_words)
        self.limits = Limits(max(self.match.machines, -(-n // self.held)), memory_words)
        self.stages = (Stage(1, self._deal), Stage(self.match.rounds, self._match), Stage(1, self._divide))

    @classmethod
    def _enough(cls, n: int, memory_words: int, bucket: int, values: int, tables: int, row: int) -> bool:
        width = _record(bucket, values)
        room = memory_words >= _token(bucket, values, tables, row)
        # The summary of a run: whether there is one, its bucket, its sums and its count.
        length = 1 + bucket + values + 1
        return room and Match.fits(n=2 * tables * n, width=width, length=length, memory_words=memory_words)

    @abstractmethod
    def _buckets(self, rows: Words) -> tuple[Words, Words, NDArray[np.bool_], NDArray[np.bool_]]:
        """Buckets of queries and of keys, both (rows, tables, bucket words), and which rows have a bucket at all."""

    def round_formula(self) -> int:
        """The rounds of the sort, 2⌈log_a ⌈2ℓn / rows⌉⌉ + 3, with a = ⌊s / summary⌋ - 1."""
        leaves = -(-2 * self.tables * self.n // self.match.rows)
        width = _record(self.bucket_words, self.value_dim)
        depth = tree_depth(leaves, self.limits.memory_words // width - 1)
        return self.match.sort.rounds + 2 * depth + 3

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """As many tokens per machine as it can make records for."""
        return spread(words, self.held, first)

    def _deal(self, i: int, mail: Mail) -> Mail:
        queries, keys, has_query, has_key = self._buckets(mail.words)
        place = mail.dest * self.held + index_within(mail.dest)
        value = np.zeros((len(mail), self.value_dim + 1), np.uint64)
        parts = []
        for side, buckets, present in ((0, keys, has_key), (1, queries, has_query)):
            tag = place.astype(np.uint64) + np.uint64(side) * QUERY
            if side == 0:
                value[:, :-1] = mail.words[:, self.row_words - self.value_dim :]
                value[:, -1] = real_words([1.0])[0]
            else:
                value = np.zeros_like(value)
            for table in range(self.tables):
                # Records are numbered by (token, side, table) and dealt out in that order, `rows` per machine.
                number = (place * 2 + side) * self.tables + table
                words = np.column_stack([buckets[:, table], tag, value])
                parts.append(Mail(number // self.match.rows, mail.dest, words).take(present))
        return join_mail(*parts)

    def _match(self, i: int, mail: Mail) -> Mail:
        return self.match.step(i, mail, lambda mail: mail, self._answer)

    def _answer(self, mail: Mail, carried: Words) -> Mail:
        known = self.sums.known(mail, carried)
        tag = mail.words[:, self.bucket_words]
        query = np.flatnonzero(tag >= QUERY)
        place = tag[query] % QUERY
        home = (place // np.uint64(self.held)).astype(np.int64)
        return Mail(home, mail.dest[query], np.column_stack([place, known[query]]))

    def _divide(self, i: int, mail: Mail) -> Mail:
        mail = mail.take(order_within(mail.dest, [mail.words[:, 0]]))
        # A token's tables stay in the order in which they arrived, so that sums are the same on every engine.
        starts = np.flatnonzero(np.append(True, mail.words[1:, 0] != mail.words[:-1, 0]))
        total = np.add.reduceat(word_reals(mail.words[:, 1:]), starts, axis=0)
        count = total[:, -1:]
        mean = np.divide(total[:, :-1], count, out=np.zeros_like(total[:, :-1]), where=count > 0)
        machine = mail.dest[starts]
        return Mail(machine, machine, np.column_stack([mail.words[starts, 0], real_words(mean)]))

    def gather(self, mail: Mail) -> NDArray[np.float64]:
        """The attention's output, (n, value_dim); a token whose query has no bucket gets zeros."""
        out = np.zeros((self.n, self.value_dim))
        if len(mail):
            out[mail.words[:, 0].astype(np.int64)] = word_reals(mail.words[:, 1:])
        return out

    def agrees(self, output: Any, expected: Any) -> bool:
        """Equal up to (n·tables + 1)·2^-53 times the largest value, times 4 for the oracle's own rounding."""
        scale = np.abs(expected).max(initial=1.0)
        return np.allclose(output, expected, rtol=0, atol=4 * (self.n * self.tables + 1) * 2.0**-53 * scale)


def _record(bucket: int, values: int) -> int:
    return bucket + 1 + values + 1


def _token(bucket: int, values: int, tables: int, row: int) -> int:
    """The words a token needs on its machine: its row, then the records it sends, then the answers it receives."""
    return max(row, 2 * tables * _record(bucket, values), tables * (values + 2))


def as_reals(name: str, array: ArrayLike, n: int, dim: int) -> NDArray[np.float64]:
    """The array as a float64 matrix; refused unless it has this shape."""
    matrix = np.asarray(array)
    if matrix.shape != (n, dim) or matrix.dtype.kind not in "fiub":
        given, expected = f"{matrix.dtype} of shape {matrix.shape}", f"real numbers of shape ({n}, {dim})"
        raise InputError(name, given=given, expected=expected)
    return matrix.astype(np.float64)
