"""The two ways to combine a window with ANNA, on real text: bits per byte of small byte models, as a table.

    annattn data enwik8
    python -m benchmarks.window_combine --corpus enwik8 --seeds 0 1

Every model has two layers of width 64 with `nn.AnnaAttention`, a window of 16 and 16 tables of 12 hashes, and is
trained on the same excerpts. The far part of the last row meets nobody.
"""

import argparse
import time
from typing import Any

import torch
from torch import Tensor, nn

import annattn as aa
from annattn.data import Text, load

WAYS: dict[str, dict[str, Any]] = {
    "gate": {"combine": "gate"},
    "joined": {"combine": "joined"},
    "the window alone": {"combine": "joined", "tables": 1, "hashes": 60},
}
LENGTH, BATCH, HELD_OUT = 512, 4, 32


class Bytes(nn.Module):
    """A language model of bytes."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__()
        options = {"tables": 16, "hashes": 12, "window": 16, "shift": 1, "rotary": "near"} | options
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(256, 64)
        self.attentions = nn.ModuleList(aa.nn.AnnaAttention(64, 2, seed=2 * seed + n, **options) for n in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(2)
        )
        self.head = nn.Linear(64, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for attention, norm, mlp in zip(self.attentions, self.norms, self.mlps, strict=True):
            x = x + attention(norm(x))
            x = x + mlp(x)
        return self.head(x)


def loss(model: nn.Module, rows: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def bits(text: Text, seed: int, steps: int, way: dict[str, Any]) -> float:
    """Bits per byte on the validation part after training."""
    model = Bytes(seed, **way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        loss(model, torch.from_numpy(text.sample("train", BATCH, LENGTH + 1, (seed, step)))).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    rows = torch.from_numpy(text.sample("validation", HELD_OUT, LENGTH + 1, (0, 0)))
    with torch.no_grad():
        return loss(model.eval(), rows).item() / torch.tensor(2.0).log().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="enwik8")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    given = parser.parse_args()
    text = load(given.corpus)
    print("| combine | " + " | ".join(f"seed {seed}" for seed in given.seeds) + " | CPU seconds |")
    print("| --- " * (len(given.seeds) + 2) + "|")
    for name, way in WAYS.items():
        start = time.process_time()
        found = [bits(text, seed, given.steps, way) for seed in given.seeds]
        spent = time.process_time() - start
        print(f"| {name} | " + " | ".join(f"{one:.3f}" for one in found) + f" | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
