"""Training on several processes: each takes its share of every batch, and gradients are added up in a fixed order."""

import gc
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from annattn.distributed import PATIENCE
from annattn.distributed.agreement import agree
from annattn.distributed.peers import Peers
from annattn.errors import InputError, RankError
from annattn.interrupts import between_steps
from annattn.nn import Transformer
from annattn.tasks import Batch

__all__ = ["Ranks", "join_torchrun", "leave_torchrun"]

R = TypeVar("R")


def join_torchrun(backend: str = "gloo") -> None:
    """Join the processes that torchrun started.

    `init_process_group` alone would find the addresses of processes that died before a restart, since torchrun may keep
    its store: each life has a prefix of its own.
    """
    store, rank, size = next(rendezvous("env://"))
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.distributed_c10d.PrefixStore(f"life {life}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)


def leave_torchrun() -> None:
    """Leave the processes that torchrun started, once all have arrived here.

    What still refers to the group must be gone before it is: a process whose interpreter ends first is aborted.
    """
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


class Ranks:
    """The processes of the default group of torch.distributed, or this one alone.

    >>> ranks = Ranks()
    >>> ranks.size, ranks.writes
    (1, True)
    """

    def __init__(self) -> None:
        started = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if started else (0, 1)

    @property
    def writes(self) -> bool:
        """Whether this one writes and reports."""
        return self.rank == 0

    def check_batch(self, batch: int) -> None:
        """Raise InputError unless every process gets a part of it."""
        if batch < self.size:
            raise InputError("batch", given=batch, expected=f"at least one sequence for each of {self.size} processes")

    def agree(self, described: dict[str, str], error: Exception | None) -> None:
        """Raise the error, here or elsewhere, and unless all train the same."""
        if self.size > 1:
            agree(Peers(None, PATIENCE), "train", described, error)
        elif error is not None:
            raise error

    def start(self, batch: int, make: Callable[[], R], described: dict[str, str]) -> R:
        """What `make` gives; all processes learn of an error of one."""
        run, error = None, None
        try:
            self.check_batch(batch)
            run = make()
        except Exception as found:
            error = found
        self.agree(described, error)
        assert run is not None
        return run

    def share(self, model: nn.Module, optimiser: torch.optim.Optimizer, step: int) -> int:
        """Weights and the optimiser's state of the first process, on all; returns its step."""
        if self.size == 1:
            return step
        box = [(model.state_dict(), optimiser.state_dict(), step) if self.writes else None]
        dist.broadcast_object_list(box, src=0)
        if not self.writes:
            assert box[0] is not None
            weights, state, step = box[0]
            model.load_state_dict(weights)
            optimiser.load_state_dict(state)
        return step

    def part(self, batch: Batch) -> Batch:
        """This process's share of a batch, in the order of the ranks."""
        if self.size == 1:
            return batch
        mine = self.rows(len(batch))
        return Batch(batch.inputs[mine], batch.targets[mine], batch.mask[mine])

    def rows(self, batch: int) -> slice:
        """Which rows of a batch are this process's.

        >>> Ranks().rows(5)
        slice(0, 5, None)
        """
        return slice(batch * self.rank // self.size, batch * (self.rank + 1) // self.size)

    def parallel(self, model: Transformer) -> Callable[[Tensor, Any, int], Tensor]:
        """(inputs, mechanisms, seed of the hash functions) to logits; the gradients are the sums over all processes."""
        return self.adding(_Step(model))

    def adding(self, module: nn.Module) -> nn.Module:
        """The module, with gradients that are the sums over all processes."""
        if self.size == 1:
            return module
        parallel = DistributedDataParallel(module)
        parallel.register_comm_hook(None, _add_in_order)
        return parallel

    def total(self, *numbers: float) -> list[float]:
        """The sums of these over all processes, the same on each."""
        if self.size == 1:
            return list(numbers)
        found = torch.tensor(numbers, dtype=torch.float64)
        parts = [torch.empty_like(found) for _ in range(self.size)]
        dist.all_gather(parts, found)
        return torch.stack(parts).sum(0).tolist()

    def stop_together(self, stop_if_asked: Callable[[], None]) -> None:
        """`stop_if_asked`, on every process at the same step if on any."""
        if self.size == 1:
            stop_if_asked()
            return
        asked = False
        try:
            stop_if_asked()
        except KeyboardInterrupt:
            asked = True
        if self.total(asked)[0]:
            raise KeyboardInterrupt

    def go_on(self, run: "Stepping", last: int, save_every: int, advance: Callable[[], None]) -> None:
        """Step to the last step, and save every few steps, at the end, and on Ctrl-C, which waits for a step to end."""
        # Half a step would be saved as none, and the continued run would be wrong.
        with between_steps() as stop_if_asked:
            try:
                while run.step < last:
                    advance()
                    self.stop_together(stop_if_asked)
                    if run.step % save_every == 0 and run.step < last:
                        run.save()
            except KeyboardInterrupt:
                run.save()
                raise
            except RuntimeError as error:
                raise self.named(error, run.step) from error
            run.save()
            stop_if_asked()

    def named(self, error: RuntimeError, step: int) -> Exception:
        """The same error, or one that says what to do if it is the end of another process."""
        if self.size == 1 or not any(word in str(error) for word in ("gloo", "Connection", "NCCL", "peer")):
            return error
        return RankError(
            f"another of the {self.size} processes ended at step {step + 1}; the same command goes on from the last "
            "save (torchrun --max-restarts=3 starts it again by itself)"
        )


class Stepping(Protocol):
    """A run: the number of its next step, and how it is saved."""

    step: int

    def save(self) -> None: ...


class _Step(nn.Module):
    """The model under the mechanisms of a step; DDP wants one module for all of them."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, attention: Any, drawn: int) -> Tensor:
        model = self.model.first_layers(len(attention))
        logits = model.with_attention(*attention).draw(drawn)(inputs)
        left_out = [weight for block in list(self.model.blocks)[len(attention) :] for weight in block.parameters()]
        # A gradient of zero for them: DDP waits for every weight's, and the optimiser's state has one for each.
        return logits + 0 * sum(weight.sum() for weight in left_out) if left_out else logits


def _add_in_order(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # pyright: ignore[reportPrivateImportUsage]
    """Sums in the order of the ranks: an all-reduce's order depends on where in its buffer a number lies."""
    own = bucket.buffer()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    work = dist.all_gather(parts, own, async_op=True)
    assert work is not None

    def add(_: Any) -> Tensor:
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total

    return work.get_future().then(add)
