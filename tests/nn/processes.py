"""Run by tests in a process of its own: `autocast`, or `ranks FOLDER RANK` for one of two."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from annattn.nn import AnnaAttention


def model(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [
        AnnaAttention(16, 4, kv_heads=2, tables=4, hashes=3, window=4, rotary="near", seed=seed + i) for i in (0, 1)
    ]
    return torch.nn.Sequential(*layers)


def autocast() -> None:
    layer = model()[0]
    assert isinstance(layer, AnnaAttention)
    query, key, value = torch.randn(2, 4, 20, 4), *torch.randn(2, 2, 2, 20, 4)
    plain = layer.attend(query, key, value)
    x = torch.randn(2, 20, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        # Neither a hash nor the softmax of the window is left to half precision.
        assert torch.equal(layer.attend(query, key, value), plain)
        out = layer(x)
        assert out.dtype == torch.bfloat16
        cached = layer.eval()(x, cache=layer.new_cache(batch=2))
        torch.testing.assert_close(cached, out, rtol=2e-2, atol=2e-2)
    out.float().square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


def ranks(folder: str, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    data = torch.randn(4, 20, 16, generator=torch.Generator().manual_seed(1))
    whole = model()
    wanted = torch.autograd.grad(whole(data).square().mean(), list(whole.parameters()))
    mine = data[2 * rank : 2 * rank + 2]

    # DDP sends the buffers of rank 0, so that all ranks hash alike even where one was made with another seed.
    spread = DistributedDataParallel(model(seed=5 * rank))
    spread(mine).square().mean().backward()
    for parameter, grad in zip(spread.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-6)

    sharded = model()
    for layer in sharded:
        fully_shard(layer)
    fully_shard(sharded)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    sharded(mine).square().mean().backward()
    for parameter, grad in zip(sharded.parameters(), wanted, strict=True):
        assert isinstance(parameter, DTensor)
        assert isinstance(parameter.grad, DTensor)
        assert parameter.to_local().numel() < parameter.numel()
        torch.testing.assert_close(parameter.grad.full_tensor(), grad, rtol=1e-4, atol=1e-6)
    optimizer.step()
    with torch.no_grad():
        for parameter, grad in zip(whole.parameters(), wanted, strict=True):
            parameter -= 0.1 * grad
        torch.testing.assert_close(sharded(mine), whole(mine), rtol=1e-4, atol=1e-5)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    autocast() if sys.argv[1] == "autocast" else ranks(sys.argv[2], int(sys.argv[3]))
