"""Training a text model. A run that is stopped at any step and started again ends with the same weights."""

import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from annattn.checks import LARGEST_COUNT, keep_counts, keep_number, require_number
from annattn.data import Text
from annattn.errors import InputError
from annattn.experiments.ranks import Ranks
from annattn.experiments.run_files import check_same_run, check_unclaimed, read_run, write_run
from annattn.experiments.text.model import TextConfig, TextModel
from annattn.experiments.text.needles import plant_twice
from annattn.experiments.training import Progress
from annattn.files import held, write_json
from annattn.lsh import Hyperplane
from annattn.nn.checkpoint import check_tensors, read_tensors, write_tensors
from annattn.seeds import check_seed, derive_seed

__all__ = ["TextRecipe", "load_text_model", "save_text_model", "train_text"]


@dataclass(frozen=True)
class TextRecipe:
    """A run as data.

    - corpus: a name in `annattn.data.CORPORA`.
    - steps, batch, length: excerpts of `length` bytes per step.
    - rate: the largest learning rate, reached after `warmup` steps; then a cosine takes it to a twentieth.
    - noise: what it rises to, from 0, over the first `ramp` of the steps; see `sampled_collision_attention`.
    - tables, hashes: ℓ and z in training; the model's own are those it reads with.
    - linear: a hashed far head trains in linear time, on pairs that meet, from the first step; there is no noise then.
    - facts: up to so many facts are planted in each excerpt, and asked for later in it.
    - weight: of the answers in the loss.

    >>> TextRecipe("python", steps=10).model.far
    'anna'
    """

    corpus: str
    model: TextConfig = field(default_factory=TextConfig)
    steps: int = 200
    batch: int = 6
    length: int = 512
    rate: float = 3e-3
    warmup: int = 30
    noise: float = 1.0
    ramp: float = 0.5
    tables: int = 16
    hashes: int = 16
    linear: bool = False
    facts: int = 0
    weight: float = 1.0

    def __post_init__(self) -> None:
        keep_counts(self, "steps", "batch", "length", "warmup", "tables", "hashes", most=LARGEST_COUNT)
        keep_counts(self, "facts", least=0, most=LARGEST_COUNT)
        keep_number(self, "ramp", "a share of the steps, from 0 to 1", low=0, high=1)
        keep_number(self, "noise", "a number from 0 to 1", low=0, high=1)
        keep_number(self, "rate", "a number above 0", low=1e-9)
        keep_number(self, "weight", "a number of at least 0", low=0)

    def shortened(self, share: float) -> "TextRecipe":
        """The same with this share of the steps."""
        require_number("share", share, "a number above 0", low=1e-9)
        return replace(
            self, steps=max(1, round(share * self.steps)), warmup=max(1, round(min(share, 1.0) * self.warmup))
        )


def train_text(
    recipe: TextRecipe,
    text: Text,
    *,
    seed: int = 0,
    folder: Path | None = None,
    save_every: int = 100,
    report: Callable[[Progress], None] | None = None,
    stop_at: int | None = None,
) -> TextModel:
    """Run the recipe, or go on with the run in `folder`; returns the model, ready to read.

    Where torch.distributed is initialised, all processes of its default group train one model, as for `train`.

    Args:
        recipe: what to train.
        text: its corpus.
        seed: decides the initial weights, the excerpts, and the hash functions of every step.
        folder: where the state is saved: every `save_every` steps, at the end, and on Ctrl-C. A run found there is
            continued if it has the same recipe, seed and text.
        save_every: steps between two saves.
        report: called after every step; its `error` is the loss in bits per byte.
        stop_at: stop before this step, as if interrupted.
    """
    if text.name != recipe.corpus:
        raise InputError("text", given=text.name, expected=f"the recipe's corpus, {recipe.corpus}")
    ranks = Ranks()
    with held(folder) if folder is not None and ranks.writes else contextlib.nullcontext():
        run = _started(recipe, text, seed, folder, ranks, f"{save_every}, {stop_at}")
        last = recipe.steps if stop_at is None else min(stop_at, recipe.steps)

        def advance() -> None:
            loss = run.advance()
            if report and ranks.writes:
                report(Progress(run.step, recipe.steps, loss, loss / math.log(2), 0.0))

        ranks.go_on(run, last, save_every, advance)
        return run.model.eval()


def _started(recipe: TextRecipe, text: Text, seed: int, folder: Path | None, ranks: Ranks, options: str) -> "_Run":
    """The run where it stands; all processes have the state that the first one read."""
    about = {"recipe": asdict(recipe), "seed": seed, "text": text.sha256, "save_every and stop_at": options}
    run = ranks.start(
        recipe.batch,
        lambda: _Run(recipe, text, check_seed(seed), folder if ranks.writes else None, ranks),
        {name: str(value) for name, value in about.items()},
    )
    run.step = ranks.share(run.model, run.optimiser, run.step)
    return run


