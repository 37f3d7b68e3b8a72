"""Training a recipe. A run that is killed at any step and started again ends with the same weights, bit for bit."""

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from annattn.errors import InputError
from annattn.experiments.ranks import Ranks
from annattn.experiments.recipe import Recipe, read_recipe, write_recipe
from annattn.experiments.run_files import check_same_run, check_unclaimed, read_run, write_run
from annattn.files import held, write_json
from annattn.nn import Transformer
from annattn.nn.checkpoint import save_model
from annattn.seeds import check_seed
from annattn.tasks import Batch

__all__ = ["Progress", "train"]


@dataclass(frozen=True)
class Progress:
    """What a run reports after a step: the loss, and the share of wrong tokens in its batch."""

    step: int
    steps: int
    loss: float
    error: float
    seconds: float


def train(
    recipe: Recipe,
    *,
    seed: int = 0,
    folder: str | Path | None = None,
    save_every: int = 500,
    report: Callable[[Progress], None] | None = None,
    stop_at: int | None = None,
) -> Transformer:
    """Run the recipe and return the model with the mechanisms it is meant to run with.

    The weights are the same bit for bit on one machine with one number of torch threads, because torch's summation
    order depends on the number of threads.

    Where torch.distributed is initialised, all processes of its default group train one model: each takes its share of
    every batch, and the first one writes and reports. The weights are those of one process to rounding, except under
    dropout, whose draws depend on the share; the same number of processes gives the same bits.

    Args:
        recipe: what to train.
        seed: decides the initial weights, the data, and the hash functions of every step.
        folder: where the state is saved: every `save_every` steps, at the end, and on Ctrl-C, which waits for the end
            of a step. A run found there is continued if it has the same recipe and seed, and refused otherwise; so is a
            folder that another process trains in.
        save_every: steps between two saves.
        report: called after every step.
        stop_at: stop before this step, as if interrupted.

    >>> from annattn.experiments import RECIPES
    >>> model = train(RECIPES["match2_paper"].shortened(0.0005), seed=0)
    >>> model.config.attention
    (SoftmaxConfig(beta=0.1, dropout=0.0),)
    """
    if save_every < 1:
        raise InputError("save_every", given=save_every, expected="at least 1 step")
    place = Path(folder) if folder is not None else None
    ranks = Ranks()
    with held(place) if place is not None and ranks.writes else contextlib.nullcontext():
        run = _started(recipe, seed, place, ranks, f"{save_every}, {stop_at}")
        last = recipe.steps if stop_at is None else min(stop_at, recipe.steps)
        started = time.perf_counter()

        def advance() -> None:
            loss, error = run.advance()
            run.note(loss, error)
            if report and ranks.writes:
                report(Progress(run.step, recipe.steps, loss, error, time.perf_counter() - started))

        ranks.go_on(run, last, save_every, advance)
        return run.model.with_attention(*recipe.model.attention)


def _started(recipe: Recipe, seed: int, folder: Path | None, ranks: Ranks, options: str) -> "_Run":
    """The run where it stands; all processes have the state that the first one read."""
    described = {"recipe": json.dumps(write_recipe(recipe)), "seed": str(seed), "save_every and stop_at": options}
    run = ranks.start(
        recipe.batch, lambda: _Run(recipe, check_seed(seed), folder if ranks.writes else None, ranks), described
    )
    run.step = ranks.share(run.model, run.optimiser, run.step)
    return run


