"""The text model: what it trains is what it reads with, blocks are the whole, and the far head is what it says."""

import dataclasses
from typing import Any, cast

import pytest
import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from annattn.attention import reference
from annattn.errors import InputError
from annattn.experiments.text import TextConfig, TextModel
from annattn.experiments.text.generating import stream
from annattn.experiments.text.model import FAR

SMALL = TextConfig(dim=16, layers=2, heads=2, window=5, grams=3, key_dim=8, value_dim=6, tables=3, hashes=4)
all_kinds = pytest.mark.parametrize("far", FAR)


def text_model(far: str = "anna", **changes) -> TextModel:
    return TextModel(dataclasses.replace(SMALL, far=far, **changes), seed=1).eval()


def far_head(model: TextModel) -> Any:
    return cast(Any, model.blocks[1]).far


def some_text(rows: int = 2, n: int = 70) -> torch.Tensor:
    return torch.randint(97, 100, (rows, n), generator=torch.Generator().manual_seed(0))  # few letters: many matches


@all_kinds
def test_what_trains_at_full_noise_is_what_reads(far):
    model, text = text_model(far), some_text()
    read = model(text)
    model.train().far_form(1.0, model.hasher)
    torch.testing.assert_close(model(text), read, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("far", ["anna", "latest_match"])
def test_training_in_linear_time_is_full_noise_on_the_pairs_that_meet(far):
    model, text = text_model(far).train(), some_text()
    gradients = []
    for linear in (False, True):
        model.far_form(1.0, model.hasher, linear=linear)
        out, weights = model(text), dict(model.named_parameters())
        found = torch.autograd.grad(out.square().sum(), list(weights.values()))
        gradients.append((out.detach(), dict(zip(weights, found, strict=True))))
    (pairs, of_pairs), (meetings, of_meetings) = gradients
    torch.testing.assert_close(meetings, pairs, rtol=1e-4, atol=1e-5)
    for name, found in of_meetings.items():
        if "sketch" in name:  # the one that collisions have no derivative for: another estimate of it
            assert found.abs().max() > 0
        else:
            torch.testing.assert_close(found, of_pairs[name], rtol=1e-3, atol=1e-4)


def test_training_in_linear_time_holds_no_pairs():
    model = text_model(dim=4, layers=1, far_layer=0, heads=1, hashes=16).train()
    model.far_form(1.0, model.hasher, linear=True)
    seen: list[int] = []

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            seen.extend(x.numel() for x in _pytree.tree_leaves(out) if isinstance(x, torch.Tensor))
            return out

    with Largest():
        model(torch.randint(0, 256, (1, 5000))).sum().backward()
    assert max(seen) <= 5000 * 256  # the logits


@pytest.mark.parametrize("far", [far for far in FAR if far != "hyper"])
@pytest.mark.parametrize("cut", [1, 2, 4, 33, 69])
def test_text_read_in_blocks_is_text_read_whole(far, cut):
    model, text = text_model(far), some_text()
    whole, state = model(text), model.new_state(2)
    parts = [model(text[:, start : start + cut], state) for start in range(0, 70, cut)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
    assert state.position == 70


@all_kinds
@pytest.mark.parametrize("training", [False, True])
def test_no_byte_sees_a_later_one(far, training):
    model, text = text_model(far).train(training), some_text()
    other = text.clone()
    other[:, 40:] = 120
    torch.testing.assert_close(model(text)[:, :40], model(other)[:, :40])
    assert (model(text)[:, 41:] - model(other)[:, 41:]).abs().max() > 1e-3


def test_hyper_attention_reads_a_text_at_once():
    model, text = text_model("hyper"), some_text()
    state = model.new_state(2)
    model(text[:, :40], state)
    with pytest.raises(InputError, match="all of it at once"):
        model(text[:, 40:], state)


@pytest.mark.parametrize("far", ["hyper", "based"])
def test_other_far_heads_weigh_what_followed_by_their_own_matrix(far):
    """Query i has the keys before it; what key j stands for is the value after it."""
    model, text = text_model(far), some_text(1, 50)
    head = far_head(model)
    seen = {}
    head.register_forward_hook(lambda module, args, out: seen.update(inner=args[0], out=out))
    model(text)
    rows = torch.nn.functional.normalize(head._sketch(text)[0].detach(), dim=-1) * 16**0.5
    value = head.value(seen["inner"])[0].detach()
    scores = rows @ rows.T  # β = 16; 50 bytes are below the length from which HyperAttention approximates
    weights = (1 + scores + scores**2 / 2 if far == "based" else scores.exp()).tril(-1)
    expected = weights[:, :-1] @ value[1:] / weights.sum(-1, keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(seen["out"][0], head.out(expected), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("far", ["anna", "latest_match"])
def test_the_far_head_reads_what_followed_the_contexts_it_meets(far):
    """By loops over pairs, from the sketch on."""
    model, text = text_model(far), some_text(1, 50)
    head, n = far_head(model), 50
    seen = {}
    head.register_forward_hook(lambda module, args, out: seen.update(inner=args[0], out=out))
    model(text)
    rows = torch.zeros(n, 8)
    for i in range(n):
        for place in range(min(3, i + 1)):
            rows[i] += head.sketch[place, text[0, i - place]].detach()
    value = head.value(seen["inner"])[0].detach()
    counts = reference.collision_counts(rows, rows, model.hasher)
    codes = reference.hash_tuples(rows, model.hasher)
    expected = torch.zeros(n, 6)
    for i in range(n):
        if far == "anna":
            weights = {j + 1: int(counts[i, j]) for j in range(i)}
        else:
            weights = {}
            for u in range(3):
                met = [j for j in range(i) if codes[i][u] == codes[j][u]]
                if met:
                    weights[met[-1] + 1] = weights.get(met[-1] + 1, 0) + 1
        total = max(3, sum(weights.values()))
        for j, weight in weights.items():
            expected[i] += weight / total * value[j]
    torch.testing.assert_close(seen["out"][0], head.out(expected), rtol=1e-4, atol=1e-5)
    assert (expected.norm(dim=1) > 0).float().mean() > 0.5


def test_equal_contexts_meet_in_every_table_whatever_came_before():
    model = text_model("latest_match", hashes=30)
    sketch = far_head(model)._sketch
    a, b = (torch.tensor([[*start, *b"key"]]) for start in (b"one ", b"other "))
    assert torch.equal(sketch(a)[0, -1], sketch(b)[0, -1])
    assert not torch.equal(sketch(a)[0, -3], sketch(b)[0, -3])


@pytest.mark.parametrize("far", ["anna", "softmax"])
def test_greedy_generation_is_that_of_reading_everything_again(far):
    model = text_model(far)
    made = [byte for byte, _ in stream(model, b"abcab", 12, temperature=0)]
    text = list(b"abcab")
    for byte in made:
        assert model(torch.tensor([text]))[0, -1].argmax() == byte
        text.append(byte)


def test_generation_depends_on_its_seed_and_decodes_letters_of_several_bytes():
    model = text_model()
    first, again, other = (list(stream(model, b"a", 30, seed=seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    with torch.no_grad():  # a model that writes «ä» and nothing else
        model.head.weight.zero_()
        model.head.bias.fill_(-100.0)
        model.head.bias[0xC3] = 100.0
    shown = [letters for _, letters in stream(model, b"a", 2, temperature=0)]
    assert shown[0] == ""


@all_kinds
def test_weights_and_their_gradients_reach_every_parameter(far):
    model = text_model(far).train()
    model.far_form(0.5, model.hasher)
    model(some_text()).square().mean().backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []
    sketch = far_head(model).sketch.grad
    assert sketch is not None
    assert sketch[:, 97:100].abs().min() > 0  # every place of every letter that is there
    assert sketch[:, 100:].abs().max() == 0


def test_all_kinds_have_as_many_parameters_but_for_the_two_of_softmax():
    sizes = {far: sum(p.numel() for p in text_model(far).parameters()) for far in FAR}
    assert sizes["anna"] == sizes["latest_match"] == sizes["window"] == sizes["softmax"] - 2


def test_bad_input_is_refused():
    model = text_model()
    with pytest.raises(InputError, match="int64 of shape"):
        model(torch.zeros(3))
    with pytest.raises(InputError, match="at least one byte"):
        stream(model, b"", 3)
    with pytest.raises(InputError, match="in training"):
        stream(model.train(), b"a", 3)
    with pytest.raises(InputError, match="an even width"):
        TextConfig(dim=100, heads=4 * 3)
    with pytest.raises(InputError, match="far_layer"):
        TextConfig(layers=2, far_layer=2)
