"""The files of a training run: weights, optimiser and step in one, the log, and what decides the run."""

from pathlib import Path
from typing import Any

import torch

from annattn.files import write_json, write_text
from annattn.nn.checkpoint import moments_of, write_tensors

__all__ = ["write_run"]


def write_run(
    folder: Path,
    model: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    step: int,
    log: list[str],
    about: dict[str, Any],
) -> None:
    """Write the state of a run, each file whole or not at all: `state.safetensors`, `log.csv` and last `run.json`.

    The step is in the same file as the weights, so no kill can separate them.
    """
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    write_tensors(state | moments_of(optimiser) | {"step": torch.tensor(step)}, folder / "state.safetensors")
    write_text("\n".join(log) + "\n", folder / "log.csv")
    write_json(about, folder / "run.json")
