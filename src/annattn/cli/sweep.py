"""`annattn sweep`: measure a trained model over numbers of tables and hashes."""

import os
from pathlib import Path
from typing import Literal

from rich.progress import MofNCompleteColumn
from rich.table import Table

from annattn.checks import require_count
from annattn.cli.terminal import Flag, Integer, JsonFlag, print_json, progress_bar, stderr_console, stdout_console
from annattn.errors import InputError
from annattn.experiments import Error, grid, read_recipe
from annattn.experiments.checkpoints import FOLDER, kept, notes_of
from annattn.files import write_json
from annattn.nn import AnnaConfig, AttentionConfig, LatestMatchConfig, load_model
from annattn.nn.checkpoint import checkpoint_files

__all__ = ["sweep"]


def sweep(
    checkpoint: Path,
    *,
    tables: str = "1,2,4,8,16",
    hashes: str = "1,2,3,4",
    family: Literal["hyperplane", "cross_polytope"] = "hyperplane",
    latest: Flag = False,
    samples: Integer = 256,
    draws: Integer = 10,
    seed: Integer = 0,
    out: Path | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a trained model with hashing in every layer, over numbers of tables and hashes.

    Example: annattn sweep runs/match2_paper-0/model --tables 1,2,4,8 --hashes 1,2

    Args:
        checkpoint: a model that `annattn train` wrote, or a name of the library's own, such as match2_direct.
        tables: numbers of tables, separated by commas; "32:4" means 32 in the first layer and 4 in the second.
        hashes: numbers of hashes per table, written the same way.
        family: the family of hash functions.
        latest: use latest-match attention in the last layer.
        samples: number of held-out sequences.
        draws: number of draws of the hash functions.
        seed: determines the sequences and the draws.
        out: also write the numbers to this JSON file.
        as_json: print JSON instead of a table.
    """
    require_count("--samples", samples)
    require_count("--draws", draws)
    checkpoint = _with_library(checkpoint)
    if out is not None:
        _check_output(out, checkpoint)
    model = load_model(checkpoint)
    recipe = read_recipe(notes_of(checkpoint)["recipe"])
    layers = model.config.layers
    rows = [_counts_by_layer(text, layers, "tables") for text in tables.split(",")]
    columns = [_counts_by_layer(text, layers, "hashes") for text in hashes.split(",")]

    def mechanisms(row: tuple[int, ...], column: tuple[int, ...]) -> tuple[AttentionConfig, ...]:
        kinds = [AnnaConfig] * (layers - 1) + [LatestMatchConfig if latest else AnnaConfig]
        return tuple(kind(family, count, z) for kind, count, z in zip(kinds, row, column, strict=True))

    cells = [(row, z) for row in rows for z in columns]
    with progress_bar(stderr_console(), MofNCompleteColumn()) as progress:
        line = progress.add_task("sweep", total=len(cells), note="")

        def report(at: int, error: Error) -> None:
            progress.update(line, completed=at + 1, note=f"error {error.mean:.4f}")

        errors = grid(
            model,
            recipe.make_task(),
            [mechanisms(row, z) for row, z in cells],
            samples=samples,
            draws=draws,
            seed=seed,
            report=report,
        )
    found = [
        {"tables": list(row), "hashes": list(z), "error": e.mean, "spread": e.spread}
        for (row, z), e in zip(cells, errors, strict=True)
    ]
    if out is not None:
        write_json(found, out)
    if as_json:
        print_json(found)
        return
    table = Table("tables", *(f"{_shortest(z)} hash" + "es" * (set(z) != {1}) for z in columns))
    for at, row in enumerate(rows):
        part = errors[at * len(columns) : (at + 1) * len(columns)]
        table.add_row(_shortest(row), *(f"{e.mean:.4f} ± {e.spread:.3f}" for e in part))
    stdout_console().print(table)


def _with_library(checkpoint: Path) -> Path:
    """A name that is no file here but one of the library's models stands for that model."""
    if checkpoint_files(checkpoint)[0].exists():
        return checkpoint
    if str(checkpoint) not in kept():
        raise InputError(
            "checkpoint",
            given=f"{checkpoint}, which is no model here",
            expected=f"a model that `annattn train` wrote, or one of {', '.join(kept())}",
        )
    return FOLDER / checkpoint


def _check_output(out: Path, checkpoint: Path) -> None:
    """Refuse an output file now instead of after an hour of measuring."""
    if (out.exists() and not out.is_file()) or not os.access(out.absolute().parent, os.W_OK):
        raise InputError("--out", given=str(out), expected="a file in a folder that can be written")
    if any(one.exists() and out.exists() and out.samefile(one) for one in checkpoint_files(checkpoint)):
        raise InputError("--out", given=f"{out}, which belongs to the model", expected="another file")


def _counts_by_layer(text: str, layers: int, what: str) -> tuple[int, ...]:
    counts = tuple(_count(part, what) for part in text.split(":"))
    if len(counts) not in (1, layers):
        expected = "one number" if layers == 1 else f"one number, or {layers} separated by colons, one per layer"
        raise InputError(what, given=repr(text), expected=expected)
    return counts * layers if len(counts) == 1 else counts


def _shortest(counts: tuple[int, ...]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else ":".join(map(str, counts))


def _count(text: str, what: str) -> int:
    if not text.strip().isdecimal() or len(text) > 18 or int(text) < 1:
        expected = "numbers of at least 1, separated by commas"
        raise InputError(what, given=repr(text), expected=expected, hint="such as 1,2,4")
    return int(text)