class _Run:
    """The model, the optimiser and the number of the next step."""

    def __init__(self, recipe: Recipe, seed: int, folder: Path | None, ranks: Ranks) -> None:
        self.recipe, self.seed, self.folder, self.ranks = recipe, seed, folder, ranks
        self.task = recipe.make_task()
        self.model = Transformer(recipe.model, seed=seed)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=recipe.rate, betas=(0.9, 0.98))
        self.step = 0
        self.log = ["step,loss,error"]
        self.dataset = None if recipe.dataset is None else self.task.sample(recipe.dataset, (seed, 0))
        if folder is not None:
            self._open(folder)

    @cached_property
    def forward(self) -> Callable[[Tensor, Any, int], Tensor]:
        """The model under the mechanisms of a step, whose gradients are those of all processes."""
        return self.ranks.parallel(self.model)

    def advance(self) -> tuple[float, float]:
        """One step of gradient descent; returns the loss and the share of wrong tokens before it."""
        recipe, step = self.recipe, self.step
        self._copy_layers()
        rng = np.random.default_rng([self.seed, step, 1])
        whole = self._batch(rng)
        counted = int(whole.mask.sum())
        batch = self.ranks.part(whole)
        inputs, targets, mask = (torch.from_numpy(x) for x in (batch.inputs, batch.targets, batch.mask))
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate()
        drawn = int(rng.integers(2**31))
        with torch.random.fork_rng(devices=[]):
            # What dropout draws in this step, whether or not the run was stopped before it.
            torch.manual_seed(drawn + self.ranks.rank)
            logits = self.forward(inputs, recipe.attention_at(step), drawn)[mask]
        reduction = "mean" if self.ranks.size == 1 else "sum"
        loss = torch.nn.functional.cross_entropy(logits, targets[mask], reduction=reduction)
        if reduction == "sum":
            loss = loss / counted
        wrong = (logits.argmax(-1) != targets[mask]).double().sum().item()
        reached, wrong = self.ranks.total(loss.item(), wrong)
        if not math.isfinite(reached):
            raise InputError("loss", given=f"{reached} at step {step}", expected="a finite number", hint="lower rate")
        self.optimiser.zero_grad()
        loss.backward()
        if recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimiser.step()
        self.step += 1
        return reached, wrong / counted

    def note(self, loss: float, error: float) -> None:
        """Log every hundredth step."""
        if self.step % 100 == 0 or self.step == self.recipe.steps:
            self.log.append(f"{self.step},{loss:.6f},{error:.6f}")

    def _copy_layers(self) -> None:
        """At the first step of a stage that copies: a layer that is new in it starts as the one before it."""
        stage, within = self.recipe.stage_at(self.step)
        if stage.copies and within == 0 and self.step:
            known = len(self.recipe.stage_at(self.step - 1)[0].attention)
            for layer in range(known, len(stage.attention)):
                weights = dict(self.model.blocks[layer - 1].named_parameters())
                for name, weight in self.model.blocks[layer].named_parameters():
                    if not name.startswith("attend."):  # those of a mechanism, which may be another
                        weight.data.copy_(weights[name])

    def _batch(self, rng: np.random.Generator) -> Batch:
        if self.dataset is None:
            stage, _ = self.recipe.stage_at(self.step)
            return self.recipe.make_task(stage).sample(self.recipe.batch, (self.seed, 1, self.step))
        rows = rng.integers(len(self.dataset), size=self.recipe.batch)
        return Batch(self.dataset.inputs[rows], self.dataset.targets[rows], self.dataset.mask[rows])

    def _rate(self) -> float:
        recipe, step = self.recipe, self.step
        rate = recipe.rate * min(1.0, (step + 1) / recipe.warmup)
        if recipe.decay:
            done, steps = max(0, step - recipe.decay_from), recipe.steps - recipe.decay_from
            rate *= 0.05 + 0.95 * (1 + math.cos(math.pi * done / steps)) / 2
        return rate

    def save(self) -> None:
        """Write the state, each file whole or not at all; `run.json`, written last, says which step it is."""
        if self.folder is None:
            return
        write_run(self.folder, self.model, self.optimiser, self.step, self.log, self._about)
        if self.step == self.recipe.steps:
            save_model(
                self.model.with_attention(*self.recipe.model.attention), self.folder / "model", notes=self._about
            )

    @property
    def _about(self) -> dict[str, Any]:
        return {"recipe": write_recipe(self.recipe), "seed": self.seed, "step": self.step}

    def _open(self, folder: Path) -> None:
        """Continue the run in the folder, or claim the folder now, so that one that cannot be written fails early."""
        if not (folder / "run.json").exists():
            check_unclaimed(folder)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(self._about, folder / "run.json")
            return
        known = check_same_run(folder, self._about, read_recipe)
        if known.get("step") or (folder / "state.safetensors").exists():
            self.step, log = read_run(folder, self.model, self.optimiser, self.recipe.steps)
            self.log = log or self.log
