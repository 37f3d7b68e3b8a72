"""The engine on Ray: machines cut into shards, one task per shard and round, mail through the object store.

A task is a pure function of its shard's mail. When its worker dies, Ray runs it again with the same result: a machine
is its mail, so nothing is lost with a process.
"""

import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from annattn.errors import AnnattnError, LimitError
from annattn.mpc.delivery import (
    check_inboxes,
    check_lengths,
    check_partners,
    check_sent,
    deliver,
    deliver_input,
    have_mail,
    partners,
    round_load,
    step,
)
from annattn.mpc.engines.engine import Engine
from annattn.mpc.engines.shards import cut_into_shards
from annattn.mpc.model import Limits, Mail, Numbers, Progress, Protocol, Result, Words, whole
from annattn.mpc.parts.stages import join_mail
from annattn.mpc.trace import RoundLoad, Trace

__all__ = ["Columns", "RayEngine"]

Columns = tuple[Numbers, Numbers, Words]
"""Mail as Ray moves it: its dest, src and words."""

RETRIES = 10
"""How often a task that lost its worker is run again. A step that always kills its worker must come to an end."""


class RayEngine(Engine):
    """Runs every round as `shards` Ray tasks.

    Uses the Ray that this process is connected to, else the cluster at `address`, else starts Ray on this machine.
    """

    def __init__(self, shards: int = 4, address: str | None = None) -> None:
        self.shards, self.address = whole("shards", shards), address

    def run(self, protocol: Protocol, words: Words, progress: Progress) -> Result:
        """Run one round after the other; what goes wrong in Ray itself is an AnnattnError of one line."""
        ray = self._connected()
        try:
            return self._run(ray, protocol, words, progress)
        except ray.exceptions.RayError as error:
            raise AnnattnError(f"engine 'ray' stopped: {_in_one_line(error)}; engine 'local' needs no Ray") from error

    def _run(self, ray: Any, protocol: Protocol, words: Words, progress: Progress) -> Result:
        """All rounds; mail stays in the object store until the output is gathered."""
        limits, shards = protocol.limits, self.shards
        task = ray.remote(_shard_step).options(num_returns=shards + 1, max_retries=RETRIES)
        held = ray.put(protocol)
        mail = deliver_input(protocol, words)
        inboxes = [[ray.put(_columns(part))] for part in cut_into_shards(mail, limits.machines, shards)]
        loads: list[RoundLoad] = []
        for round_ in range(protocol.rounds):
            sent = [task.remote(held, round_, shards, *inbox) for inbox in inboxes]
            try:
                reports: list[_Report] = ray.get([refs[0] for refs in sent])
            except ray.exceptions.WorkerCrashedError as died:
                message = f"round {round_}: a worker died in the same step {RETRIES + 1} times"
                raise AnnattnError(f"{message}; engine 'local' shows what the step does") from died
            for report in reports:
                if report.failed is not None:
                    raise report.failed[0] from AnnattnError(f"in a worker of Ray:\n{report.failed[1]}")
            outboxes = [refs[1:] for refs in sent]
            if any(report.broken for report in reports):
                _raise_breach(round_, reports, [ray.get(list(refs)) for refs in outboxes], limits)
            loads.append(_merge(round_, reports, limits))
            inboxes = [[refs[shard] for refs in outboxes] for shard in range(shards)]
            progress(loads[-1], protocol.rounds)
        arrived = [_joined(ray.get(inbox)) for inbox in inboxes]
        return Result(protocol.gather(deliver(join_mail(*arrived), limits.machines)), Trace(limits, tuple(loads)))

    def _connected(self) -> Any:
        """The package ray, connected to a cluster."""
        ray = _import_ray()
        if not ray.is_initialized():
            try:
                ray.init(
                    address=self.address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
                )
            except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                where = (
                    f"use the cluster at {self.address}" if self.address else "start Ray, or use the cluster it found"
                )
                raise AnnattnError(f"engine 'ray' cannot {where}: {_in_one_line(error)}") from error
        return ray


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise AnnattnError("engine 'ray' needs the package ray: pip install 'annattn[ray]'") from error
    return ray


