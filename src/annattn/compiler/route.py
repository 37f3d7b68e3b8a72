"""One layer per round: machines compute, and attention carries their messages (the paper's Lemma "Routing")."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annattn.compiler.identifiers import Identifiers
from annattn.compiler.mechanisms import Attention
from annattn.compiler.memory import MachineRows, to_limbs, to_words
from annattn.compiler.out import Readers
from annattn.compiler.sparse_code import HEADER, Decoded, SparseCode
from annattn.compiler.transformer import Head, Layer
from annattn.errors import CollisionError
from annattn.mpc.delivery import check_received, check_sent, have_mail
from annattn.mpc.model import Mail, Numbers, Protocol, Words
from annattn.mpc.parts.stages import index_within

__all__ = ["Route", "packet_width", "route_layers"]

DEST, WIDTH, RECORDS, BODY = range(4)


def route_layers(
    protocol: Protocol,
    rows: MachineRows,
    names: Identifiers,
    code: SparseCode,
    heads: int,
    attention: Attention,
    readers: Readers,
) -> list[Layer]:
    """One layer per round. In the last one tokens read as `readers` says, before that each reads its own machine."""
    itself = Readers(names.machines)
    last = protocol.rounds - 1
    return [
        Route(protocol, i, rows, names, code, heads, attention, readers if i == last else itself).layer()
        for i in range(protocol.rounds)
    ]


def packet_width(rows: MachineRows) -> int:
    """The numbers in a slot, Δ: (1, sender, its square, receiver, words per record, records) and s words in limbs."""
    return HEADER + BODY + rows.limits.memory_words * rows.limbs


@dataclass
class Route:
    """The layer of one round: `local` is the machines' step, head h carries every machine's h-th message.

    All that a machine sends to one other machine is one message. A token's query is its machine's own name. Its key is
    the name of the receiver of its h-th message. Its value is that message in the sparse code, which `decode` reads.
    """

    protocol: Protocol
    round: int
    rows: MachineRows
    names: Identifiers
    code: SparseCode
    heads: int
    attention: Attention
    readers: Readers

    def layer(self) -> Layer:
        """A layer whose heads differ only in the number of the message they carry."""
        return Layer(
            [self._head(h) for h in range(self.heads)], self.attention, self._compute, self._update, self.rows.width
        )

    def _compute(self, x: Tensor) -> Tensor:
        """The machines' local computation, from inbox to outbox."""
        token, inbox = self.rows.read(x)
        sent = inbox
        if len(inbox):
            sent = self.protocol.step(self.round, inbox)
            check_sent(self.round, sent, self.rows.limits, have_mail(inbox, self.rows.limits.machines))
        # Ordered by sender, then receiver; records from one to the other stay in order.
        sent = sent.take(np.lexsort([sent.dest, sent.src]))
        return self.rows.write(token, sent.src, sent.dest, sent.words)

    def _head(self, h: int) -> Head:
        def query(x: Tensor) -> Tensor:
            machine = self.readers.machine(_tokens(x))
            return self.names(np.where(machine < self.names.machines, machine, self.names.deaf))

        def key(x: Tensor) -> Tensor:
            row, dest, _, _ = self._message(x, h)
            number = np.full(len(x), self.names.silent)
            number[row] = dest
            return self.names(number)

        def value(x: Tensor) -> Tensor:
            row, dest, count, words = self._message(x, h)
            sender = _tokens(x)[row]
            width = x[:, 1].numpy()[row]
            body = np.column_stack([dest, width, count, to_limbs(words, self.rows.limbs)])
            return torch.from_numpy(self.code.encode(sender, body, count=len(x), row=row))

        def takes_part(x: Tensor) -> tuple[Tensor, Tensor]:
            sends = torch.zeros(len(x), dtype=torch.bool)
            sends[torch.from_numpy(self._message(x, h)[0])] = True
            return torch.from_numpy(self.readers.machine(_tokens(x)) < self.names.machines), sends

        def read(out: Tensor) -> Decoded:
            return self.code.decode(out.numpy(), layer=self.round + 1, head=h)

        packet = packet_width(self.rows)
        width, nonzeros = packet * self.code.slots, packet * self.code.weight
        return Head(query, key, value, self.names.width, width, nonzeros, read, takes_part)

    def _message(self, x: Tensor, h: int) -> tuple[Numbers, Numbers, Numbers, Words]:
        """The rows that have an h-th message; its receiver, its number of records, and its words, padded with zeros."""
        token, mail = self.rows.read(x)
        owner, dest = mail.dest, mail.src
        new = np.ones(len(mail), bool)
        new[1:] = (owner[1:] != owner[:-1]) | (dest[1:] != dest[:-1])
        first = np.flatnonzero(new)
        message = np.cumsum(new) - 1
        chosen = index_within(owner[first]) == h
        count = np.diff(first, append=len(mail))[chosen]
        record = np.flatnonzero(chosen[message])
        at = np.repeat(np.arange(len(count)), count)
        words = np.zeros((len(count), mail.width * int(count.max(initial=0))), np.uint64)
        column = index_within(at)[:, None] * mail.width + np.arange(mail.width)
        words[at[:, None], column] = mail.words[record]
        return np.searchsorted(token, owner[first[chosen]]), dest[first[chosen]], count, words

    def _update(self, x: Tensor, reads: list[Decoded]) -> Tensor:
        """The next inbox: the messages of all heads, ordered by sender."""
        token = _tokens(x)
        parts = [self._opened(token, h, decoded) for h, decoded in enumerate(reads)]
        full = [part for part in parts if len(part)]
        width = max((part.width for part in full), default=1)
        if not full:
            return self.rows.write(token, *_nothing(width))
        mail = Mail(*(np.concatenate([getattr(part, name) for part in full]) for name in ("dest", "src", "words")))
        mail = mail.take(np.lexsort([mail.src, mail.dest]))
        inbox = mail.take(self.readers.first(mail.dest))
        check_received(self.round, Mail(self.readers.machine(inbox.dest), inbox.src, inbox.words), self.rows.limits)
        return self.rows.write(token, mail.dest, mail.src, mail.words)

    def _opened(self, token: Numbers, head: int, decoded: Decoded) -> Mail:
        body, reader = decoded.body, token[decoded.reader]
        astray = body[:, DEST] != self.readers.machine(reader)
        if astray.any():
            at = np.argmax(astray)
            detail = f"a message for machine {body[at, DEST]} arrived: hashing brought other names together"
            raise CollisionError(layer=self.round + 1, head=head, token=int(reader[at]), detail=detail)
        width = int(body[:, WIDTH].max(initial=1))
        count = body[:, RECORDS]
        at = np.repeat(np.arange(len(body)), count)
        words = to_words(body[:, BODY:], self.rows.limbs)
        column = index_within(at)[:, None] * width + np.arange(width)
        return Mail(reader[at], decoded.sender[at], words[at[:, None], column])


def _tokens(x: Tensor) -> Numbers:
    return x[:, 0].numpy().astype(np.int64)


def _nothing(width: int) -> tuple[Numbers, Numbers, NDArray[np.uint64]]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, width), np.uint64)
