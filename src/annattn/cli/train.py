"""`annattn train`: run a recipe."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn

from annattn.checks import did_you_mean, require_choice, require_count
from annattn.cli.terminal import Integer, JsonFlag, print_json, print_line, progress_bar, stderr_console
from annattn.data import load
from annattn.experiments import RECIPES, Recipe
from annattn.experiments import Progress as Step
from annattn.experiments import train as run_training
from annattn.experiments.text import TEXT_RECIPES, TextRecipe, train_text

__all__ = ["train", "train_with_bar"]

_AVERAGED = 50  # steps whose mean loss and error the bar shows


def train(
    name: str,
    *,
    seed: Integer = 0,
    folder: Path | None = None,
    share: float = 1.0,
    save_every: Integer = 500,
    as_json: JsonFlag = False,
) -> None:
    """Train a recipe, or continue a run that was stopped. The same name and seed give the same weights.

    Example: annattn train induction_direct --seed 0 --folder runs/induction

    On several processes, for example two:

    torchrun --nproc-per-node 2 -m annattn train induction_direct

    Args:
        name: a recipe, such as match2_direct, or python_anna on real text; a wrong name lists them all.
        seed: determines weights, data and hash functions.
        folder: where the state and the finished model are kept, by default runs/NAME-SEED. Ctrl-C keeps the state.
        share: run only this share of the recipe's steps.
        save_every: steps between two saves of the state.
        as_json: print the path of the model as JSON.
    """
    every: dict[str, Recipe | TextRecipe] = {**RECIPES, **TEXT_RECIPES}
    recipe = every[require_choice("recipe", name, every, hint=did_you_mean(name, every))]
    if share != 1.0:
        recipe = recipe.shortened(share)
    require_count("--save-every", save_every)
    place = folder or Path("runs") / f"{name}-{seed}"
    console = stderr_console()
    with _one_of_several() as speaks:
        if isinstance(recipe, TextRecipe):
            _fetch_once(recipe.corpus, speaks)
        try:
            if speaks:
                train_with_bar(recipe, name, seed, place, console, save_every)
            elif isinstance(recipe, TextRecipe):
                train_text(recipe, load(recipe.corpus), seed=seed, folder=place, save_every=save_every)
            else:
                run_training(recipe, seed=seed, folder=place, save_every=save_every)
        except KeyboardInterrupt:
            if speaks:
                console.print(f"stopped; the same command continues from {place}", markup=False)
            raise SystemExit(130) from None
    if not speaks:
        return
    model = f"{place}/model.safetensors"
    if as_json:
        print_json({"recipe": name, "seed": seed, "steps": recipe.steps, "model": model})
    else:
        print_line(f"the model is {model}")


def _processes() -> int:
    """How many torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


@contextlib.contextmanager
def _one_of_several() -> Iterator[bool]:
    """Join the processes that torchrun started, if it did; gives whether this is the one that prints."""
    if _processes() == 1:
        yield True
        return
    import torch.distributed as dist

    from annattn.experiments.ranks import join_torchrun, leave_torchrun

    join_torchrun()
    yield dist.get_rank() == 0
    leave_torchrun()


def _fetch_once(corpus: str, fetches: bool) -> None:
    """Of several processes one fetches the corpus, and the others find it."""
    if _processes() > 1:
        import torch.distributed as dist

        if fetches:
            load(corpus)
        dist.barrier()


def train_with_bar(
    recipe: Recipe | TextRecipe, name: str, seed: int, folder: Path, console: Console, save_every: int = 500
) -> None:
    """Train with a progress bar that shows the mean loss and error of the last steps."""
    with progress_bar(console, MofNCompleteColumn()) as progress:
        line = progress.add_task(name, total=recipe.steps, note="")
        recent: list[tuple[float, float]] = []

        def report(step: Step) -> None:
            recent.append((step.loss, step.error))
            del recent[:-_AVERAGED]
            loss, error = (sum(values) / len(recent) for values in zip(*recent, strict=True))
            of_text = f"{loss / math.log(2):.3f} bits per byte"
            shown = of_text if isinstance(recipe, TextRecipe) else f"loss {loss:.4f}  error {error:.4f}"
            progress.update(line, completed=step.step, note=shown)

        if isinstance(recipe, TextRecipe):
            train_text(recipe, load(recipe.corpus), seed=seed, folder=folder, report=report, save_every=save_every)
        else:
            run_training(recipe, seed=seed, folder=folder, report=report, save_every=save_every)
        progress.update(line, completed=recipe.steps)
