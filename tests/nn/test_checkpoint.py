"""Checkpoints come back bit for bit; wrong and damaged ones are named and refused."""

import json

import pytest
import torch

from annattn.errors import InputError
from annattn.nn import AnnaConfig, SoftmaxConfig, Transformer, TransformerConfig, load_model, save_model


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
    ],
)
def test_damage_is_named(saved, damage, message):
    _, path = saved
    damage(path)
    with pytest.raises(InputError, match=message):
        load_model(path)


def test_weights_that_are_not_numbers_are_refused(saved):
    model, path = saved
    with torch.no_grad():
        model.head.weight[0, 0] = torch.nan
    save_model(model, path)
    with pytest.raises(InputError, match="NaN"):
        load_model(path)
