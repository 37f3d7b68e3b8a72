"""The engine on Ray: machines cut into shards, one task per shard and round, mail through the object store.

The driver, which is this process, starts the tasks and reads their reports. Mail never passes through it, and neither
does input or output that is in files, in a dataset or in the object store.
"""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from annattn.errors import AnnattnError, InputError
from annattn.files import held
from annattn.mpc.delivery import round_load
from annattn.mpc.engines import ray_tasks
from annattn.mpc.engines.checkpoints import Checkpoints, identity
from annattn.mpc.engines.engine import Engine
from annattn.mpc.engines.reports import Report, require_received, require_sent
from annattn.mpc.model import Mail, Progress, Protocol, Result, Words, check_shape, whole
from annattn.mpc.part_files import PartFiles, new_folder, write_part
from annattn.mpc.trace import RoundLoad, Trace

__all__ = ["RayEngine"]

RETRIES = 10
"""How often a task that lost its worker is run again. A step that always kills its worker must come to an end."""


class RayEngine(Engine):
    """Runs every round as `shards` Ray tasks.

    Uses the Ray that this process is connected to, else the cluster at `address`, else starts Ray on this machine.

    Args:
        shards: tasks per round.
        address: a running cluster.
        output: a folder to write the output to, one .npy file per shard; the result then has `PartFiles`.
        references: leave the output in the object store; the result then has one reference per shard with output.
        checkpoints: a folder for the mail of the last finished round. A run that was killed goes on from there when it
            is started again; a run that ends deletes it. All nodes must see the folder.
    """

    reads_parts = True

    def __init__(
        self,
        shards: int = 4,
        address: str | None = None,
        output: str | Path | None = None,
        references: bool = False,
        checkpoints: str | Path | None = None,
    ) -> None:
        self.shards, self.address = whole("shards", shards), address
        self.output, self.references = output, references
        self.checkpoints = None if checkpoints is None else Path(checkpoints).absolute()
        if output is not None and references:
            raise InputError("references", given=True, expected="either references or an output folder")

    def run(self, protocol: Protocol, words: Words | PartFiles | Any, progress: Progress) -> Result:
        """Run one round after the other; what goes wrong in Ray itself is an AnnattnError of one line."""
        ray = self._connected()
        keeping = nullcontext() if self.checkpoints is None else held(self.checkpoints)
        writing = nullcontext() if self.output is None else new_folder(self.output)
        try:
            with keeping, writing as folder:
                run = _Run(ray, protocol, self.shards, words, folder, self.references, self.checkpoints)
                output, loads = run.all_rounds(progress)
        except ray.exceptions.RayError as error:
            raise AnnattnError(f"engine 'ray' stopped: {_in_one_line(error)}; engine 'local' needs no Ray") from error
        if run.saved is not None:
            run.saved.remove()
        if self.output is not None:
            output = PartFiles.open(self.output)
        return Result(output, Trace(protocol.limits, tuple(loads)))

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


