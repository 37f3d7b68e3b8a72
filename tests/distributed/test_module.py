"""`nn.AnnaAttention` over slices of a sequence: outputs and gradients of one process, positions included."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from annattn import distributed
from annattn.errors import InputError
from annattn.nn import AnnaAttention

CUT = (4, 0, 7, 2)
DIM = 16


def module_and_tokens(options: dict[str, Any]) -> tuple[AnnaAttention, Tensor]:
    torch.manual_seed(0)
    module = AnnaAttention(DIM, 4, kv_heads=2, tables=3, hashes=2, **options).double()
    if module.gate is not None:
        torch.nn.init.normal_(module.gate)
    return module, torch.randn(2, sum(CUT), DIM, dtype=torch.float64)


def attend(group: dist.ProcessGroup | None, options: dict[str, Any], call: dict[str, Any], again: bool = False):
    """Outputs, and gradients of tokens and weights, of this rank's slice or of everything."""
    module, x = module_and_tokens(options)
    if group is not None:
        rank = dist.get_rank(group)
        x = x[:, sum(CUT[:rank]) : sum(CUT[: rank + 1])]
        call = {**call, "group": group}
    x = x.clone().requires_grad_()
    out = checkpoint(module, x, use_reentrant=False, **call) if again else module(x, **call)
    assert isinstance(out, Tensor)
    out.square().sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad, {name: weight.grad for name, weight in module.named_parameters()}


def compare(pool, options: dict[str, Any], again: bool = False, **call: Any) -> None:
    out, grad, weights = attend(None, options, call)
    found = pool.run(len(CUT), attend, options, call, again)
    torch.testing.assert_close(torch.cat([one[0] for one in found], 1), out, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(torch.cat([one[1] for one in found], 1), grad, rtol=1e-9, atol=1e-11)
    for name, wanted in weights.items():
        parts = [one[2][name] for one in found]
        if wanted is None:
            assert all(part is None for part in parts)
        else:
            torch.testing.assert_close(sum(parts), wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("rotary", ["none", "near", "all"])
def test_a_rank_counts_positions_from_the_start_of_the_sequence(pool, rotary, window, is_causal):
    compare(pool, {"rotary": rotary, "window": window, "is_causal": is_causal})


def test_documents_shift_and_the_exact_gradient(pool):
    options = {"window": 2, "shift": 1, "combine": "joined", "gradient": "exact", "rotary": "near"}
    compare(pool, options, documents=torch.tensor([0, 4, 9, 13]))


def test_a_pass_that_is_computed_again_has_the_same_gradients(pool):
    compare(pool, {"window": 3, "rotary": "all"}, again=True)


def place(group: dist.ProcessGroup) -> int:
    return distributed.first_place(CUT[dist.get_rank(group)], group=group)


def test_where_slices_begin(pool):
    assert pool.run(4, place) == [0, 4, 4, 11]
    assert pool.run(1, place) == [0]


def refuse(group: dist.ProcessGroup, what: str) -> None:
    module, x = module_and_tokens({"window": 2, "train": "sampled" if what == "form" else "hashed"})
    module(x, group=group, cache=module.new_cache(2) if what == "cache" else None)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("cache", "cache: got one, and a group, expected one of them"),
        ("form", "group: got one for a module that trains with 'sampled', which takes all pairs of tokens"),
    ],
)
def test_what_no_rank_can_do_alone_is_refused(pool, what, said):
    for fine, error in pool.outcomes(2, refuse, what):
        assert not fine
        assert error[0] == InputError.__name__
        assert said in error[1]
