"""The files of a training run: weights, optimiser and step in one, the log, and what decides the run."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from annattn.errors import InputError
from annattn.files import read_json, write_json, write_text
from annattn.nn.checkpoint import check_tensors, checked_moments, moments_of, read_step, read_tensors, write_tensors

__all__ = ["are_same", "check_same_run", "check_unclaimed", "differences", "read_run", "write_run"]

_SHOWN = 3  # differences of two runs that an error lists


def check_unclaimed(folder: Path) -> None:
    """Raise InputError if a folder without a run.json holds what another run has left."""
    for name in ("state.safetensors", "model.safetensors", "model.json"):
        if (folder / name).exists():
            given = f"{folder}, with {name} and no run.json"
            raise InputError("folder", given=given, expected="an empty folder or a whole run")


def check_same_run(folder: Path, about: dict[str, Any], read: Callable[[Any], Any]) -> dict[str, Any]:
    """What the folder's run.json says; InputError, with what differs, unless it is the run that `about` describes.

    Args:
        folder: holds a run.json.
        about: what decides the run, with its recipe.
        read: makes a recipe of data.
    """
    found = read_json(folder / "run.json", "run", "the JSON of a run")
    wanted = json.loads(json.dumps(about))
    if not isinstance(found.get("recipe"), dict):
        raise InputError("run", given=f"{folder}/run.json, damaged", expected="the JSON of a run")
    others = wanted.keys() - {"recipe", "step"}
    if are_same(found["recipe"], wanted["recipe"], read) and all(found.get(name) == wanted[name] for name in others):
        return found
    told = {name: found.get(name) for name in ("recipe", *sorted(others))}
    raise InputError(
        "folder",
        given=f"{folder}, which holds another run: {differences(told, wanted)}",
        expected="an empty folder or the same run",
        hint="choose another folder, or finish that run with its own options and the version that began it",
    )


def are_same(found: Any, wanted: Any, read: Callable[[Any], Any]) -> bool:
    """Whether data are those of one recipe: a key that was not there yet when they were written has its default.

    >>> are_same({}, {"base": 10}, lambda data: int("12", **data))
    True
    """
    try:
        return read(found) == read(wanted)
    except (TypeError, KeyError, ValueError, AttributeError):
        return False


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """What JSON of two runs differs in, in words; an absent key, which has its default, only if nothing else is.

    >>> differences({"rate": 0.1, "unheard_of": None}, {"rate": 0.1, "clip": 1.0})
    'unheard_of is null, which this version does not know'
    """
    differ = list(_differences(found, wanted)) or [f"it has no {name}" for name in _absent(found, wanted)]
    more = len(differ) - _SHOWN
    return "; ".join(differ[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in found:
            inside = f"{where}.{name}" if where else name
            if name in wanted:
                yield from _differences(found[name], wanted[name], inside)
            else:
                yield f"{inside} is {_short(found[name])}, which this version does not know"
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from _differences(one, other, f"{where}[{at}]")
    elif found != wanted:
        yield f"its {where} is {_short(found)}, not {_short(wanted)}"


def _absent(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in wanted:
            inside = f"{where}.{name}" if where else name
            yield from _absent(found[name], wanted[name], inside) if name in found else [inside]
    elif isinstance(found, list) and isinstance(wanted, list):
        for at, (one, other) in enumerate(zip(found, wanted, strict=False)):
            yield from _absent(one, other, f"{where}[{at}]")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


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
    step = read_step(state, steps, path)
    moments = checked_moments(state, list(model.parameters()) if step else [], path)
    model.load_state_dict(weights)
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    with contextlib.suppress(OSError, ValueError):  # only people read the log, so a damaged one is replaced
        lines = (folder / "log.csv").read_text().splitlines()
        return step, lines[:1] + [line for line in lines[1:] if int(line.split(",")[0]) <= step]
    return step, None
