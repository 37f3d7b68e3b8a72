"""What a shard of machines tells of a round, and what the reports of all shards say together.

A report has the loads of the shard's own machines only, so those of all shards together take as much memory as the
loads of one round.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from annattn.errors import (
    AnnattnError,
    DestinationError,
    InboxError,
    LimitError,
    OutboxError,
    PartnersError,
    SourceError,
    WordError,
)
from annattn.mpc.delivery import check_inboxes, check_lengths, check_partners, partners
from annattn.mpc.model import Limits, Mail

__all__ = ["Report", "late_breach", "received_words", "require_received", "require_sent", "worst"]


def _nothing() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Report:
    """What a shard tells of one task: the mail it received from the round before, and the mail it sent.

    Attributes:
        received: words that each of its machines received.
        sent: words that each of its machines sent.
        width: the width of the mail it sent, or None if it sent nothing.
        late: the limit that the mail it received broke.
        broken: the limit that the mail it sent broke.
        failed: what the protocol raised, and the text of its traceback.
    """

    received: NDArray[np.int64] = field(default_factory=_nothing)
    sent: NDArray[np.int64] = field(default_factory=_nothing)
    width: int | None = None
    late: LimitError | None = None
    broken: LimitError | None = None
    failed: tuple[Exception, str] | None = None


def received_words(mail: Mail, own: range) -> NDArray[np.int64]:
    """The words that each machine of a shard received.

    >>> received_words(Mail([3, 3], [0, 1], [[5, 6], [7, 8]]), range(2, 4))
    array([0, 4])
    """
    return np.bincount(mail.dest - own.start, minlength=len(own)) * mail.width


def late_breach(round_: int, mail: Mail, received: NDArray[np.int64], own: range, limits: Limits) -> LimitError | None:
    """The limit that the mail delivered to a shard breaks, if any."""
    try:
        if len(own):
            check_inboxes(round_, received, limits)
            if limits.partners is not None and round_ >= 0:
                check_partners(round_, partners(mail.dest - own.start, mail.src - own.start, len(own)), limits.partners)
    except LimitError as broken:
        machine = broken.machine + own.start
        # Nobody sent the input: as for the local engine, too much of it is an outbox that is too full.
        kind = OutboxError if round_ < 0 else type(broken)
        return kind(round=round_, machine=machine, limit=broken.limit, amount=broken.amount)
    return None


def require_received(reports: Sequence[Report]) -> None:
    """Raise if an inbox broke a limit."""
    late = [report.late for report in reports if report.late is not None]
    if late:
        raise worst(late)


def require_sent(round_: int, reports: Sequence[Report]) -> None:
    """Raise if a step failed, records differ in length, or what was sent broke a limit: in the local engine's order."""
    for report in reports:
        if report.failed is not None:
            error, where = report.failed
            raise error from AnnattnError(f"in a worker of Ray:\n{where}")
    check_lengths(round_, {report.width for report in reports if report.width is not None})
    broken = [report.broken for report in reports if report.broken is not None]
    if broken:
        raise worst(broken)


ORDER: tuple[type[LimitError], ...] = (
    DestinationError,
    SourceError,
    WordError,
    OutboxError,
    InboxError,
    PartnersError,
)
"""The limits in the order in which `annattn.mpc.delivery` checks them."""


def worst(errors: Iterable[LimitError]) -> LimitError:
    """The one of several shards' errors that a check of all their mail at once would raise.

    >>> at = lambda kind, machine, amount: kind(round=0, machine=machine, limit=4, amount=amount)
    >>> str(worst([at(OutboxError, 2, 5), at(OutboxError, 7, 6)]))
    'round 0, machine 7: sent 6 words, but memory_words allows 4'
    """

    def rank(error: LimitError) -> tuple[int, int, int]:
        # Of full boxes and many partners the check names the largest; of the others, the lowest machine.
        counted = isinstance(error, (OutboxError, InboxError, PartnersError))
        return ORDER.index(type(error)), -error.amount if counted else 0, error.machine

    return min(errors, key=rank)