class _Run:
    """The model, the optimiser and the number of the next step."""

    def __init__(self, recipe: TextRecipe, text: Text, seed: int, folder: Path | None, ranks: Ranks) -> None:
        self.recipe, self.text, self.seed, self.folder, self.ranks = recipe, text, seed, folder, ranks
        self.model = TextModel(recipe.model, seed=seed).train()
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        self.step, self.log = 0, ["step,bits"]
        if folder is not None and (folder / "run.json").exists():
            self._resume(folder)
        elif folder is not None:  # claimed now, so that one that cannot be written fails early
            check_unclaimed(folder)
            write_json(self.about, folder / "run.json")

    @cached_property
    def forward(self) -> nn.Module:
        """The model whose gradients are those of all processes."""
        return self.ranks.adding(self.model)

    def advance(self) -> float:
        """One step of gradient descent; returns the loss before it."""
        recipe, step = self.recipe, self.step
        rate = recipe.rate * min(1.0, (step + 1) / recipe.warmup)
        rate *= 0.05 + 0.95 * (1 + math.cos(math.pi * step / recipe.steps)) / 2
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        noise = recipe.noise * min(1.0, step / max(1.0, recipe.ramp * recipe.steps))
        drawn = Hyperplane(recipe.model.key_dim).sample(
            tables=recipe.tables, hashes=recipe.hashes, seed=derive_seed(self.seed, 1, step)
        )
        self.model.far_form(noise, drawn, linear=recipe.linear)
        rows = self.text.sample("train", recipe.batch, recipe.length + 1, (self.seed, step))
        weights = np.ones(rows.shape, np.float32)
        if recipe.facts:
            rows, answers = plant_twice(rows, recipe.facts, (self.seed, step, 1))
            weights[answers] = recipe.weight
        total, mine = torch.from_numpy(weights)[:, 1:].flatten().sum(), self.ranks.rows(len(rows))
        tokens, weight = torch.from_numpy(rows[mine]), torch.from_numpy(weights[mine])[:, 1:].flatten()
        logits = self.forward(tokens[:, :-1]).flatten(0, 1)
        losses = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
        loss = (losses * weight).sum() / total
        (reached,) = self.ranks.total(loss.item())
        if not math.isfinite(reached):
            raise InputError("loss", given=f"{reached} at step {step}", expected="a finite number")
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        if self.step % 50 == 0 or self.step == recipe.steps:
            self.log.append(f"{self.step},{reached / math.log(2):.4f}")
        return reached

    @property
    def about(self) -> dict[str, Any]:
        """What decides the run."""
        return {"recipe": asdict(self.recipe), "seed": self.seed, "text": self.text.sha256}

    def save(self) -> None:
        """Write the state, each file whole or not at all; the weights know their step."""
        if self.folder is None:
            return
        write_run(self.folder, self.model, self.optimiser, self.step, self.log, self.about)
        if self.step == self.recipe.steps:
            save_text_model(self.model, self.folder / "model", notes=self.about)

    def _resume(self, folder: Path) -> None:
        check_same_run(folder, self.about, _read_recipe)
        if (folder / "state.safetensors").exists():
            self.step, log = read_run(folder, self.model, self.optimiser, self.recipe.steps)
            self.log = log or self.log


def _read_recipe(data: dict[str, Any]) -> TextRecipe:
    options: dict[str, Any] = {**data, "model": TextConfig(**data["model"])}
    return TextRecipe(**options)


def save_text_model(model: TextModel, path: Path, *, notes: dict[str, Any]) -> None:
    """Write `path`.safetensors, in half precision, and `path`.json with the sizes and notes."""
    halves = {name: tensor.half() for name, tensor in model.state_dict().items()}
    write_tensors(halves, path.with_suffix(".safetensors"))
    write_json({"format": "text-1", "model": asdict(model.config), "notes": notes}, path.with_suffix(".json"))


def load_text_model(path: Path) -> tuple[TextModel, dict[str, Any]]:
    """The model at `path`, ready to read, and its notes."""
    data = _json(path.with_suffix(".json"))
    if data.get("format") != "text-1":
        raise InputError("text model", given=f"the format {data.get('format')!r}", expected="text-1")
    try:
        config, notes = TextConfig(**data["model"]), dict(data["notes"])
    except InputError as wrong:
        raise InputError(f"model of {path}.json", given="an impossible config", expected=str(wrong)) from None
    except (KeyError, TypeError, ValueError):
        raise InputError("text model", given=f"{path}.json, damaged", expected="sizes and notes") from None
    weights = {
        name: x.float() if x.is_floating_point() else x
        for name, x in read_tensors(path.with_suffix(".safetensors")).items()
    }
    if config.layers <= len(weights):  # a file has as many layers as it has tensors for, so the next line is quick
        with torch.device("meta"):  # shapes alone, so that a config of another size is known before it takes memory
            check_tensors(TextModel(config), weights, str(path))
    else:
        raise InputError(f"weights of {path}", given=f"{len(weights)} tensors", expected=f"{config.layers} layers")
    model = TextModel(config)
    model.load_state_dict(weights)
    return model.eval(), notes


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError("text model", given=str(path), expected="a file that exists") from None
    except (OSError, ValueError, RecursionError):
        raise InputError("text model", given=f"{path}, damaged", expected="JSON") from None
    if not isinstance(found, dict):
        raise InputError("text model", given=f"{path}, damaged", expected="a JSON object")
    return found
