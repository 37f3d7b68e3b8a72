"""Commands on real text, with models that come with the library; the text is Python's own, so nothing is downloaded."""

import importlib
import json
import re

import pytest

from annattn.data import fetch
from annattn.experiments.text.trained import TEXT_MODELS, kept_texts, text_model
from annattn.experiments.text.training import load_text_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("texts")
    fetch("python", folder=place)
    return place


@pytest.mark.slow
def test_facts_come_back_from_text_of_a_kind_the_model_was_not_trained_on(folder, command, monkeypatch):
    monkeypatch.setenv("ANNATTN_DATA", str(folder))
    code, out, _ = command("needle", "--tokens", 16384, "--facts", 64, "--corpus", "python", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["share"] >= 0.98  # trained with 640 bytes and at most 6 facts
    assert told["right"] == round(told["share"] * 64)
    assert told["state_bytes"] < 2**25
    code, out, _ = command("needle", "--tokens", 3000, "--facts", 3, "--corpus", "python")
    assert "3 of 3 facts came back from 3,000 tokens (100.00 %)" in out


def test_what_cannot_be_read_is_refused(folder, command, monkeypatch):
    monkeypatch.setenv("ANNATTN_DATA", str(folder))
    for arguments, message in (
        (("--tokens", 10**9, "--corpus", "python"), "the bytes of test"),
        (("--tokens", 1000, "--facts", 500, "--corpus", "python"), "a fact has 39 bytes"),
        (("--tokens", 1000, "--corpus", "enwik8"), "run: annattn data enwik8"),
        (("--tokens", 1000, "--corpus", "python", "--model", "needel"), "did you mean needle?"),
        (("--tokens", 1000, "--corpus", "python", "--model", "./none"), "a file that exists"),
        (("--tokens", 1000, "--corpus", "python", "--seed", -1), "seed: got -1"),
        (("--tokens", 1, "--corpus", "python"), "a fact has 39 bytes"),
    ):
        code, out, errors = command("needle", *arguments)
        assert (code, out) == (2, "")
        assert message in errors, errors


@pytest.mark.parametrize("name", kept_texts())
def test_models_of_the_library_are_small_and_say_where_they_come_from(name):
    model, notes = load_text_model(TEXT_MODELS / name)
    assert {"recipe", "seed", "text", "command", "measured"} <= notes.keys()
    assert notes["command"].startswith("annattn train ")
    assert (TEXT_MODELS / f"{name}.csv").read_text().startswith("step,bits\n")
    assert (TEXT_MODELS / f"{name}.safetensors").stat().st_size < 3 * 2**20
    assert text_model(str(TEXT_MODELS / f"{name}.json")).config == model.config


def test_text_is_streamed_and_is_the_same_for_the_same_seed(command):
    code, out, errors = command("generate", "--prompt", "def ", "--n", 40, "--seed", 1)
    assert code == 0
    assert out.startswith("def ")
    assert "40 bytes, " in errors
    again = command("generate", "--prompt", "def ", "--n", 40, "--seed", 1, "--json")[1]
    told = json.loads(again)
    assert told["text"] == out.removesuffix("\n")
    assert told["seconds"] > 0
    assert command("generate", "--prompt", "def ", "--n", 40, "--seed", 2)[1] != out


def test_in_a_terminal_each_line_has_a_margin_with_the_speed(command, monkeypatch):
    module = importlib.import_module("annattn.cli.generate")
    monkeypatch.setattr(module, "shows_progress", lambda console: True)
    code, out, _ = command("generate", "--prompt", "a = 1\nb", "--n", 60, "--seed", 1, "--temperature", 1)
    assert code == 0
    margins = re.findall(r"\x1b\[2m *([\d,]+) +(?:[\d,]+/s)? │\x1b\[0m ", out)
    assert margins[:2] == ["0", "0"]
    assert len(margins) == out.count("\n")
    monkeypatch.undo()
    plain = command("generate", "--prompt", "a = 1\nb", "--n", 60, "--seed", 1, "--temperature", 1)[1]
    assert re.sub(r"\x1b\[2m.*?│\x1b\[0m ", "", out) == plain


def test_generation_repeats_what_the_prompt_had_beyond_the_window(command):
    name = "quetzalcoatlus"
    prompt = f"{name} = 1\n" + "# nothing\n" * 6 + name[:8]
    _, out, _ = command("generate", "--prompt", prompt, "--n", len(name) - 8, "--temperature", 0, "--json")
    assert json.loads(out)["text"].endswith(f"\n{name}")


def test_what_cannot_be_written_is_refused(command):
    for arguments, message in (
        (("--model", "cod"), "did you mean code?"),
        (("--prompt", ""), "at least one byte"),
        (("--n", "0"), "an integer of at least 1"),
        (("--temperature", "-1"), "a number of at least 0"),
        (("--seed", "-1"), "seed: got -1"),
        (("--model", TEXT_MODELS.parent / "match2_direct"), "the format 1, expected text-1"),
    ):
        code, out, errors = command("generate", *arguments)
        assert (code, out) == (2, "")
        assert message in errors, errors


def test_a_prompt_may_be_bytes_that_are_no_text(command):
    prompt = b"def \xff\xfe(".decode("utf-8", "surrogateescape")  # as Python hands them over
    code, out, _ = command("generate", "--prompt", prompt, "--n", 3, "--json")
    assert code == 0
    assert json.loads(out)["text"].startswith("def \ufffd\ufffd(")
    assert command("generate", "--prompt", prompt, "--n", 3)[1].startswith("def \ufffd\ufffd(")


def test_a_temperature_that_is_zero_in_float32_takes_the_likeliest_byte(command):
    texts = [command("generate", "--n", 5, "--temperature", t, "--json")[1] for t in (0, 1e-300, 1e-40)]
    assert len({json.loads(text)["text"] for text in texts}) == 1
