"""Checkpoints come back bit for bit; wrong and damaged ones are named and refused."""

import json

import numpy as np
import pytest
import torch

from annattn.errors import InputError
from annattn.nn import AnnaConfig, SoftmaxConfig, Transformer, TransformerConfig, WindowConfig, load_model, save_model
from annattn.nn.checkpoint import read_attention, write_attention


@pytest.fixture
def saved(tmp_path):
    config = TransformerConfig(
        input_vocab=5, target_vocab=2, length=6, dim=8, attention=(SoftmaxConfig(0.5), AnnaConfig()), recency=(0, 1)
    )
    model = Transformer(config, seed=1)
    return model, save_model(model, tmp_path / "deep" / "small.v1", notes={"seed": 1})


def test_comes_back_bit_for_bit(saved):
    model, path = saved
    again = load_model(path)
    assert again.config == model.config
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    x = torch.arange(5)[None]
    assert torch.equal(again(x), model(x))
    assert sorted(p.name for p in path.parent.iterdir()) == ["small.v1.json", "small.v1.safetensors"]


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_suffix_may_be_given(saved, suffix):
    model, path = saved
    assert load_model(path.with_name(path.name + suffix)).config == model.config


def edit(path, **changes):
    described = path.with_name(path.name + ".json")
    data = json.loads(described.read_text())
    data["model"].update(changes)
    described.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.with_name("small.v1.json").unlink(), "exists"),
        (lambda p: p.with_name("small.v1.json").write_text("{"), "JSON"),
        (lambda p: p.with_name("small.v1.json").write_bytes(b"\xff\xfe\x00"), "JSON"),
        (lambda p: p.with_name("small.v1.json").write_text("[1]"), "format"),
        (lambda p: p.with_name("small.v1.json").write_text('{"format": 99}'), "format"),
        (lambda p: p.with_name("small.v1.json").write_text('{"format": 1}'), "model"),
        (lambda p: p.with_name("small.v1.safetensors").unlink(), "exists"),
        (lambda p: p.with_name("small.v1.safetensors").write_bytes(b"x" * 100), "safetensors"),
        (lambda p: p.with_name("small.v1.safetensors").write_bytes(b""), "safetensors"),
        (
            lambda p: p.with_name("small.v1.safetensors").write_bytes(
                p.with_name("small.v1.safetensors").read_bytes()[:-7]
            ),
            "safetensors",
        ),
        (lambda p: edit(p, dim=16), "expected torch.float32"),
        (lambda p: edit(p, attention=[{"mechanism": "softmax"}] * 3, recency=[0] * 3, rotary=[0] * 3), "missing"),
        (lambda p: edit(p, attention=[{"mechanism": "soft"}]), "mechanism"),
        (lambda p: edit(p, depth=3), "depth"),
        (lambda p: edit(p, heads=0), "heads"),
        (lambda p: edit(p, dim=2**20), "expected torch.float32"),
        (lambda p: edit(p, dim=10**30), "at most"),
        (lambda p: edit(p, dim=True), "dim"),
        (lambda p: edit(p, attention=[{"mechanism": "anna", "seed": -1}] * 2), "seed"),
        (lambda p: edit(p, attention=[{"mechanism": "softmax", "beta": None}] * 2), "beta"),
        (lambda p: edit(p, attention=[3]), "fields of TransformerConfig"),
    ],
)
def test_damage_is_named(saved, damage, message):
    _, path = saved
    damage(path)
    with pytest.raises(InputError, match=message):
        load_model(path)


@pytest.mark.parametrize("suffix", ["", ".json", ".safetensors"])
def test_what_is_saved_under_a_name_is_found_under_it(saved, suffix):
    model, path = saved
    named = path.parent / f"again{suffix}"
    save_model(model, named)
    assert load_model(named).config == model.config
    assert {p.name for p in path.parent.glob("again*")} == {"again.json", "again.safetensors"}


@pytest.mark.parametrize("notes", [{"error": np.float32(1)}, {"error": float("nan")}])
def test_notes_that_cannot_be_written_change_nothing(saved, notes):
    model, path = saved
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    with torch.no_grad():
        model.head.weight.zero_()
    with pytest.raises(InputError, match="notes"):
        save_model(model, path, notes=notes)
    with pytest.raises(InputError, match="model: got Linear"):
        save_model(model.head, path)  # type: ignore[arg-type]
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before


@pytest.mark.parametrize("name", ["", ".", "/", "x\0", "x" * 5000])
def test_names_that_cannot_be_files_are_refused(name):
    with pytest.raises(InputError, match="checkpoint"):
        load_model(name)


def test_others_may_read_the_weights_that_may_read_the_config(saved):
    _, path = saved
    modes = {p.stat().st_mode for p in path.parent.iterdir()}
    assert len(modes) == 1


def test_weights_that_are_not_numbers_are_refused(saved):
    model, path = saved
    with torch.no_grad():
        model.head.weight[0, 0] = torch.nan
    save_model(model, path)
    with pytest.raises(InputError, match="NaN"):
        load_model(path)


def test_a_window_that_was_written_with_a_gate_is_read_with_a_gate():
    written = {"mechanism": "window", "family": "hyperplane", "tables": 4, "hashes": 3, "window": 5, "combine": "gate"}
    assert read_attention(written) == WindowConfig(tables=4, hashes=3, window=5, combine="gate")
    gated = WindowConfig(combine="gate")
    assert read_attention(write_attention(gated)) == gated
    assert WindowConfig().combine == "joined"
