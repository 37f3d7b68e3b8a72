"""Checking sent mail against the limits, and delivering it to the receivers' inboxes."""

import numpy as np
from numpy.typing import NDArray

from annattn.errors import DestinationError, InboxError, InputError, OutboxError, PartnersError, SourceError, WordError
from annattn.mpc.model import Limits, Mail, Numbers, Protocol, Words
from annattn.mpc.order import stable_order
from annattn.mpc.trace import RoundLoad

__all__ = [
    "check_inboxes",
    "check_lengths",
    "check_partners",
    "check_received",
    "check_sent",
    "deliver",
    "deliver_and_free",
    "deliver_input",
    "finish_round",
    "have_mail",
    "loads",
    "partners",
    "round_load",
    "step",
]


def deliver_input(protocol: Protocol, words: Words) -> Mail:
    """The input in its machines' inboxes, held to the limits of any mail but the one on partners: nobody sent it."""
    limits = protocol.limits
    # A step may use its mail as scratch paper; the input is the caller's.
    mail = protocol.scatter(words.copy())
    any_partners = Limits(limits.machines, limits.memory_words, limits.word_bits)
    check_sent(-1, mail, any_partners, None)
    check_received(-1, mail, any_partners)
    return deliver(mail, limits.machines)


def have_mail(mail: Mail, machines: int) -> NDArray[np.bool_]:
    """Which machines have mail, and so may send in this round.

    >>> have_mail(Mail([0, 2], [1, 1], [[5], [6]]), machines=3)
    array([ True, False,  True])
    """
    has = np.zeros(machines, bool)
    has[mail.dest] = True
    return has


def step(protocol: Protocol, round_: int, mail: Mail) -> Mail:
    """What the machines send in a round: the result of the protocol's step, or nothing if no machine has mail."""
    if len(mail) == 0:
        return mail
    sent = protocol.step(round_, mail)
    if not isinstance(sent, Mail):
        given = f"{type(sent).__name__} in round {round_}"
        raise InputError(f"{type(protocol).__name__}.step", given=given, expected="a Mail")
    return sent


def check_sent(round_: int, mail: Mail, limits: Limits, senders: NDArray[np.bool_] | None) -> None:
    """Raise unless destinations exist, senders had mail, words fit, and outboxes and partners are within their limits.

    The machine that the error names does not depend on the order of the mail.
    """
    if len(mail) == 0:
        return
    last = limits.machines - 1
    if mail.dest.min() < 0 or mail.dest.max() > last:
        wrong = (mail.dest < 0) | (mail.dest > last)
        machine = int(mail.src[wrong].min())
        amount = int(mail.dest[wrong & (mail.src == machine)].min())
        raise DestinationError(round=round_, machine=machine, limit=last, amount=amount)
    if mail.src.min() < 0 or mail.src.max() > last:
        machine = int(mail.src.min() if mail.src.min() < 0 else mail.src.max())
        raise SourceError(round=round_, machine=machine, limit=0, amount=int((mail.src == machine).sum()))
    records = np.bincount(mail.src, minlength=limits.machines)
    if senders is not None and (silent := (records > 0) & ~senders).any():
        machine = int(np.argmax(silent))
        raise SourceError(round=round_, machine=machine, limit=0, amount=int(records[machine]))
    if limits.word_bits < 64 and int(mail.words.max()) > limits.largest_word:
        largest = mail.words.max(axis=1)
        machine = int(mail.src[largest > limits.largest_word].min())
        amount = int(largest[mail.src == machine].max())
        raise WordError(round=round_, machine=machine, limit=limits.largest_word, amount=amount)
    machine = int(np.argmax(records))
    if records[machine] * mail.width > limits.memory_words:
        amount = int(records[machine] * mail.width)
        raise OutboxError(round=round_, machine=machine, limit=limits.memory_words, amount=amount)
    if limits.partners is not None:
        check_partners(round_, partners(mail.src, mail.dest, limits.machines), limits.partners)


