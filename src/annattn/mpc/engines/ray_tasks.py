"""What the workers of Ray do: place a part of the input, run one round of a shard, read a part of the output.

A task is a pure function of what it is given. When its worker dies, Ray runs it again with the same result: a machine
is its mail, so nothing is lost with a process.
"""

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from annattn.errors import InputError, LimitError
from annattn.mpc.delivery import check_sent, deliver, deliver_input, have_mail, step
from annattn.mpc.engines.checkpoints import load_inbox, save_inbox
from annattn.mpc.engines.reports import Report, late_breach, received_words
from annattn.mpc.engines.shards import cut_into_shards, machines_of_shard
from annattn.mpc.model import Limits, Mail, Numbers, Protocol, Words, as_words
from annattn.mpc.part_files import read_part, table_words, write_part
from annattn.mpc.parts.stages import join_mail

__all__ = ["Columns", "count_rows", "gather_all", "gather_shard", "run_round", "scatter_all", "scatter_part"]

Columns = tuple[Numbers, Numbers, Words]
"""Mail as Ray moves it: its dest, src and words."""


def count_rows(table: Any) -> tuple[int, int]:
    """The records of a block of a dataset, and the words of each."""
    words = table_words(table)
    return len(words), words.shape[1] if words.ndim == 2 else 1


def scatter_part(protocol: Protocol, shards: int, span: range, records: int, part: Any) -> tuple[Any, ...]:
    """Place one part of the input, which is a span of all records: a report, and the mail for every shard."""
    limits = protocol.limits
    # Nobody sent the input, so there is no limit on partners.
    any_partners = Limits(limits.machines, limits.memory_words, limits.word_bits)
    try:
        words = _words(part, len(span))
        mail = protocol.scatter_part(words.copy(), span.start, records) if len(words) else _no_mail()
    except Exception as error:
        return Report(failed=(error, traceback.format_exc())), *_blank(shards)
    try:
        check_sent(-1, mail, any_partners, None)
    except LimitError as broken:
        return Report(broken=broken), *_blank(shards)
    return _posted(Report(width=_width(mail)), mail, limits, shards)


def scatter_all(protocol: Protocol, shards: int, lengths: Sequence[int], *parts: Any) -> tuple[Any, ...]:
    """Place an input that the protocol must see as a whole: a report, and the mail for every shard."""
    try:
        blocks = list(map(_words, parts, lengths))
        blocks = [words for words in blocks if len(words)] or blocks[:1]
        mail = deliver_input(protocol, np.concatenate(blocks))
    except LimitError as broken:
        return Report(broken=broken), *_blank(shards)
    except Exception as error:
        return Report(failed=(error, traceback.format_exc())), *_blank(shards)
    return _posted(Report(width=_width(mail)), mail, protocol.limits, shards)


def run_round(
    protocol: Protocol, round_: int, shard: int, shards: int, keep: Path | None, *pieces: Columns
) -> tuple[Any, ...]:
    """One round of one shard: its report, and its mail for every shard.

    Without pieces, the shard's mail is what it saved in the folder `keep` before it was interrupted.
    """
    limits = protocol.limits
    own = machines_of_shard(shard, limits.machines, shards)
    try:
        mail = _delivered(pieces, limits) if pieces or keep is None else load_inbox(keep, round_, shard, own)
    except Exception as error:
        return Report(failed=(error, traceback.format_exc())), *_blank(shards)
    received = received_words(mail, own)
    late = late_breach(round_ - 1, mail, received, own, limits)
    if late is not None:
        return Report(received, late=late), *_blank(shards)
    if keep is not None and pieces:
        save_inbox(keep, round_, shard, mail)
    senders = have_mail(mail, limits.machines)
    try:
        out = step(protocol, round_, mail)
    except Exception as error:
        return Report(received, failed=(error, traceback.format_exc())), *_blank(shards)
    width = _width(out)
    try:
        check_sent(round_, out, limits, senders)
    except LimitError as broken:
        return Report(received, width=width, broken=broken), *_blank(shards)
    sent = np.bincount(out.src - own.start, minlength=len(own)) * out.width
    return _posted(Report(received, sent, width), out, limits, shards)


def gather_shard(
    protocol: Protocol, shard: int, shards: int, folder: Path | None, *pieces: Columns
) -> tuple[Report, Any]:
    """The output of one shard's machines, as it is or written to a folder; None if they have no mail."""
    limits = protocol.limits
    own = machines_of_shard(shard, limits.machines, shards)
    mail = _delivered(pieces, limits)
    received = received_words(mail, own)
    late = late_breach(protocol.rounds - 1, mail, received, own, limits)
    report, output = Report(received, late=late), None
    if late is None and len(mail):
        try:
            output = protocol.gather_part(mail)
            if folder is not None:
                write_part(folder, shard, output)
                output = len(output)
        except Exception as error:
            report = Report(received, failed=(error, traceback.format_exc()))
    return report, output


def gather_all(protocol: Protocol, folder: Path | None, *pieces: Columns) -> tuple[Report, Any]:
    """The output of a protocol that must see all of its last mail, as it is or written to a folder."""
    limits = protocol.limits
    mail = _delivered(pieces, limits)
    own = range(limits.machines)
    received = received_words(mail, own)
    late = late_breach(protocol.rounds - 1, mail, received, own, limits)
    report, output = Report(received, late=late), None
    if late is None:
        try:
            output = protocol.gather(mail)
            if folder is not None:
                write_part(folder, 0, np.atleast_1d(output))
                output = np.size(output)
        except Exception as error:
            report = Report(received, failed=(error, traceback.format_exc()))
    return report, output


def _words(part: Any, records: int) -> Words:
    """A part of the input: a file, a block of a dataset, or an array."""
    if isinstance(part, Path):
        words = as_words(read_part(part))
    else:
        words = part if isinstance(part, np.ndarray) else table_words(part)
    if len(words) != records:
        where = f"{part} with " if isinstance(part, Path) else ""
        raise InputError(
            "part",
            given=f"{where}{len(words)} records",
            expected=f"the {records} it had when the run began",
            hint="let nothing change the input meanwhile",
        )
    return words


def _posted(report: Report, mail: Mail, limits: Limits, shards: int) -> tuple[Any, ...]:
    return report, *map(_columns, cut_into_shards(mail, limits.machines, shards))


def _delivered(pieces: Sequence[Columns], limits: Limits) -> Mail:
    """Pieces of mail in the order of an inbox, in memory that a step may use as scratch paper."""
    mail = deliver(join_mail(*[Mail(*piece) for piece in pieces]), limits.machines)
    # The object store's arrays are read-only.
    return Mail(*(np.require(column, requirements="W") for column in _columns(mail)))


def _columns(mail: Mail) -> Columns:
    return mail.dest, mail.src, mail.words


def _no_mail() -> Mail:
    return Mail([], [], [])


def _blank(shards: int) -> list[Columns]:
    return [_columns(_no_mail())] * shards


def _width(mail: Mail) -> int | None:
    return mail.width if len(mail) else None