@dataclass
class _Run:
    """One run of a protocol: references to the mail that every shard has received, and the loads so far."""

    ray: Any
    protocol: Protocol
    shards: int
    given: Words | PartFiles | Any
    folder: Path | None
    references: bool
    checkpoints: Path | None

    def all_rounds(self, progress: Progress) -> tuple[Any, list[RoundLoad]]:
        """Place the input or go on from the last finished round; run the rounds; read the output."""
        protocol, shards = self.protocol, self.shards
        first = 0 if self.saved is None else self.saved.finished()
        loads = [] if self.saved is None or first == 0 else self.saved.loads(protocol.limits)
        # Without mail, a task reads what was saved.
        mail: list[list[Any]] = [[] for _ in range(shards)] if first else self._scattered()
        sent: list[Any] | None = None
        task = self._task(ray_tasks.run_round, shards + 1)
        for round_ in range(first, protocol.rounds):
            keep = self.checkpoints if round_ else None
            refs = [task.remote(self._held, round_, shard, shards, keep, *pieces) for shard, pieces in enumerate(mail)]
            reports = self._reports(f"round {round_}", [ref[0] for ref in refs])
            require_received(reports)
            self._record(sent, reports, loads, progress)
            require_sent(round_, reports)
            if self.saved is not None and round_ > first:
                self.saved.save(round_, loads)
            sent = [report.sent for report in reports]
            mail = [[ref[1 + shard] for ref in refs] for shard in range(shards)]
        output, reports = self._gathered(mail)
        require_received(reports)
        self._record(sent, reports, loads, progress)
        require_sent(protocol.rounds, reports)
        return self._output(output, reports), loads

    @cached_property
    def saved(self) -> Checkpoints | None:
        """The folder of checkpoints, if there is one."""
        if self.checkpoints is None:
            return None
        return Checkpoints(self.checkpoints, identity(self.protocol, self.shards, _description(self.given)))

    @cached_property
    def _held(self) -> Any:
        return self.ray.put(self.protocol)

    def _task(self, function: Any, returns: int) -> Any:
        return self.ray.remote(function).options(num_returns=returns, max_retries=RETRIES)

    def _reports(self, where: str, refs: Sequence[Any]) -> list[Report]:
        try:
            return self.ray.get(list(refs))
        except self.ray.exceptions.WorkerCrashedError as died:
            message = f"{where}: a worker died in the same step {RETRIES + 1} times"
            raise AnnattnError(f"{message}; engine 'local' shows what the step does") from died

    def _record(
        self, sent: list[Any] | None, reports: Sequence[Report], loads: list[RoundLoad], progress: Progress
    ) -> None:
        """The load of the round before: what its shards said they sent, and what these reports say was received."""
        if sent is None:
            return
        received = np.concatenate([report.received for report in reports])
        loads.append(round_load(len(loads), np.concatenate(sent), received, self.protocol.limits))
        progress(loads[-1], self.protocol.rounds)

    def _scattered(self) -> list[list[Any]]:
        """For every shard, references to the input that its machines hold."""
        protocol, shards = self.protocol, self.shards
        parts, lengths = self._parts()
        records = sum(lengths)
        if protocol.takes_parts:
            task = self._task(ray_tasks.scatter_part, shards + 1)
            spans = [range(end - length, end) for length, end in zip(lengths, accumulate(lengths), strict=True)]
            refs = [
                task.remote(self._held, shards, span, records, part) for span, part in zip(spans, parts, strict=True)
            ]
        else:
            refs = [self._task(ray_tasks.scatter_all, shards + 1).remote(self._held, shards, lengths, *parts)]
        require_sent(-1, self._reports("the input", [ref[0] for ref in refs]))
        return [[ref[1 + shard] for ref in refs] for shard in range(shards)]

    def _parts(self) -> tuple[list[Any], list[int]]:
        """The input in parts that a task can take, and the number of records in each."""
        given = self.given
        if isinstance(given, PartFiles):
            return [path.absolute() for path in given.paths], list(given.lengths)
        if isinstance(given, np.ndarray):
            parts = np.array_split(given, self.shards)
            return [self.ray.put(part) for part in parts], [len(part) for part in parts]
        blocks = given.to_arrow_refs()
        shapes = self.ray.get([self._task(ray_tasks.count_rows, 1).remote(block) for block in blocks])
        for width in {width for length, width in shapes if length}:
            check_shape(self.protocol, sum(length for length, _ in shapes), width)
        return blocks, [length for length, _ in shapes]

    def _gathered(self, mail: list[list[Any]]) -> tuple[list[Any], list[Report]]:
        """References to the parts of the output, and the reports of those who read them."""
        if self.protocol.gives_parts:
            task = self._task(ray_tasks.gather_shard, 2)
            refs = [
                task.remote(self._held, shard, self.shards, self.folder, *pieces) for shard, pieces in enumerate(mail)
            ]
        else:
            every = [piece for pieces in mail for piece in pieces]
            refs = [self._task(ray_tasks.gather_all, 2).remote(self._held, self.folder, *every)]
        return [ref[1] for ref in refs], self._reports("the output", [ref[0] for ref in refs])

    def _output(self, refs: list[Any], reports: Sequence[Report]) -> Any:
        """What the caller gets: an array or references; nothing of use where the output is in files."""
        if not self.protocol.gives_parts:
            return refs if self.references else self.ray.get(refs[0])
        full = [ref for ref, report in zip(refs, reports, strict=True) if report.received.any()]
        if full:
            return full if self.references or self.folder else np.concatenate(self.ray.get(full))
        # Nobody has mail, so nobody read any; as on the local engine, the protocol is asked what that means.
        output = self.protocol.gather(Mail([], [], []))
        if self.folder is not None:
            write_part(self.folder, 0, output)
        return [self.ray.put(output)] if self.references else output


def _description(given: Words | PartFiles | Any) -> Any:
    """What a checkpoint remembers of its input."""
    if isinstance(given, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(given).data).hexdigest()
        return {"shape": list(given.shape), "sha256": digest}
    if isinstance(given, PartFiles):
        return [[path.name, *given.stamp(path)] for path in given.paths]
    # The blocks of a dataset may be computed anew each time; nothing about them is known to stay.
    return "a dataset"


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
