"""Four processes that stay: real ranks for many tests, started once."""

import contextlib
import importlib
import multiprocessing
import os
import pickle
import socket
import traceback
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["LARGEST", "Pool", "free_port", "workers"]

LARGEST = 4
_SECONDS = 300.0  # longer than kernels take to compile; a task that takes longer hangs


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def workers() -> Any:
    """Processes that start with everything imported: by a server that imports it once and then forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.distributed.cases"])
    return context


def _work(rank: int, port: int, tasks: Any) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=LARGEST)
    groups = {size: dist.new_group(range(size)) for size in range(1, LARGEST + 1)}
    # Plain pickles: torch's own would pass tensors through shared memory and keep its files open.
    while (task := pickle.loads(tasks.recv_bytes())) is not None:
        module, name, size, arguments = task
        try:
            outcome = True, getattr(importlib.import_module(module), name)(groups[size], *arguments)
        except Exception as error:
            outcome = False, (type(error).__name__, str(error), traceback.format_exc())
        tasks.send_bytes(pickle.dumps(outcome))
    os._exit(0)


class Pool:
    """Ranks 0 to 3; a task runs on the first few of them, in a group of their own."""

    def __init__(self) -> None:
        context, port = workers(), free_port()
        ends = [context.Pipe() for _ in range(LARGEST)]
        self._pipes = [mine for mine, _ in ends]
        self._processes = [
            context.Process(target=_work, args=(rank, port, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(ends)
        ]
        for process in self._processes:
            process.start()

    def outcomes(self, size: int, task: Any, *arguments: Any) -> list[tuple[bool, Any]]:
        """Of each rank, whether the task returned, and what; or the name, message and traceback of what it raised."""
        for pipe in self._pipes[:size]:
            pipe.send_bytes(pickle.dumps((task.__module__, task.__name__, size, arguments)))
        found = []
        for rank, pipe in enumerate(self._pipes[:size]):
            if not pipe.poll(_SECONDS):
                raise TimeoutError(f"rank {rank} hangs in {task.__name__}")
            found.append(pickle.loads(pipe.recv_bytes()))
        return found

    def run(self, size: int, task: Any, *arguments: Any) -> list[Any]:
        """What the task returned on each rank."""
        outcomes = self.outcomes(size, task, *arguments)
        for rank, (fine, what) in enumerate(outcomes):
            assert fine, f"rank {rank}: {what[2]}"
        return [what for _, what in outcomes]

    def close(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):  # a rank may end by itself once another has
                pipe.send_bytes(pickle.dumps(None))
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
