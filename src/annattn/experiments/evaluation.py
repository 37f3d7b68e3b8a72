"""The error of a model over draws of its hash functions, and grids over tables and hashes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from annattn.checks import LARGEST_COUNT, require_count
from annattn.errors import InputError
from annattn.experiments.recipe import check_vocabularies
from annattn.nn import AttentionConfig, Transformer
from annattn.seeds import check_seed, derive_seed
from annattn.tasks import Batch, Task

__all__ = ["Error", "grid", "measure"]


@dataclass(frozen=True)
class Error:
    """The share of wrong tokens, one number per draw of the hash functions.

    >>> Error((0.0, 0.5)).mean, Error((0.0, 0.5)).spread
    (0.25, 0.25)
    """

    draws: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Average over the draws."""
        return float(np.mean(self.draws))

    @property
    def spread(self) -> float:
        """Standard deviation over the draws."""
        return float(np.std(self.draws))


def measure(
    model: Transformer,
    task: Task,
    *,
    samples: int = 256,
    draws: int = 10,
    seed: int = 0,
    batch: int = 64,
    data: Batch | None = None,
) -> Error:
    """The share of wrong tokens, among the positions that count, on held-out sequences of the split "test".

    Hash functions are drawn for this measurement only; the model keeps its own.

    >>> from annattn.experiments import RECIPES
    >>> recipe = RECIPES["match2_paper"]
    >>> error = measure(Transformer(recipe.model), recipe.make_task(), samples=16, draws=2)
    >>> len(error.draws), 0 < error.mean < 1
    (2, True)
    """
    given = (("samples", samples), ("draws", draws), ("batch", batch))
    samples, draws, batch = (require_count(name, one, most=LARGEST_COUNT, hint="pass 1 or more") for name, one in given)
    check_vocabularies(model.config, task)
    held_out = task.sample(samples, (check_seed(seed), 2), split="test") if data is None else data
    if not held_out.mask.any():
        raise InputError("data", given=f"{len(held_out)} sequences", expected="a position that counts")
    model = model.with_attention(*model.config.attention)
    inputs, targets, mask = (torch.from_numpy(x) for x in (held_out.inputs, held_out.targets, held_out.mask))
    found = []
    with torch.no_grad():
        for draw in range(draws):
            model.draw(derive_seed(seed, 3, draw))
            wrong = torch.zeros((), dtype=torch.int64)
            for rows in range(0, len(inputs), batch):
                part = slice(rows, rows + batch)
                wrong += ((model(inputs[part]).argmax(-1) != targets[part]) & mask[part]).sum()
            found.append(wrong.item() / mask.sum().item())
    return Error(tuple(found))


def grid(
    model: Transformer,
    task: Task,
    cells: Sequence[tuple[AttentionConfig, ...]],
    *,
    report: Callable[[int, Error], None] | None = None,
    samples: int = 256,
    draws: int = 10,
    seed: int = 0,
) -> list[Error]:
    """`measure` with each of these mechanisms, on the same weights and the same data.

    >>> from annattn.experiments import RECIPES
    >>> from annattn.nn import AnnaConfig
    >>> recipe = RECIPES["match2_paper"]
    >>> cells = [(AnnaConfig(tables=tables),) for tables in (1, 2)]
    >>> len(grid(Transformer(recipe.model), recipe.make_task(), cells, samples=8, draws=2))
    2
    """
    data = task.sample(
        require_count("samples", samples, least=1, most=LARGEST_COUNT, hint="pass 1 or more"),
        (check_seed(seed), 2),
        split="test",
    )
    found = []
    for at, attention in enumerate(cells):
        hashed = any(hasattr(one, "tables") for one in attention)
        error = measure(model.with_attention(*attention), task, draws=draws if hashed else 1, seed=seed, data=data)
        found.append(error)
        if report:
            report(at, error)
    return found
