"""Small trained models that come with the library, each with the command, seed and log of its training."""

import json
import shutil
from pathlib import Path
from typing import Any

from annattn.errors import InputError
from annattn.experiments.evaluation import measure
from annattn.experiments.recipe import read_recipe
from annattn.nn import Transformer, load_model, save_model
from annattn.nn.checkpoint import checkpoint_files

__all__ = ["FOLDER", "keep", "kept", "notes_of", "trained"]

FOLDER = Path(__file__).parent / "trained"


def kept() -> list[str]:
    """The names of the models that come with the library.

    >>> "match2_direct" in kept()
    True
    """
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def trained(name: str) -> Transformer:
    """A model that comes with the library.

    >>> trained("match2_direct").config.layers
    1
    """
    if name not in kept():
        raise InputError("model", given=repr(name), expected=f"one of {', '.join(kept())}")
    return load_model(FOLDER / name)


def notes_of(checkpoint: str | Path) -> dict[str, Any]:
    """What a checkpoint says about itself: its recipe, seed, command and measured error.

    >>> notes_of(FOLDER / "match2_direct")["seed"]
    0
    """
    path, _ = checkpoint_files(checkpoint)
    try:
        notes = json.loads(path.read_text()).get("notes", {})
    except (OSError, ValueError, AttributeError, RecursionError):
        raise InputError("checkpoint", given=str(path), expected="the JSON file of a model") from None
    if not isinstance(notes, dict) or "recipe" not in notes:
        raise InputError("checkpoint", given=f"{path} without a recipe", expected="one that annattn train wrote")
    return notes


def keep(name: str, run: str | Path, *, folder: Path = FOLDER, samples: int = 256, draws: int = 10) -> dict[str, Any]:
    """Measure the finished model of a run, and add it, its log and its error to those that come with the library."""
    run = Path(run)
    model, notes = load_model(run / "model"), notes_of(run / "model")
    error = measure(model, read_recipe(notes["recipe"]).make_task(), samples=samples, draws=draws)
    stated = {"samples": samples, "draws": draws, "error": error.mean, "spread": error.spread}
    notes |= {"command": f"annattn train {name} --seed {notes['seed']}", "measured": stated}
    save_model(model, folder / name, notes=notes)
    if (run / "log.csv").exists():
        shutil.copy(run / "log.csv", folder / f"{name}.csv")
    return notes
