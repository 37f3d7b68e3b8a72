"""Distillation on a tiny encoder: the student learns, a stopped run continues to the same weights."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer

from annattn.attention import AnnaConfig, ExpectedCollisionConfig
from annattn.cli import main
from annattn.errors import InputError
from annattn.files import held
from annattn.integrations.huggingface.convert import convert
from annattn.integrations.huggingface.distill import Distillation, distill, embed, embed_halves, load_teacher, scores
from annattn.integrations.huggingface.layerwise import layerwise
from annattn.integrations.huggingface.paragraphs import Paragraphs, halves, plain
from annattn.nn.checkpoint import read_tensors, write_tensors

WORDS = [f"word{number}" for number in range(40)]


@pytest.fixture
def teacher(tmp_path):
    """A folder with a tiny encoder and its tokenizer."""
    folder = tmp_path / "teacher"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=45, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    model = BertModel(config)
    for parameter in model.parameters():
        parameter.data.mul_(5 if parameter.ndim > 1 else 1)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    generator = torch.Generator().manual_seed(0)
    lines = [" ".join(WORDS[i] for i in torch.randint(40, (40,), generator=generator)) for _ in range(60)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines))
    return path


ANNA = AnnaConfig(tables=4, hashes=2)
TASK = Distillation(ANNA, steps=12, batch=4, length=24, rate=3e-3)


def test_the_student_comes_closer_to_the_teacher(teacher, text, tmp_path):
    model, tokenizer = load_teacher(teacher)
    losses = []
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    student = distill(
        model, tokenizer, Paragraphs(text), TASK, folder=tmp_path / "run", report=lambda step: losses.append(step.loss)
    )
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    saved, _ = load_teacher(tmp_path / "run" / "student")
    texts = Paragraphs(text).held_out(3)
    assert torch.equal(embed(saved, tokenizer, texts, 24), embed(student, tokenizer, texts, 24))


def test_a_stopped_run_continues_to_the_same_weights(teacher, text, tmp_path):
    model, tokenizer = load_teacher(teacher)
    paragraphs = Paragraphs(text)
    whole = distill(model, tokenizer, paragraphs, TASK, folder=tmp_path / "whole")

    def stop(step):
        if step.step == 5:
            raise RuntimeError("pulled the plug")

    with pytest.raises(RuntimeError):
        distill(model, tokenizer, paragraphs, TASK, folder=tmp_path / "cut", save_every=3, report=stop)
    again = distill(model, tokenizer, paragraphs, TASK, folder=tmp_path / "cut", save_every=3)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    with pytest.raises(InputError, match="the same run"):
        distill(model, tokenizer, paragraphs, Distillation(AnnaConfig(), steps=3), folder=tmp_path / "cut")


def test_what_a_folder_holds_is_this_run_or_refused_and_kept(teacher, text, tmp_path):
    model, tokenizer = load_teacher(teacher)
    paragraphs, folder = Paragraphs(text), tmp_path / "run"

    def again(task=TASK, teacher=model, text=paragraphs):
        return distill(teacher, tokenizer, text, task, folder=folder, save_every=2, report=stop)

    def stop(step):
        if step.step == 4:
            raise RuntimeError("pulled the plug")

    with pytest.raises(RuntimeError):
        again()
    state, task = folder / "state.safetensors", folder / "task.json"
    kept = state.read_bytes(), task.read_bytes()
    other = copy.deepcopy(model)
    other.embeddings.word_embeddings.weight.data[7, 3] += 1
    more = tmp_path / "more.txt"
    more.write_text(text.read_text() + text.read_text())
    with pytest.raises(InputError, match="a run with another steps, seed, expected the same run"):
        again(replace(TASK, steps=13, seed=1))
    with pytest.raises(InputError, match="a run with another teacher"):
        again(teacher=other)
    with pytest.raises(InputError, match="a run with another text"):
        again(text=Paragraphs(more))
    task.write_text(json.dumps(json.loads(kept[1]) | {"unheard_of": None}))
    with pytest.raises(InputError, match="a run with another unheard_of"):
        again()
    for damaged in ("", "[]", "{", "[" * 100_000):
        task.write_text(damaged)
        with pytest.raises(InputError, match=r"task\.json, expected the JSON of a run"):
            again()
    task.unlink()
    with pytest.raises(InputError, match=r"with state\.safetensors and no task\.json"):
        again()
    task.write_bytes(kept[1])
    assert state.read_bytes() == kept[0]
    tensors, name = read_tensors(state), "adam.10.exp_avg"
    for damage, said in (
        ({"step": torch.tensor(99)}, "step of"),
        ({"step": torch.tensor(-1)}, "step of"),
        ({name: torch.zeros(3)}, name),
        ({name: tensors[name] * torch.nan}, name),
        ({"adam.x.y": torch.zeros(3)}, "adam.x.y"),
        ({"student.pooler.dense.bias": torch.full((16,), torch.inf)}, "pooler.dense.bias"),
        ({"student.more": torch.zeros(1)}, "more"),
    ):
        write_tensors(tensors | damage, state)
        with pytest.raises(InputError, match=said):
            again()
    state.write_bytes(kept[0][:100])
    with pytest.raises(InputError, match="a whole safetensors file"):
        again()
    with held(folder), pytest.raises(InputError, match="in use by process"):
        again()
    with pytest.raises(InputError, match="save_every"):
        distill(model, tokenizer, paragraphs, TASK, folder=folder, save_every=0)


def test_counts_of_numpy_are_what_they_say():
    made = Distillation(ANNA, steps=np.uint8(200), batch=np.uint8(4), length=np.uint8(24))  # pyright: ignore
    assert made.layerwise == 133


def test_a_run_stopped_in_its_second_part_continues_there(teacher, text, tmp_path):
    model, tokenizer = load_teacher(teacher)
    whole = distill(model, tokenizer, Paragraphs(text), TASK, folder=tmp_path / "whole")

    def stop(step):
        if step.step == 10:
            raise RuntimeError("pulled the plug")

    with pytest.raises(RuntimeError):
        distill(model, tokenizer, Paragraphs(text), TASK, folder=tmp_path / "cut", save_every=9, report=stop)
    again = distill(model, tokenizer, Paragraphs(text), TASK, folder=tmp_path / "cut")
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


def test_layer_by_layer_only_attention_is_trained_and_the_teacher_is_left_as_it_was(teacher, text):
    model, tokenizer = load_teacher(teacher)
    student = convert(copy.deepcopy(model), ANNA)
    inputs = dict(tokenizer(Paragraphs(text).held_out(3), padding=True, return_tensors="pt"))
    with layerwise(model, student, ANNA) as error:
        error(inputs).backward()
    trained = {name for name, weight in student.named_parameters() if weight.grad is not None}
    assert trained == {name for name, _ in student.named_parameters() if ".attention.self." in name}
    assert not any(module._forward_hooks for module in model.modules())


def test_layer_by_layer_the_error_is_that_of_averages_plus_their_variance(teacher, text):
    model, tokenizer = load_teacher(teacher)
    inputs = dict(tokenizer(Paragraphs(text).held_out(3), padding=True, return_tensors="pt"))
    errors = []
    for tables in (1, 2, 2**16):
        student = convert(copy.deepcopy(model), AnnaConfig(tables=tables, hashes=2))
        with layerwise(model, student, AnnaConfig(tables=tables, hashes=2)) as error, torch.no_grad():
            errors.append(error(inputs).item())
    assert errors[0] > 1.05 * errors[2]
    assert errors[0] - errors[2] == pytest.approx(2 * (errors[1] - errors[2]), rel=1e-3)
    averages: Any = convert(copy.deepcopy(model), ExpectedCollisionConfig(hashes=2))
    real, terms = inputs["attention_mask"].bool(), []
    inner = [[module.encoder.layer[n].attention.self for n in range(2)] for module in (model, averages)]
    seen = {}
    for number, original in enumerate(inner[0]):
        original.register_forward_hook(lambda _, args, out, n=number: seen.update({n: (args[0], out[0])}))
    with torch.no_grad():
        model(**inputs)
        for number, own in enumerate(inner[1]):
            wanted, given = seen[number][1][real], own(seen[number][0], attention_mask=real)[0][real]
            terms.append(((given - wanted).square().mean() / wanted.var()).item())
    assert errors[2] == pytest.approx(sum(terms) / 2, rel=1e-3)


def test_the_teacher_scores_itself_with_cosine_one(teacher, text):
    model, tokenizer = load_teacher(teacher)
    own = embed_halves(model, tokenizer, Paragraphs(text).held_out(3))
    found = scores(own, own)
    assert found.cosine == pytest.approx(1, abs=1e-5)
    assert found.recall in (0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1)


def test_the_command_reports_teacher_before_and_after(teacher, text, tmp_path, capsys, monkeypatch):
    places = ["annattn", "distill", str(text), "--teacher", str(teacher), "--folder", str(tmp_path / "run")]
    monkeypatch.setattr("sys.argv", [*places, "--steps", "3", "--batch", "2", "--tables", "2", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["teacher"]["cosine"] == pytest.approx(1, abs=1e-5)
    assert found["before"]["cosine"] < found["after"]["cosine"] < 1
    assert found["steps"] == 3
    assert found["cpu_seconds"] > 0


def test_the_command_refuses_a_text_in_one_line_before_it_loads_the_teacher(teacher, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("sys.argv", ["annattn", "distill", str(tmp_path / "none.txt"), "--teacher", str(teacher)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    output, errors = capfd.readouterr()
    assert (output, errors.count("\n")) == ("", 1)
    assert "\r" not in errors


def test_bad_input_is_refused_before_anything_is_trained(text, tmp_path):
    with pytest.raises(InputError, match="teacher"):
        load_teacher("no_such_package")
    with pytest.raises(InputError, match="text"):
        Paragraphs(tmp_path / "none.txt")
    (tmp_path / "short.txt").write_text("too short\n")
    with pytest.raises(InputError, match="one paragraph per line"):
        Paragraphs(tmp_path / "short.txt")
    with pytest.raises(InputError, match="steps"):
        Distillation(AnnaConfig(), steps=0)


def test_no_training_step_sees_a_held_out_paragraph(text):
    paragraphs = Paragraphs(text)
    held_out = set(paragraphs.held_out(3))
    assert len(held_out) == 3
    assert not held_out & {line for step in range(50) for line in paragraphs.batch(step, 8, 0)}


def test_markup_goes_and_halves_are_cut_at_a_space():
    assert plain("A <b>bold</b> [[link|word]], {{note}} &quot;quoted&quot;") == "A bold word, quoted"
    assert " ".join(halves("some words of different lengths here")) == "some words of different lengths here"


def test_a_device_without_an_end_is_not_read():
    with pytest.raises(InputError, match="/dev/zero, which is no file"):
        Paragraphs(Path("/dev/zero"))


def test_the_student_gets_the_tokenizer_of_the_teacher_whether_or_not_it_was_stopped(teacher, text, tmp_path):
    model, tokenizer = load_teacher(teacher)
    tokenizer.save_pretrained(tmp_path / "plain")
    distill(model, tokenizer, Paragraphs(text), TASK, folder=tmp_path / "run")
    written = (tmp_path / "run" / "student" / "tokenizer.json").read_text()
    assert written == (tmp_path / "plain" / "tokenizer.json").read_text()
