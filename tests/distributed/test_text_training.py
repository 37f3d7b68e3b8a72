"""Training on text in several processes: the weights of one, and the same bits after a stop."""

from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from annattn.experiments.text import train_text
from tests.distributed.pool import LARGEST
from tests.experiments.text.test_training import RECIPE, tiny

# Six excerpts for four processes: two of them take one and two take two.
SHARED = replace(RECIPE, batch=6, steps=4)


def train_some(_: dist.ProcessGroup, folder: Path | None, stop_at: int | None) -> dict[str, Tensor]:
    seen = []
    model = train_text(SHARED, tiny(), seed=3, folder=folder, stop_at=stop_at, report=lambda step: seen.append(step))
    assert bool(seen) == (dist.get_rank() == 0)
    return model.state_dict()


def test_processes_train_the_weights_of_one_and_go_on_after_a_stop(pool, tmp_path):
    one = train_text(SHARED, tiny(), seed=3).state_dict()
    whole = pool.run(LARGEST, train_some, None, None)
    pool.run(LARGEST, train_some, tmp_path / "run", 2)
    again = pool.run(LARGEST, train_some, tmp_path / "run", None)
    for name, weight in one.items():
        torch.testing.assert_close(whole[0][name], weight, rtol=1e-4, atol=1e-5)
        assert all(torch.equal(found[name], whole[0][name]) for found in (*whole, *again)), name
    other = train_text(SHARED, tiny(), seed=4).state_dict()
    assert any(not torch.allclose(other[name], weight, atol=1e-3) for name, weight in one.items())
