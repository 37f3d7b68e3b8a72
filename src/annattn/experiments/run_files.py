"""The files of a training run: weights, optimiser and step in one, the log, and what decides the run."""

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.files import write_json, write_text
from annattn.nn.checkpoint import check_tensors, moments_of, read_moments, read_tensors, write_tensors

__all__ = ["check_unclaimed", "read_run", "write_run"]


def check_unclaimed(folder: Path) -> None:
    """Raise InputError if a folder without a run.json holds what another run has left."""
    for name in ("state.safetensors", "model.safetensors", "model.json"):
        if (folder / name).exists():
            given = f"{folder}, with {name} and no run.json"
            raise InputError("folder", given=given, expected="an empty folder or a whole run")


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


def read_run(
    folder: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer, steps: int
) -> tuple[int, list[str] | None]:
    """Put the state that `write_run` wrote into a model and its optimiser; returns the step, and a log that is whole.

    All of it is checked before any of it is used: names, shapes, dtypes, finite numbers, and a step up to `steps`.
    """
    path = folder / "state.safetensors"
    state = read_tensors(path)
    weights = {name.removeprefix("model."): x for name, x in state.items() if name.startswith("model.")}
    check_tensors(model, weights, str(path))
    found = state.get("step", torch.tensor(-1))
    if found.numel() != 1 or found.is_floating_point() or not 0 <= found.item() <= steps:
        given = found.tolist() if "step" in state else "none"
        raise InputError(f"step of {path}", given=given, expected=f"one of 0 to {steps}")
    step = int(found)
    moments = _moments(state, list(model.parameters()) if step else [], path)
    model.load_state_dict(weights)
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    with contextlib.suppress(OSError, ValueError):  # only people read the log, so a damaged one is replaced
        lines = (folder / "log.csv").read_text().splitlines()
        return step, lines[:1] + [line for line in lines[1:] if int(line.split(",")[0]) <= step]
    return step, None


def _moments(state: dict[str, Tensor], weights: list[torch.nn.Parameter], path: Path) -> dict[int, dict[str, Tensor]]:
    """The optimiser's state for every weight; empty before the first step."""
    shapes = {"step": torch.Size(), "exp_avg": None, "exp_avg_sq": None}
    wanted = {
        f"adam.{index}.{name}": weight.shape if shape is None else shape
        for index, weight in enumerate(weights)
        for name, shape in shapes.items()
    }
    found = {name: tensor.shape for name, tensor in state.items() if name.startswith("adam.")}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise InputError(
            str(path), given=f"{wrong[0]} of shape {found.get(wrong[0])}", expected=str(wanted.get(wrong[0]))
        )
    for name in found:
        if not state[name].is_floating_point() or not state[name].isfinite().all():
            given = "NaN or infinity" if state[name].is_floating_point() else state[name].dtype
            raise InputError(f"{name} of {path}", given=given, expected="finite numbers")
    return read_moments(state)
