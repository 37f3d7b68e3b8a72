"""What the runs of a comparison found: errors by contender and task, and who is on the frontier."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from annattn.experiments.comparison.contenders import CONTENDERS
from annattn.experiments.comparison.running import Results, Run
from annattn.experiments.comparison.settings import Profile

__all__ = ["frontier", "mean_error", "summary"]


def summary(profile: Profile, found: Results) -> dict[str, Any]:
    """Every cell of the table: an error, why there is none, or that it was not run.

    A cell has the learning rate with the lowest validation error of those that have run, and the mean and standard
    deviation over the seeds that have run with it.

    >>> from annattn.experiments.comparison.settings import PROFILES
    >>> rows = summary(PROFILES["quick"], {})["rows"]
    >>> rows[0]["cells"]["match2"], rows[6]["cells"]["recall"]
    ({'not_run': True}, {'missing': 'no causal form'})
    """
    columns = [
        {"name": column, "title": title, "is_causal": task.is_causal, "guess": task.guess(column, profile.samples)}
        for name, task in profile.tasks.items()
        for column, title in task.columns(name).items()
    ]
    rows = []
    for name, contender in CONTENDERS.items():
        cells: dict[str, Any] = {}
        parameters: dict[str, int] = {}
        for task_name, task in profile.tasks.items():
            reason = contender.missing(task.layers, task.n, is_causal=task.is_causal)
            results = [] if reason else _at_best_rate(profile, found, task_name, name, task.seeds)
            for column in task.columns(task_name):
                if reason:
                    cells[column] = {"missing": reason}
                elif not results:
                    cells[column] = {"not_run": True}
                else:
                    errors = [one["errors"][column]["mean"] for one in results]
                    tried = sum(Run(task_name, name, rate, 0) in found for rate in profile.rates)
                    cells[column] = {
                        "error": float(np.mean(errors)),
                        "spread": float(np.std(errors)),
                        "seeds": len(errors),
                        "rate": results[0]["recipe"]["rate"],
                        "rates_tried": tried,
                    }
            if results:
                parameters[task_name] = results[0]["parameters"]
        rows.append(
            {"name": name, "title": contender.title, "kind": contender.kind, "cells": cells, "parameters": parameters}
        )
    planned = sum(_runs_of(profile, name, task.seeds) for name, task in profile.tasks.items())
    seconds = [one.get("processor_seconds") for one in found.values()]
    return {
        "columns": columns,
        "rows": rows,
        "rates": list(profile.rates),
        "runs": len(found),
        "planned": planned,
        "processor_seconds": sum(filter(None, seconds)) if all(seconds) else None,
    }


def _at_best_rate(profile: Profile, found: Results, task: str, contender: str, seeds: int) -> list[dict[str, Any]]:
    first = [found[run] for run in (Run(task, contender, rate, 0) for rate in profile.rates) if run in found]
    if not first:
        return []
    best = min(first, key=lambda one: one["validation"])["recipe"]["rate"]
    runs = (Run(task, contender, best, seed) for seed in range(seeds))
    return [found[run] for run in runs if run in found]


def _runs_of(profile: Profile, name: str, seeds: int) -> int:
    task = profile.tasks[name]
    taking_part = sum(one.missing(task.layers, task.n, is_causal=task.is_causal) is None for one in CONTENDERS.values())
    return taking_part * (len(profile.rates) + seeds - 1)


def mean_error(row: Mapping[str, Any], columns: Sequence[str]) -> float | None:
    """The mean of a contender's errors over these columns; None if one of them is missing or was not run.

    >>> mean_error({"cells": {"a": {"error": 0.5}, "b": {"error": 0.0}}}, ["a", "b"])
    0.25
    """
    errors = [row["cells"].get(column, {}).get("error") for column in columns]
    return None if not errors or None in errors else float(np.mean(errors))


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Those for which no other is at least as good in cost and error, and better in one; cheapest first.

    >>> frontier({"a": (1.0, 0.5), "b": (2.0, 0.6), "c": (3.0, 0.1)})
    ['a', 'c']
    """
    chosen = [
        name
        for name, (cost, error) in points.items()
        if not any(
            other_cost <= cost and other_error <= error and (other_cost, other_error) != (cost, error)
            for other_cost, other_error in points.values()
        )
    ]
    return sorted(chosen, key=lambda name: points[name])
