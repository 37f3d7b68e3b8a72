"""`annattn train`: run a recipe."""

from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn

from annattn.cli.names import known
from annattn.cli.terminal import AsJson, Whole, bar, output, print_json, remarks
from annattn.errors import InputError
from annattn.experiments import RECIPES, Recipe
from annattn.experiments import Progress as Step
from annattn.experiments import train as run_training

__all__ = ["train", "watched"]


def train(
    name: str,
    *,
    seed: Whole = 0,
    folder: Path | None = None,
    share: float = 1.0,
    save_every: Whole = 500,
    as_json: AsJson = False,
) -> None:
    """Train a recipe; the same name and seed give the same weights, and a run that was stopped goes on.

    Example: annattn train induction_direct --seed 0 --folder runs/induction

    Args:
        name: a recipe, such as match2_direct; a wrong name lists them all.
        seed: decides weights, data and hash functions.
        folder: where the state and the finished model are kept; runs/NAME-SEED unless given. Ctrl-C keeps the state.
        share: run this share of the recipe's steps.
        save_every: steps between two writings of the state.
        as_json: print where the model is as JSON.
    """
    recipe = RECIPES[known("recipe", name, RECIPES)]
    if share != 1.0:
        recipe = recipe.shortened(share)
    if save_every < 1:
        raise InputError("--save-every", given=save_every, expected="at least 1 step")
    place = folder or Path("runs") / f"{name}-{seed}"
    console = remarks()
    try:
        watched(recipe, name, seed, place, console, save_every)
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on from {place}", markup=False)
        raise SystemExit(130) from None
    model = f"{place}/model.safetensors"
    if as_json:
        print_json({"recipe": name, "seed": seed, "steps": recipe.steps, "model": model})
    else:
        output().print(f"the model is {model}", markup=False, soft_wrap=True)


def watched(recipe: Recipe, name: str, seed: int, folder: Path, console: Console, save_every: int = 500) -> None:
    """Train with a progress bar that shows the loss and the error of the last steps."""
    with bar(console, MofNCompleteColumn()) as progress:
        line = progress.add_task(name, total=recipe.steps, note="")
        recent: list[tuple[float, float]] = []

        def report(step: Step) -> None:
            recent.append((step.loss, step.error))
            del recent[:-50]
            loss, error = (sum(values) / len(recent) for values in zip(*recent, strict=True))
            progress.update(line, completed=step.step, note=f"loss {loss:.4f}  error {error:.4f}")

        run_training(recipe, seed=seed, folder=folder, report=report, save_every=save_every)
        progress.update(line, completed=recipe.steps)
