"""A rank that dies, raises or stalls ends the others in time, with an error that names it."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import annattn as aa
from annattn import distributed
from annattn.distributed import states
from annattn.distributed.peers import ROLL_CALL_SECONDS
from tests.distributed.pool import free_port, workers

RANKS = 3
PATIENCE = 3.0


def fail(rank: int, port: int, how: str, victim: int, pipe) -> None:
    torch.set_num_threads(1)
    address, most = f"tcp://127.0.0.1:{port}", timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS, timeout=most)
    hasher = aa.lsh.Hyperplane(6).sample(tables=2, hashes=3)
    x = torch.randn(1, 1, 8, 6, requires_grad=True)
    out = distributed.anna_attention(x, x, x, hasher, way="states")
    if rank == victim and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == victim and how == "stalls":
        time.sleep(60)
    if rank == victim and how == "raises":
        states.fill_outer = lambda *_: (_ for _ in ()).throw(MemoryError("no room for a table"))
    started = time.monotonic()
    try:
        if how == "raises":
            out.sum().backward()
        else:
            distributed.anna_attention(x, x, x, hasher, way="states", patience=PATIENCE)
    except Exception as error:
        pipe.send((type(error).__name__, str(error), time.monotonic() - started))
    else:
        pipe.send(("nothing", "", 0.0))
    time.sleep(8)  # whoever ends first would look like one that died
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "victim", "said"),
    [
        ("killed", 2, "rank 2 of 3 ended or stopped answering, noticed in the agreement on anna_attention"),
        ("killed", 0, "the process that keeps it has ended, which is rank 0 unless torchrun started the ranks"),
        ("stalls", 1, "rank 1 of 3 ended or stopped answering, noticed in the agreement on anna_attention (no answer"),
        ("raises", 1, "rank 1 of 3 raised MemoryError in the backward pass of anna_attention: no room for a table"),
    ],
)
def test_the_others_end_in_time_and_say_which_rank(how, victim, said):
    context, port = workers(), free_port()
    pipes = [context.Pipe() for _ in range(RANKS)]
    processes = [
        context.Process(target=fail, args=(rank, port, how, victim, pipes[rank][1]), daemon=True)
        for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    try:
        for rank in set(range(RANKS)) - {victim}:
            assert pipes[rank][0].poll(60), f"rank {rank} hangs"
            kind, message, seconds = pipes[rank][0].recv()
            assert kind == "RankError"
            assert said in message, message
            assert "start all ranks again" in message
            assert seconds < PATIENCE + ROLL_CALL_SECONDS + 20  # seconds for a busy machine; a hang would last 120
    finally:
        for process in processes:
            process.kill()
