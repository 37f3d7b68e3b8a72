"""`annattn sweep`: measure a trained model over numbers of tables and hashes."""

import os
from pathlib import Path
from typing import Literal

from rich.progress import MofNCompleteColumn
from rich.table import Table

from annattn.cli.terminal import AsJson, Flag, Whole, bar, output, print_json, remarks
from annattn.errors import InputError
from annattn.experiments import Error, grid, read_recipe
from annattn.experiments.checkpoints import notes_of
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
    samples: Whole = 256,
    draws: Whole = 10,
    seed: Whole = 0,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Measure a trained model with hashing in every layer, over numbers of tables and hashes.

    Example: annattn sweep runs/match2_paper-0/model --tables 1,2,4,8 --hashes 1,2

    Args:
        checkpoint: a model that `annattn train` wrote; its task is known from its notes.
        tables: numbers of tables, with commas; "32:4" means 32 in the first layer and 4 in the second.
        hashes: numbers of hashes a table, written the same way.
        family: which hash functions.
        latest: use latest-match attention in the last layer.
        samples: held-out sequences.
        draws: draws of the hash functions.
        seed: decides both.
        out: also write the numbers to this JSON file.
        as_json: print JSON instead of a table.
    """
    for what, count in (("--samples", samples), ("--draws", draws)):
        if count < 1:
            raise InputError(what, given=count, expected="at least 1")
    if out is not None:
        # Refused now, not after an hour of measuring.
        if (out.exists() and not out.is_file()) or not os.access(out.absolute().parent, os.W_OK):
            raise InputError("--out", given=str(out), expected="a file in a folder that can be written")
        if any(one.exists() and out.exists() and out.samefile(one) for one in checkpoint_files(checkpoint)):
            raise InputError("--out", given=f"{out}, which belongs to the model", expected="another file")
    model = load_model(checkpoint)
    recipe = read_recipe(notes_of(checkpoint)["recipe"])
    layers = model.config.layers
    rows = [_per_layer(text, layers, "tables") for text in tables.split(",")]
    columns = [_per_layer(text, layers, "hashes") for text in hashes.split(",")]

    def mechanisms(row: tuple[int, ...], column: tuple[int, ...]) -> tuple[AttentionConfig, ...]:
        kinds = [AnnaConfig] * (layers - 1) + [LatestMatchConfig if latest else AnnaConfig]
        return tuple(kind(family, count, z) for kind, count, z in zip(kinds, row, column, strict=True))

    cells = [mechanisms(row, z) for row in rows for z in columns]
    with bar(remarks(), MofNCompleteColumn()) as progress:
        line = progress.add_task("sweep", total=len(cells), note="")

        def report(at: int, error: Error) -> None:
            progress.update(line, completed=at + 1, note=f"error {error.mean:.4f}")

        errors = grid(model, recipe.make_task(), cells, samples=samples, draws=draws, seed=seed, report=report)
    found = [
        {"tables": list(row), "hashes": list(z), "error": e.mean, "spread": e.spread}
        for (row, z), e in zip(((row, z) for row in rows for z in columns), errors, strict=True)
    ]
    if out is not None:
        write_json(found, out)
    if as_json:
        print_json(found)
        return
    table = Table("tables", *(f"{_written(z)} hash" + "es" * (set(z) != {1}) for z in columns))
    for at, row in enumerate(rows):
        part = errors[at * len(columns) : (at + 1) * len(columns)]
        table.add_row(_written(row), *(f"{e.mean:.4f} ± {e.spread:.3f}" for e in part))
    output().print(table)


def _per_layer(text: str, layers: int, what: str) -> tuple[int, ...]:
    counts = tuple(_count(part, what) for part in text.split(":"))
    if len(counts) not in (1, layers):
        raise InputError(what, given=repr(text), expected=f"one number, or {layers} with colons, one a layer")
    return counts * layers if len(counts) == 1 else counts


def _written(counts: tuple[int, ...]) -> str:
    return str(counts[0]) if len(set(counts)) == 1 else ":".join(map(str, counts))


def _count(text: str, what: str) -> int:
    if not text.strip().isdecimal() or len(text) > 18 or int(text) < 1:
        raise InputError(what, given=repr(text), expected="numbers of at least 1, with commas", hint="such as 1,2,4")
    return int(text)
