"""The trained models: error of Match2 and induction heads against the tables and hashes of a layer."""

from dataclasses import replace
from typing import Any

from annattn.errors import InputError
from annattn.experiments import Error, grid, measure, read_recipe
from annattn.experiments.checkpoints import FOLDER, notes_of, trained
from annattn.measure import Progress, silent
from annattn.nn import AnnaConfig, LatestMatchConfig, Transformer
from annattn.tasks import Task

__all__ = ["MODELS", "errors", "hashing_of", "tables_and_hashes", "task_of", "with_layer"]

MODELS = {"match2_direct": "Match2", "induction_direct": "Induction heads"}

_TABLES = (1, 2, 4, 8, 16, 32, 64)
_HASHES = {"hyperplane": (2, 4, 6, 8), "cross_polytope": (1, 2, 3)}


def errors(*, samples: int = 32, draws: int = 4, seed: int = 0, progress: Progress = silent) -> dict[str, Any]:
    """Share of wrong tokens of the models in the library, changing tables and hashes of one layer at a time.

    The other layers stay as trained. Mean and standard deviation are over draws of the hash functions, on held-out
    sequences.

    >>> found = errors(samples=1, draws=1)
    >>> [model["task"] for model in found["models"]]
    ['Match2', 'Induction heads']
    """
    jobs = [(name, layer) for name in MODELS for layer in range(trained(name).config.layers)]
    found: dict[str, dict[str, Any]] = {}
    for at, (name, layer) in enumerate(jobs):
        model, task = trained(name), task_of(name)
        if name not in found:
            progress(at / len(jobs), MODELS[name])
            as_trained = measure(model, task, samples=samples, draws=draws, seed=seed)
            found[name] = {
                "name": name,
                "task": MODELS[name],
                "tokens": task.n,
                "trained": _as_dict(as_trained),
                "command": notes_of(FOLDER / name)["command"],
                "layers": [],
            }
        tables, hashes = tables_and_hashes(model, layer)
        cells = [with_layer(model, layer, t, z).config.attention for z in hashes for t in tables]

        def report(done: int, error: Error, at: int = at, name: str = name, cells: list[Any] = cells) -> None:
            progress((at + (done + 1) / len(cells)) / len(jobs), f"{MODELS[name]}, error {error.mean:.3f}")

        swept = grid(model, task, cells, samples=samples, draws=draws, seed=seed, report=report)
        mechanism = hashing_of(model, layer)
        found[name]["layers"].append(
            {
                "family": mechanism.family,
                "trained": {"tables": mechanism.tables, "hashes": mechanism.hashes},
                "tables": tables,
                "hashes": hashes,
                "errors": [
                    [_as_dict(error) for error in swept[row * len(tables) : (row + 1) * len(tables)]]
                    for row in range(len(hashes))
                ],
            }
        )
    return {"samples": samples, "draws": draws, "seed": seed, "models": list(found.values())}


def task_of(name: str) -> Task:
    """The task that a model of the library was trained on.

    >>> task_of("match2_direct").n
    32
    """
    return read_recipe(notes_of(FOLDER / name)["recipe"]).make_task()


def hashing_of(model: Transformer, layer: int) -> AnnaConfig | LatestMatchConfig:
    """The mechanism of a layer, which must hash.

    >>> hashing_of(trained("match2_direct"), 0).tables > 0
    True
    """
    mechanism = model.config.attention[layer]
    if not isinstance(mechanism, AnnaConfig | LatestMatchConfig):
        raise InputError(f"attention of layer {layer}", given=mechanism, expected="a mechanism with tables and hashes")
    return mechanism


def tables_and_hashes(model: Transformer, layer: int) -> tuple[list[int], list[int]]:
    """The numbers of tables and of hashes to try in a layer, among them those it was trained with.

    >>> tables, hashes = tables_and_hashes(trained("induction_direct"), 0)
    >>> tables[:3]
    [1, 2, 4]
    """
    mechanism = hashing_of(model, layer)
    tables = sorted({*_TABLES, mechanism.tables})
    return tables, sorted({*_HASHES[mechanism.family], mechanism.hashes})


def with_layer(model: Transformer, layer: int, tables: int, hashes: int) -> Transformer:
    """The model with other numbers of tables and hashes in one layer.

    >>> with_layer(trained("match2_direct"), 0, 16, 1).config.attention[0].tables
    16
    """
    attention = list(model.config.attention)
    attention[layer] = replace(hashing_of(model, layer), tables=tables, hashes=hashes)
    return model.with_attention(*attention)


def _as_dict(error: Error) -> dict[str, float]:
    return {"mean": error.mean, "spread": error.spread}
