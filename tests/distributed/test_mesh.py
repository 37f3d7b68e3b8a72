"""Context-parallel attention inside DDP, on a mesh of two dimensions: data × context."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import annattn as aa
from annattn import distributed
from annattn.lsh import Hasher

TOKENS, DIM = 12, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.hasher: Hasher = aa.lsh.Hyperplane(4).sample(tables=3, hashes=3, seed=1)

    def forward(self, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        query, key, value = self.into(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if group is None:
            read = aa.anna_attention(query, key, value, self.hasher, is_causal=True)
        else:
            read = distributed.anna_attention(query, key, value, self.hasher, is_causal=True, group=group)
        return x + self.out(read.transpose(1, 2).flatten(2))


def model_and_data() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.ModuleList([Block(), Block()]).double()
    return model, torch.randn(2, TOKENS, DIM, dtype=torch.float64)


class Stack(nn.Module):
    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        for block in self.blocks.children():
            x = block(x, group)
        return x


def train_on_mesh(_: dist.ProcessGroup) -> list[Tensor]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "context"))
    blocks, x = model_and_data()
    model = DistributedDataParallel(Stack(blocks))
    row, place = mesh["data"].get_local_rank(), mesh["context"].get_local_rank()
    cut = [slice(0, 5), slice(5, TOKENS)][place]
    out = model(x[row : row + 1, cut], mesh["context"].get_group())
    # DDP takes the mean over all ranks: of the parts of one sequence the sum is wanted.
    (2 * out.square().sum()).backward()
    return [p.grad for p in blocks.parameters() if p.grad is not None]


def test_gradients_of_a_data_by_context_mesh_are_those_of_one_process(pool):
    blocks, x = model_and_data()
    (Stack(blocks)(x, None).square().sum() / 2).backward()
    expected = [p.grad for p in blocks.parameters()]
    for found in pool.run(4, train_on_mesh):
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)
