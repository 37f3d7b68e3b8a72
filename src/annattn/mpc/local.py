"""The engine in this process: one step for all machines and one stable sort a round."""

from collections.abc import Callable

import numpy as np

from annattn.mpc.delivery import check_received, check_sent, deliver, deliver_all, loads, step
from annattn.mpc.model import Limits, Mail, Protocol, Result, Words
from annattn.mpc.trace import RoundLoad, Trace

__all__ = ["first_mail", "run"]


def run(protocol: Protocol, words: Words, *, progress: Callable[[RoundLoad, int], None]) -> Result:
    """Run every round in turn, with every limit checked before the mail is delivered."""
    limits = protocol.limits
    mail = first_mail(protocol, words)
    record: list[RoundLoad] = []
    for round_ in range(protocol.rounds):
        senders = np.zeros(limits.machines, bool)
        senders[mail.dest] = True
        sent = [step(protocol, round_, mail)]
        # What was received is no longer needed, and what was sent only until it is delivered.
        del mail
        check_sent(round_, sent[0], limits, senders)
        check_received(round_, sent[0], limits)
        record.append(loads(round_, sent[0], limits))
        mail = deliver_all(sent, limits.machines)
        progress(record[-1], protocol.rounds)
    return Result(protocol.gather(mail), Trace(limits, tuple(record)))


def first_mail(protocol: Protocol, words: Words) -> Mail:
    """The input in its machines' inboxes, held to the same limits as any mail (but for partners: nobody sent it)."""
    limits = protocol.limits
    # A step may use its mail as scratch paper; the input is the caller's.
    mail = protocol.scatter(words.copy())
    unsent = Limits(limits.machines, limits.memory_words, limits.word_bits)
    check_sent(-1, mail, unsent, None)
    check_received(-1, mail, unsent)
    return deliver(mail, limits.machines)