def check_lengths(round_: int, lengths: set[int]) -> None:
    """Raise if the messages of one round have different lengths."""
    if len(lengths) > 1:
        given = f"lengths {sorted(lengths)} in round {round_}"
        raise InputError("messages", given=given, expected="one length per round", hint="pad with zeros")


def check_received(round_: int, mail: Mail, limits: Limits) -> None:
    """Raise unless every inbox is within the limits on words and on partners."""
    check_inboxes(round_, np.bincount(mail.dest, minlength=limits.machines) * mail.width, limits)
    if limits.partners is not None:
        check_partners(round_, partners(mail.dest, mail.src, limits.machines), limits.partners)


def check_inboxes(round_: int, received: NDArray[np.int64], limits: Limits) -> None:
    """Raise unless every machine received at most s words."""
    machine = int(np.argmax(received))
    if received[machine] > limits.memory_words:
        amount = int(received[machine])
        raise InboxError(round=round_, machine=machine, limit=limits.memory_words, amount=amount)


def check_partners(round_: int, count: NDArray[np.int64], limit: int) -> None:
    """Raise if a machine has more partners than the limit in one direction."""
    machine = int(np.argmax(count))
    if count[machine] > limit:
        raise PartnersError(round=round_, machine=machine, limit=limit, amount=int(count[machine]))


def partners(machine: Numbers, other: Numbers, machines: int) -> NDArray[np.int64]:
    """How many different partners each machine has; mail to itself does not count.

    >>> partners(np.array([0, 0, 0, 1]), np.array([1, 1, 2, 1]), 3)
    array([2, 0, 0])
    """
    apart = machine != other
    pairs = np.unique(np.stack([machine[apart], other[apart]], axis=1), axis=0)
    return np.bincount(pairs[:, 0], minlength=machines)


def round_load(round_: int, sent: NDArray[np.int64], received: NDArray[np.int64], limits: Limits) -> RoundLoad:
    """The loads of a round, in the smallest integer type that holds them."""
    kind = np.min_scalar_type(limits.memory_words)
    return RoundLoad(round_, sent.astype(kind), received.astype(kind))


def loads(round_: int, mail: Mail, limits: Limits) -> RoundLoad:
    """The words each machine sent and received."""
    sent = np.bincount(mail.src, minlength=limits.machines) * mail.width
    received = np.bincount(mail.dest, minlength=limits.machines) * mail.width
    return round_load(round_, sent, received, limits)


def finish_round(round_: int, sent: list[Mail], senders: NDArray[np.bool_], limits: Limits) -> tuple[Mail, RoundLoad]:
    """Check the one mail in a list against every limit and deliver it; the load of the round comes with it.

    The list is emptied, for the sake of memory: see `deliver_and_free`.
    """
    check_sent(round_, sent[0], limits, senders)
    check_received(round_, sent[0], limits)
    load = loads(round_, sent[0], limits)
    return deliver_and_free(sent, limits.machines), load


def deliver(mail: Mail, machines: int) -> Mail:
    """The same records ordered by (dest, src); those from one sender to one receiver stay in the order of sending."""
    return deliver_and_free([mail], machines)


def deliver_and_free(sent: list[Mail], machines: int) -> Mail:
    """`deliver` for the one mail in a list, which it empties: if nothing else refers to the mail, memory is halved."""
    mail = sent.pop()
    if len(mail) == 0:
        # Empty mail has no width of its own. Always say 1, so that it does not depend on the shards.
        return Mail([], [], [])
    # At a million records every copy counts, so machine numbers take as few bytes as possible meanwhile.
    small = np.min_scalar_type(machines)
    words, dest, src = [mail.words], mail.dest.astype(small), mail.src.astype(small)
    del mail
    order = stable_order(src, machines)
    by_dest = stable_order(dest if order is None else dest[order], machines)
    if by_dest is not None:
        order = by_dest if order is None else order[by_dest]
        del by_dest
    if order is not None:
        words, dest, src = [np.take(words.pop(), order, axis=0)], dest[order], src[order]
        del order
    return Mail(dest.astype(np.int64), src.astype(np.int64), words.pop())
