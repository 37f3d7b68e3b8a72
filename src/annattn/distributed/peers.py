"""The ranks of a process group: what they exchange, what it costs, and how the loss of one reaches the others."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from annattn.distributed.traffic import Exchange, counters
from annattn.errors import InputError, RankError

__all__ = ["ROLL_CALL_SECONDS", "FromTheEnd", "Peers", "cpu_by_default"]

P = ParamSpec("P")
R = TypeVar("R")

_LOOK_SECONDS = 0.5  # between two looks at what other ranks have reported, while waiting for them
ROLL_CALL_SECONDS = 5.0
"""How long the ranks that are left wait for each other's sign of life once an exchange has failed."""

_CALLS: Counter[str] = Counter()
"""How many calls this process has made in each group."""

_WHAT_TO_DO = (
    "look at the output of that rank for the reason, then start all ranks again: the group cannot be used any more "
    "(torchrun --max-restarts=1 restarts them by itself)"
)


def cpu_by_default(function: Callable[P, R]) -> Callable[P, R]:
    """The function, in which a tensor that is made for no device in particular is on the CPU."""

    @wraps(function)
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return plain


class Peers:
    """The ranks that hold one sequence among them, in the order of their slices.

    Nothing is exchanged through the store unless something fails: then each rank that is left writes down that it is
    there, and those that do not are named.
    """

    def __init__(self, group: dist.ProcessGroup | None, patience: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise InputError(
                "process group",
                given="none",
                expected="an initialised torch.distributed",
                hint='start with torchrun and call torch.distributed.init_process_group("gloo") first, or "nccl"',
            )
        found = dist.group.WORLD if group is None else group
        if not isinstance(found, dist.ProcessGroup):
            hint = 'of a device mesh, pass mesh["context"].get_group()'
            raise InputError("group", given=found, expected="a process group with this rank in it", hint=hint)
        self.group = found
        self.rank, self.size = dist.get_rank(found), dist.get_world_size(found)
        self.patience = patience
        # All ranks make the same calls in the same order. What one reported in an earlier call, which its caller may
        # have caught, says nothing about this one.
        _CALLS[found.group_name] += 1
        self._store = dist.distributed_c10d.PrefixStore(
            f"annattn/{found.group_name}/{_CALLS[found.group_name]}", dist.distributed_c10d._get_default_store()
        )
        # NCCL's work is waited for by the device, and its own watchdog ends the processes.
        self._asks = dist.get_backend(found) == "gloo"
        self.sent = 0

    def gather(self, numbers: Tensor, doing: str) -> Tensor:
        """Small tensors of one shape from all ranks, (ranks, ...)."""
        if self.size == 1:
            return numbers[None]
        parts = [torch.empty_like(numbers) for _ in range(self.size)]
        work = dist.all_gather(parts, numbers.contiguous(), group=self.group, async_op=True)
        self._wait(work, doing)
        for traffic in counters():
            traffic.agreed += (self.size - 1) * numbers.nbytes
        return torch.stack(parts)

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int], doing: str) -> list[Tensor]:
        """Send bytes parts[s] to rank s; returns those of all ranks, of which rank s sent sizes[s]."""
        own = parts[self.rank]
        if self.size == 1:
            return [own]
        # What stays here is not handed over.
        out = [part if s != self.rank else part[:0] for s, part in enumerate(parts)]
        lengths = [size if s != self.rank else 0 for s, size in enumerate(sizes)]
        sent = torch.cat(out)
        received = torch.empty(sum(lengths), dtype=torch.uint8, device=own.device)
        work = dist.all_to_all_single(
            received, sent, lengths, [len(part) for part in out], group=self.group, async_op=True
        )
        self._wait(work, doing)
        self.sent += len(sent)
        for traffic in counters():
            traffic.sent += len(sent)
        found = list(received.split(lengths))
        found[self.rank] = own
        return found

    @property
    def device(self) -> torch.device:
        """Where tensors have to be for these ranks to exchange them."""
        return torch.device("cpu" if self._asks else f"cuda:{torch.cuda.current_device()}")

    @property
    def straight(self) -> "Peers":
        """These ranks in the order of their slices."""
        return self

    @contextmanager
    def predicting(self, what: str, way: str, predicted: int) -> Iterator[None]:
        """Note for whoever counts how many bytes are sent inside beside how many were predicted."""
        before = self.sent
        yield
        for traffic in counters():
            traffic.exchanges.append(Exchange(what, way, predicted, self.sent - before))

    @contextmanager
    def telling(self, doing: str) -> Iterator[None]:
        """Let the other ranks know if this one raises in between, so that they need not wait for it."""
        try:
            yield
        except RankError:
            raise
        except BaseException as error:
            if self.size > 1:
                self._report(f"raised {type(error).__name__} in {doing}: {error}")
            raise

    def _report(self, what: str) -> None:
        with contextlib.suppress(RuntimeError):  # whoever keeps the store is gone, and so are the others
            self._store.set(str(self.rank), what)

    def _wait(self, work: dist.Work | None, doing: str) -> None:
        assert work is not None
        if not self._asks:
            work.wait()
            return
        until = time.monotonic() + self.patience
        while True:
            try:
                work.wait(timedelta(seconds=min(_LOOK_SECONDS, self.patience)))
            except RuntimeError as error:
                if work.is_completed():
                    raise self._lost(doing, "the connection was closed") from error
                if time.monotonic() > until:
                    raise self._lost(doing, f"no answer for {self.patience:g} s") from None
                self._raise_for_others(doing)
            else:
                return

    def _reports(self) -> dict[int, str]:
        """What the other ranks have written down, by rank."""
        others = [str(rank) for rank in range(self.size) if rank != self.rank]
        return {int(rank): self._store.get(rank).decode() for rank in others if self._store.check([rank])}

    def _raise_for_others(self, doing: str) -> None:
        try:
            reports = self._reports()
        except RuntimeError:
            raise self._lost(doing, "the store does not answer") from None
        self._raise_if_one_raised(reports)

    def _raise_if_one_raised(self, reports: dict[int, str]) -> None:
        for rank, text in reports.items():
            if text.startswith("raised"):
                raise RankError(f"rank {rank} of {self.size} {text}; {_WHAT_TO_DO}")

    def _lost(self, doing: str, how: str) -> RankError:
        """The error that names the ranks which raised, or give no sign of life."""
        until = time.monotonic() + ROLL_CALL_SECONDS
        try:
            self._store.set(str(self.rank), f"waited in {doing}")
            self._raise_if_one_raised(reports := self._reports())
            while len(reports) < self.size - 1 and time.monotonic() < until:
                time.sleep(0.05)
                self._raise_if_one_raised(reports := self._reports())
        except RankError as found:
            return found
        except RuntimeError:
            return RankError(
                f"rank {self.rank} lost the others in {doing} ({how}), and the store as well: the process that keeps "
                f"it has ended, which is rank 0 unless torchrun started the ranks; {_WHAT_TO_DO}"
            )
        silent = [rank for rank in range(self.size) if rank != self.rank and rank not in reports]
        who = f"rank {', '.join(map(str, silent))} of {self.size}" if silent else f"a rank of {self.size}"
        return RankError(f"{who} ended or stopped answering, noticed in {doing} ({how}); {_WHAT_TO_DO}")


class FromTheEnd(Peers):
    """The same ranks in reverse order: the last one is the first, and what it may see comes after it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.rank, self.size = peers.size - 1 - peers.rank, peers.size

    @property
    def device(self) -> torch.device:
        """As without the reversal."""
        return self._peers.device

    @property
    def straight(self) -> Peers:
        """The ranks that these are."""
        return self._peers

    def gather(self, numbers: Tensor, doing: str) -> Tensor:
        """The last rank's first."""
        return self._peers.gather(numbers, doing).flip(0)

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int], doing: str) -> list[Tensor]:
        """To and from the last rank first."""
        return self._peers.exchange(parts[::-1], sizes[::-1], doing)[::-1]

    @contextmanager
    def predicting(self, what: str, way: str, predicted: int) -> Iterator[None]:
        """As without the reversal."""
        with self._peers.predicting(what, way, predicted):
            yield

    @contextmanager
    def telling(self, doing: str) -> Iterator[None]:
        """As without the reversal."""
        with self._peers.telling(doing):
            yield
