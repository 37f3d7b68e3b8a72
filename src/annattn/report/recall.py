"""Associative recall far beyond the length of training, with the model that comes with the library."""

import time
from typing import Any

from annattn.experiments import measure
from annattn.experiments.checkpoints import FOLDER, notes_of, trained
from annattn.measure import Progress, silent
from annattn.tasks import AssociativeRecall

__all__ = ["recall"]


def recall(*, lengths: tuple[int, ...], seed: int = 0, progress: Progress = silent) -> dict[str, Any]:
    """The share of right answers and the seconds of one reading, at each length; nothing is trained.

    A sixteenth of the tokens are pairs, as far as the model has keys; queries fill the rest.

    >>> found = recall(lengths=(256,))
    >>> found["rows"][0]["queries"], found["rows"][0]["right"] > 0.9
    (224, True)
    """
    notes = notes_of(FOLDER / "recall_anna")
    options, model, rows = notes["recipe"]["task_options"], trained("recall_anna"), []
    measure(model, AssociativeRecall(**options), samples=1, draws=1)  # kernels are loaded before anything is timed
    for at, n in enumerate(lengths):
        progress(at / len(lengths), f"{n:,} tokens")
        task = AssociativeRecall(**(options | {"n": n, "pairs": min(options["keys"], n // 16)}))
        data = task.sample(1, (seed, 2), split="test")
        start = time.perf_counter()
        error = measure(model, task, draws=1, seed=seed, data=data)
        rows.append(
            {
                "tokens": n,
                "pairs": task.pairs,
                "queries": int(data.mask.sum()),
                "right": 1 - error.mean,
                "seconds": time.perf_counter() - start,
            }
        )
    return {"trained_at": options["n"], "seed": seed, "command": notes["command"], "rows": rows}
