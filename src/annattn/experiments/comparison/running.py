"""The runs of a comparison: one JSON file each, in an order in which every contender gets its first run early."""

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from annattn.errors import InputError
from annattn.experiments.comparison.contenders import CONTENDERS
from annattn.experiments.comparison.settings import ComparedTask, Profile
from annattn.experiments.evaluation import Error, measure
from annattn.experiments.recipe import Recipe, read_recipe, write_recipe
from annattn.experiments.run_files import are_same, differences
from annattn.experiments.training import Progress, train
from annattn.files import as_json, held, read_json, write_json
from annattn.nn import Transformer
from annattn.nn.checkpoint import write_attention

__all__ = ["Run", "chosen_rate", "next_runs", "planned_runs", "read_runs", "run_one"]

_CHOOSING = 64  # validation sequences on which contenders choose the number of hashes


@dataclass(frozen=True)
class Run:
    """A contender on a task with one learning rate and one seed.

    >>> Run("match2", "softmax", 0.003, 0).name
    'match2/softmax-0.003-0'
    """

    task: str
    contender: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """The path of its result, without the suffix."""
        return f"{self.task}/{self.contender}-{self.rate:g}-{self.seed}"


Results = dict[Run, dict[str, Any]]


def planned_runs(profile: Profile) -> Iterator[Run]:
    """The runs that need no result of another: seed 0, the first learning rate of everything first.

    >>> from annattn.experiments.comparison.settings import PROFILES
    >>> runs = list(planned_runs(PROFILES["full"]))
    >>> runs[0].name, runs[-1].rate
    ('match2/softmax-0.003-0', 0.001)
    """
    for rate in profile.rates:
        for name, task in profile.tasks.items():
            for contender in CONTENDERS:
                if not _missing(task, contender):
                    yield Run(name, contender, rate, 0)


def next_runs(profile: Profile, found: Results) -> list[Run]:
    """What is still to run: all of seed 0, and then further seeds at the learning rate that seed 0 chose."""
    runs = [run for run in planned_runs(profile) if run not in found]
    for seed in range(1, max(task.seeds for task in profile.tasks.values())):
        for name, task in profile.tasks.items():
            for contender in CONTENDERS if seed < task.seeds else ():
                rate = chosen_rate(profile, found, name, contender)
                if rate is not None and Run(name, contender, rate, seed) not in found:
                    runs.append(Run(name, contender, rate, seed))
    return runs


def chosen_rate(profile: Profile, found: Results, task: str, contender: str) -> float | None:
    """The learning rate with the lowest validation error at seed 0; None before all of them have run."""
    tried = [found.get(Run(task, contender, rate, 0)) for rate in profile.rates]
    if _missing(profile.tasks[task], contender) or None in tried:
        return None
    errors = [one["validation"] for one in tried if one is not None]
    return profile.rates[int(np.argmin(errors))]


def read_runs(profile: Profile, folder: Path) -> Results:
    """The results in a folder; one that was run with other settings is refused."""
    found: Results = {}
    seeds = range(max(task.seeds for task in profile.tasks.values()))
    for run in (Run(one.task, one.contender, one.rate, seed) for one in planned_runs(profile) for seed in seeds):
        path = _result(folder, run)
        if not path.exists():
            continue
        data = read_json(path, "result", "the JSON of a run; delete it to run it again")
        wanted = json.loads(as_json(write_recipe(_recipe(profile, run))))
        if "recipe" in data and not are_same(data["recipe"], wanted, read_recipe):
            raise InputError(
                "result",
                given=f"{path}, which was run with other settings: {differences(data['recipe'], wanted)}",
                expected="the settings of this profile",
                hint="choose another folder, or delete that file to run it again",
            )
        found[run] = _checked(data, path, profile.tasks[run.task].columns(run.task))
    return found


def _checked(data: dict[str, Any], path: Path, columns: Iterable[str]) -> dict[str, Any]:
    """The result of a run, if it has every number that the table is made of."""
    try:
        numbers = [data["validation"], data["parameters"], data["seconds"], data["seed"]]
        if data.get("processor_seconds") is not None:
            numbers.append(data["processor_seconds"])
        numbers += [data["errors"][column][what] for column in columns for what in ("mean", "spread")]
        if "recipe" not in data or not all(isinstance(x, int | float) and math.isfinite(x) for x in numbers):
            raise ValueError("a number is missing")
    except (KeyError, TypeError, ValueError, OverflowError) as wrong:
        raise InputError(
            "result",
            given=f"{path}, damaged",
            expected="the JSON of a run",
            hint=f"delete it to run it again ({wrong!r})",
        ) from None
    return data


def run_one(
    profile: Profile, run: Run, folder: Path, report: Callable[[Progress], None] | None = None
) -> dict[str, Any] | None:
    """Train and measure one run, and write its result; None if another process is at it.

    A run that was stopped is continued. What training keeps for that is deleted when the result is written.
    """
    task = profile.tasks[run.task]
    place = folder / "state" / run.name
    lock = place.with_name(f"{place.name}.run")
    try:
        with held(lock):
            if _result(folder, run).exists():
                return None
            started, started_cpu = time.perf_counter(), time.process_time()
            recipe = _recipe(profile, run)
            model = train(recipe, seed=run.seed, folder=place, report=report)
            data = {
                "recipe": write_recipe(recipe),
                "seed": run.seed,
                "parameters": sum(weight.numel() for weight in model.parameters()),
                **_measured(profile, task, run, model),
                "seconds": time.perf_counter() - started,
                "processor_seconds": time.process_time() - started_cpu,
            }
            _result(folder, run).parent.mkdir(parents=True, exist_ok=True)
            write_json(data, _result(folder, run))
    except InputError as error:
        if "in use by" not in str(error):
            raise
        return None
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):  # another process looks whether this run is held
        lock.rmdir()
    return data


def _measured(profile: Profile, task: ComparedTask, run: Run, model: Transformer) -> dict[str, Any]:
    """The mechanisms chosen on validation data, its error there, and the error of every column on test data."""
    columns = task.columns(run.task)
    maker, contender = _recipe(profile, run).make_task(), CONTENDERS[run.contender]
    held_out = [task.data(column, "validation", min(_CHOOSING, profile.samples)) for column in columns]

    def mean_on_validation(attention: Any) -> float:
        changed = model.with_attention(*attention)
        return float(np.mean([measure(changed, maker, draws=profile.draws, data=data).mean for data in held_out]))

    choices = contender.choices(task.layers, maker.n)
    scores = [mean_on_validation(choice) for choice in choices]
    best = int(np.argmin(scores))
    model = model.with_attention(*choices[best])
    found: dict[str, Error] = {
        column: measure(model, maker, draws=profile.draws, data=task.data(column, "test", profile.samples))
        for column in columns
    }
    return {
        "attention": [write_attention(one) for one in choices[best]],
        "validation": scores[best],
        "errors": {column: {"mean": error.mean, "spread": error.spread} for column, error in found.items()},
    }


def _missing(task: ComparedTask, contender: str) -> str | None:
    return CONTENDERS[contender].missing(task.layers, task.n, is_causal=task.is_causal)


def _recipe(profile: Profile, run: Run) -> Recipe:
    return profile.tasks[run.task].recipe(CONTENDERS[run.contender], run.rate)


def _result(folder: Path, run: Run) -> Path:
    return folder / "runs" / f"{run.name}.json"
