"""The text models that come with the library, each with the command, seed and log of its training."""

import shutil
from pathlib import Path
from typing import Any

from annattn.checks import did_you_mean
from annattn.errors import InputError
from annattn.experiments.text.model import TextModel
from annattn.experiments.text.training import load_text_model, save_text_model

__all__ = ["TEXT_MODELS", "keep_text", "kept_texts", "text_model"]

TEXT_MODELS = Path(__file__).parent.parent / "trained" / "text"


def kept_texts() -> list[str]:
    """The names of the text models that come with the library.

    >>> "needle" in kept_texts()
    True
    """
    return sorted(path.stem for path in TEXT_MODELS.glob("*.json"))


def text_model(name: str | Path) -> TextModel:
    """A model by its name in the library, or by its path; what has a slash in it is a path.

    >>> text_model("needle").config.far
    'anna'
    """
    if isinstance(name, Path) or "/" in name:
        path = Path(name)
        return load_text_model(path.with_suffix("") if path.suffix in (".json", ".safetensors") else path)[0]
    known = kept_texts()
    if name not in known:
        raise InputError(
            "text model", given=repr(name), expected=f"one of {', '.join(known)}", hint=did_you_mean(name, known)
        )
    return load_text_model(TEXT_MODELS / name)[0]


def keep_text(
    name: str, recipe: str, run: Path, measured: dict[str, Any], *, tables: int, hashes: int, folder: Path = TEXT_MODELS
) -> None:
    """Add the finished model of a run to those that come with the library, to read with these tables and hashes."""
    model, notes = load_text_model(run / "model")
    notes |= {"command": f"annattn train {recipe} --seed {notes['seed']}", "measured": measured}
    notes["recipe"]["model"] |= {"tables": tables, "hashes": hashes}  # of reading: no step of training sees them
    folder.mkdir(parents=True, exist_ok=True)
    save_text_model(model.reads_with(tables, hashes), folder / name, notes=notes)
    shutil.copy(run / "log.csv", folder / f"{name}.csv")