def _in_one_line(error: Exception) -> str:
    r"""The kind of an error and what it says: its first line, or the last of a traceback that came from a worker.

    >>> _in_one_line(ConnectionError("nobody there\nsee the logs"))
    'ConnectionError: nobody there'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    said = lines[-1] if any(line.startswith("File ") for line in lines) else lines[0]
    return f"{type(error).__name__}: {said}"


def _nobody() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class _Report:
    """What a shard reports of its round: who had mail, words sent and received, partners heard, the width of its mail.

    If something went wrong it reports that instead: the limit that broke, or what the step raised and where.
    """

    senders: NDArray[np.bool_]
    sent: NDArray[np.int64] = field(default_factory=_nobody)
    received: NDArray[np.int64] = field(default_factory=_nobody)
    heard: NDArray[np.int64] | None = None
    width: int | None = None
    broken: LimitError | None = None
    failed: tuple[Exception, str] | None = None


def _shard_step(protocol: Protocol, round_: int, shards: int, *inbox: Columns) -> tuple[Any, ...]:
    """One round of one shard: its report, and its mail for every shard.

    If a limit broke, all of the mail goes to the first shard.
    """
    nothing = _columns(Mail([], [], []))
    limits = protocol.limits
    # The object store's arrays are read-only; a step may use its mail as scratch paper.
    columns = (np.require(column, requirements="W") for column in _columns(deliver(_joined(inbox), limits.machines)))
    mail = Mail(*columns)
    senders = have_mail(mail, limits.machines)
    try:
        out = step(protocol, round_, mail)
    except Exception as error:
        return _Report(senders, failed=(error, traceback.format_exc())), *[nothing] * shards
    try:
        check_sent(round_, out, limits, senders)
    except LimitError as broken:
        return _Report(senders, broken=broken), _columns(out), *[nothing] * (shards - 1)
    sent = np.bincount(out.src, minlength=limits.machines) * out.width
    received = np.bincount(out.dest, minlength=limits.machines) * out.width
    heard = None if limits.partners is None else partners(out.dest, out.src, limits.machines)
    width = out.width if len(out) else None
    parts = cut_into_shards(out, limits.machines, shards)
    return _Report(senders, sent, received, heard, width), *map(_columns, parts)


def _merge(round_: int, reports: Sequence[_Report], limits: Limits) -> RoundLoad:
    """The loads of the round from those of its shards, held to what a machine may receive.

    No machine sends from two shards, so the loads simply add up.
    """
    check_lengths(round_, {report.width for report in reports if report.width is not None})
    sent = np.sum([report.sent for report in reports], axis=0)
    received = np.sum([report.received for report in reports], axis=0)
    check_inboxes(round_, received, limits)
    if limits.partners is not None:
        heard = np.sum([report.heard for report in reports if report.heard is not None], axis=0)
        check_partners(round_, heard, limits.partners)
    return round_load(round_, sent, received, limits)


def _raise_breach(round_: int, reports: Sequence[_Report], pieces: Sequence[Sequence[Columns]], limits: Limits) -> None:
    """Look at all mail of the round at once, so that the error is the one the local engine raises."""
    mail = join_mail(*[_joined(part) for part in pieces])
    senders = np.any([report.senders for report in reports], axis=0)
    check_sent(round_, mail, limits, senders)
    # All mail together breaks no limit, so a shard sent in the name of another shard's machine.
    raise next(report.broken for report in reports if report.broken)


def _columns(mail: Mail) -> Columns:
    return mail.dest, mail.src, mail.words


def _joined(pieces: Sequence[Columns]) -> Mail:
    return join_mail(*[Mail(*piece) for piece in pieces])
