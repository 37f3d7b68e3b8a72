"""What context-parallel ANNA sends, beside a ring of softmax attention, and one long sequence over four processes.

python -m benchmarks.context_parallel bytes
python -m benchmarks.context_parallel gradients
python -m benchmarks.context_parallel long --tokens 4194304
"""

import argparse
import json
import multiprocessing
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import annattn as aa
from annattn import distributed
from annattn.files import write_json
from annattn.measure import describe_machine, peak_memory

__all__ = ["main", "ring_bytes"]

TABLES, HASHES = 8, 8


def ring_bytes(n: int, ranks: int, dim: int, itemsize: int = 4) -> int:
    """What a rank sends in a forward pass of ring attention: its keys and values, handed on ranks - 1 times."""
    return (ranks - 1) * 2 * n * dim * itemsize


def _ring(key: Tensor, value: Tensor) -> int:
    """A real ring: every rank hands on the keys and values it holds until all have been everywhere; bytes sent.

    What is computed on the way does not change the traffic, so nothing is.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = 0
    for held in (key, value):
        for _ in range(size - 1):
            coming = torch.empty_like(held)
            work = [dist.isend(held, (rank + 1) % size), dist.irecv(coming, (rank - 1) % size)]
            for one in work:
                assert one is not None
                one.wait()
            sent += held.nbytes
            held = coming
    return sent


def _slice(n: int, dim: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(rank)
    query, key, value = (torch.randn(1, 1, n, dim, generator=made) for _ in range(3))
    return query, key, value


def _bytes(lengths: list[int], dim: int, backward: bool) -> list[dict[str, Any]]:
    hasher = aa.lsh.Hyperplane(dim).sample(tables=TABLES, hashes=HASHES, seed=0)
    found = []
    for n in lengths:
        query, key, value = _slice(n, dim, dist.get_rank())
        if backward:
            for x in (query, key, value):
                x.requires_grad_()
        with distributed.counting() as traffic:
            out = distributed.anna_attention(query, key, value, hasher, is_causal=True)
            if backward:
                out.sum().backward()
        row: dict[str, Any] = {"n": n, "sent": traffic.sent, "predicted": traffic.predicted, "agreed": traffic.agreed}
        row["ways"] = [one.way for one in traffic.exchanges]
        row["each"] = [one.sent for one in traffic.exchanges]
        del out, query
        if not backward:
            row["ring"] = _ring(key.detach(), value.detach())
        found.append(row)
    return found


def _long(tokens: int, dim: int) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    n = tokens // size
    hasher = aa.lsh.Hyperplane(dim).sample(tables=TABLES, hashes=HASHES, seed=0)
    small = _slice(64, dim, rank)
    distributed.anna_attention(*small, hasher, is_causal=True)  # compiled and warm
    before = peak_memory()
    query, key, value = _slice(n, dim, rank)
    dist.barrier()
    started = time.perf_counter()
    with distributed.counting() as traffic:
        out = distributed.anna_attention(query, key, value, hasher, is_causal=True)
    seconds = time.perf_counter() - started
    # The last queries of the sequence again, by one process that reads every rank's state: an independent sum.
    checked = _check(out, query, key, value, hasher)
    return {
        "tokens": n, "seconds": seconds, "sent": traffic.sent, "way": traffic.exchanges[0].way,
        "inputs": 3 * query.nbytes, "peak": peak_memory(), "before": before, "largest_error": checked,
    }  # fmt: skip


def _check(out: Tensor, query: Tensor, key: Tensor, value: Tensor, hasher: aa.lsh.Hasher) -> float:
    """The largest error of eight queries of the last rank, against counts of collisions with every key of all ranks."""
    last = dist.get_world_size() - 1
    asked = query[0, 0, -8:].clone()
    dist.broadcast(asked, last)
    codes = hasher(asked)
    end = key.shape[2] - 8
    total, count = torch.zeros(8, value.shape[3], dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    for start in range(0, key.shape[2], 2**16):
        part = slice(start, start + 2**16)
        met = (codes[:, None] == hasher(key[0, 0, part])[None]).sum(-1).double()
        if dist.get_rank() == last:
            places = torch.arange(start, start + met.shape[1])
            met *= places <= end + torch.arange(8)[:, None]
        total += met @ value[0, 0, part].double()
        count += met.sum(-1)
    dist.all_reduce(total)
    dist.all_reduce(count)
    if dist.get_rank() != last:
        return 0.0
    return float((total / count.clamp(min=1)[:, None] - out[0, 0, -8:].double()).abs().max())


def _work(rank: int, size: int, port: int, task: str, arguments: tuple[Any, ...], pipe: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    pipe.send({"bytes": _bytes, "long": _long}[task](*arguments))
    dist.barrier()
    dist.destroy_process_group()


def _on(size: int, task: str, *arguments: Any) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [context.Pipe() for _ in range(size)]
    ranks = [
        context.Process(target=_work, args=(rank, size, port, task, arguments, pipes[rank][1])) for rank in range(size)
    ]
    for one in ranks:
        one.start()
    found = [mine.recv() for mine, _ in pipes]
    for one in ranks:
        one.join()
    return found


def main() -> None:
    """Print what was counted as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["bytes", "gradients", "long"])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--dim", type=int, default=64, help="of the one head, float32")
    parser.add_argument("--tokens", type=int, default=2**22)
    parser.add_argument("--largest", type=int, default=20, help="log2 of the tokens per rank")
    parser.add_argument(
        "--out", type=Path, help="folder for scale.json, which `annattn report --scale` reads; for bytes"
    )
    options = parser.parse_args()
    lengths = [2**power for power in range(14, options.largest + 1, 2)]
    if options.what == "long":
        found = _on(options.ranks, "long", options.tokens, options.dim)
    else:
        found = _on(options.ranks, "bytes", lengths, options.dim, options.what == "gradients")
        for row in (row for rank in found for row in rank):
            assert row["sent"] == row["predicted"]
            assert row.get("ring") in (None, ring_bytes(row["n"], options.ranks, options.dim))
    if options.out is not None and options.what == "bytes":
        most = [
            {"tokens": n, "sent": max(rank[at]["sent"] for rank in found), "ring": found[0][at]["ring"]}
            for at, n in enumerate(lengths)
        ]
        settings = {"ranks": options.ranks, "dim": options.dim, "tables": TABLES, "hashes": HASHES}
        options.out.mkdir(parents=True, exist_ok=True)
        write_json({"machine": describe_machine(), **settings, "rows": most}, options.out / "scale.json")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
