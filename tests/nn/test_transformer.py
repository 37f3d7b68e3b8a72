"""The transformer against its parts written out, and swapping mechanisms under the same weights."""

import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

import annattn as aa
from annattn.attention import MECHANISMS, LinformerConfig
from annattn.attention.mechanism import angular
from annattn.errors import InputError
from annattn.nn import (
    AnnaConfig,
    ExactMatchConfig,
    ExpectedCollisionConfig,
    LatestMatchConfig,
    LowRankConfig,
    SampledCollisionConfig,
    SampledLatestConfig,
    SoftmaxConfig,
    Transformer,
    TransformerConfig,
)
from annattn.nn.checkpoint import read_attention, write_attention
from annattn.nn.transformer import apply_rotary, prime_positions

EVERY = pytest.mark.parametrize("kind", [mechanism.config for mechanism in MECHANISMS.values()], ids=MECHANISMS)


def model_of(*attention, **options) -> Transformer:
    sizes: dict[str, Any] = {"input_vocab": 11, "target_vocab": 3, "length": 20, "dim": 16, "heads": 2} | options
    return Transformer(TransformerConfig(attention=attention, **sizes), seed=3)


def tokens(batch=2, n=9, seed=0) -> torch.Tensor:
    return torch.randint(11, (batch, n), generator=torch.Generator().manual_seed(seed))


def written_out(model: Transformer, x: torch.Tensor, attend) -> torch.Tensor:
    """The forward pass of one layer by the formulas, one head at a time."""
    w = dict(model.named_parameters())

    def linear(h, name):
        return h @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(h, name):
        centred = h - h.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    h = w["tokens.weight"][x] + w["positions.weight"][: x.shape[1]]
    split = linear(norm(h, "blocks.0.attention_norm"), "blocks.0.query_key_value")
    query, key, value = split.split(16, dim=-1)
    heads = [attend(*(part[:, None, :, at : at + 8] for part in (query, key, value)))[:, 0] for at in (0, 8)]
    h = h + linear(torch.cat(heads, dim=-1), "blocks.0.out")
    inner = linear(norm(h, "blocks.0.mlp_norm"), "blocks.0.mlp.0")
    inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    h = h + linear(inner, "blocks.0.mlp.2")
    return linear(norm(h, "norm"), "head")


def test_one_layer_written_out():
    model, x = model_of(SoftmaxConfig(beta=3.0)), tokens()
    expected = written_out(model, x, lambda q, k, v: aa.softmax_attention(q, k, v, beta=3.0, is_causal=True))
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


def test_position_coded_values_written_out():
    model, x = model_of(SoftmaxConfig(beta=3.0), recency=(0.7,)), tokens()

    def attend(query, key, value):
        grown = value * torch.tensor([2.0 ** (0.7 * j) for j in range(9)])[:, None]
        read = aa.softmax_attention(query, key, grown, beta=3.0, is_causal=True)
        return read / read.norm(dim=-1, keepdim=True) * math.sqrt(8)

    torch.testing.assert_close(model(x), written_out(model, x, attend), rtol=1e-4, atol=1e-4)


def test_the_latest_match_dominates_with_position_coded_values():
    """Two matching keys with opposite values: the sign of what is read is the later one's."""
    model = model_of(ExactMatchConfig(), recency=(1.0,))
    block: Any = model.blocks[0]
    query = key = torch.ones(1, 1, 6, 4)
    value = torch.tensor([-1.0, -1.0, 1.0, -1.0, 1.0, 1.0])[None, None, :, None].expand(1, 1, 6, 4)
    grown = value * torch.exp2(torch.arange(6.0))[:, None]
    read = block.attend(query, key, grown, True, None)
    assert torch.equal(read[0, 0, :, 0].sign(), value[0, 0, :, 0])


@EVERY
def test_every_mechanism_runs_trains_and_keeps_causality(kind):
    model = model_of(kind(), kind(), is_causal=kind.causal != "never")
    x = tokens()
    out = model(x)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    if kind.causal == "never":
        with pytest.raises(InputError, match=r"attention of layer 0: .* expected is_causal=False"):
            model_of(kind())
        return
    changed = x.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 11
    torch.testing.assert_close(model(changed)[:, :6], out[:, :6], rtol=1e-5, atol=1e-5)


@EVERY
def test_masked_tokens_change_no_other_output(kind):
    model, x = model_of(kind(), is_causal=kind.causal != "never"), tokens()
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, 3] = False
    if not kind.takes_mask:
        with pytest.raises(InputError, match="key_mask in layer 0: got a mask, expected none"):
            model(x, key_mask=mask)
        return
    changed = x.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 11
    others = [i for i in range(9) if i != 3]
    before, after = model(x, key_mask=mask)[:, others], model(changed, key_mask=mask)[:, others]
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6)


@EVERY
def test_descriptions_survive_json(kind):
    assert read_attention(write_attention(kind())) == kind()


def test_with_attention_shares_the_weights_and_leaves_the_model_as_it_was():
    model, x = model_of(SoftmaxConfig(), SoftmaxConfig()), tokens()
    before = model(x)
    hashed = model.with_attention(AnnaConfig(tables=3, hashes=2), ExpectedCollisionConfig())
    assert hashed.config.attention == (AnnaConfig(tables=3, hashes=2), ExpectedCollisionConfig())
    assert [id(p) for p in hashed.parameters()] == [id(p) for p in model.parameters()]
    assert not torch.allclose(hashed(x), before)
    assert torch.equal(model(x), before)
    assert torch.equal(hashed.with_attention(SoftmaxConfig())(x), before)
    assert hashed.state_dict().keys() == model.state_dict().keys()


def test_draws_differ_by_seed_and_by_layer_and_repeat():
    model, x = model_of(AnnaConfig(hashes=4), AnnaConfig(hashes=4)), tokens()
    first = model.draw(1)(x)
    assert not torch.equal(model.draw(2)(x), first)
    assert torch.equal(model.draw(1)(x), first)
    blocks: Any = model.blocks
    one, two = (block.attend for block in blocks)
    q, k, v = torch.randn(3, 1, 1, 20, 8, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(one(q, k, v, False, None), two(q, k, v, False, None))


@pytest.mark.slow
def test_dropout_keeps_a_weight_whole_or_drops_it_and_is_drawn_by_torchs_generator():
    q, k = torch.randn(2, 1, 1, 12, 8, generator=torch.Generator().manual_seed(0))
    v = torch.eye(12)[None, None]
    full = SoftmaxConfig(beta=2.0).bind(8, 0)(q, k, v, True, None)
    dropped: Any = SoftmaxConfig(beta=2.0, dropout=0.25).bind(8, 0)
    torch.manual_seed(5)
    draws = torch.stack([dropped(q, k, v, True, None) for _ in range(400)])
    zero = draws == 0
    torch.testing.assert_close(draws, torch.where(zero, 0, full / 0.75))
    seen = torch.ones(12, 12).tril().bool()
    # 400 draws of 78 weights: the standard deviation of the share is 0.0025.
    assert zero[..., seen].double().mean().item() == pytest.approx(0.25, abs=0.01)
    assert not torch.equal(draws[0], draws[1])
    torch.manual_seed(5)
    assert torch.equal(dropped(q, k, v, True, None), draws[0])
    assert torch.equal(dropped.eval()(q, k, v, True, None), full)


@pytest.mark.parametrize("beta", [-5.0, -0.1, 0.0, 0.1])
@pytest.mark.parametrize("is_causal", [False, True])
def test_softmax_is_itself_at_every_temperature(beta, is_causal):
    q, k, v = torch.randn(3, 1, 1, 9, 4, generator=torch.Generator().manual_seed(0))
    scores = beta * torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).mT
    seen = torch.ones(9, 9).tril() if is_causal else torch.ones(9, 9)
    weights = scores.exp() * seen
    expected = weights / weights.sum(-1, keepdim=True) @ v
    torch.testing.assert_close(aa.softmax_attention(q, k, v, beta=beta, is_causal=is_causal), expected)


def test_a_drawn_model_survives_pickling():
    model, x = model_of(AnnaConfig(hashes=4), SoftmaxConfig()), tokens()
    drawn = model.draw(7)(x)
    copied = pickle.loads(pickle.dumps(model))
    assert torch.equal(copied(x), drawn)
    assert not torch.equal(copied.draw(8)(x), drawn)
    assert torch.equal(model(x), drawn)


def test_expected_collisions_are_the_limit_of_many_tables():
    model, x = model_of(ExpectedCollisionConfig(hashes=3)), tokens()
    hashed = model.with_attention(AnnaConfig(tables=4000, hashes=3))
    torch.testing.assert_close(hashed(x), model(x), rtol=0, atol=0.1)
    few = model.with_attention(AnnaConfig(tables=2, hashes=3))
    assert (few(x) - model(x)).abs().max() > 0.2


@pytest.mark.parametrize(
    ("sampled", "hashed"),
    [
        (SampledCollisionConfig("hyperplane", 4, 3), AnnaConfig("hyperplane", 4, 3)),
        (SampledLatestConfig("hyperplane", 4, 3), LatestMatchConfig("hyperplane", 4, 3)),
    ],
)
def test_what_is_trained_at_noise_1_is_what_runs(sampled, hashed):
    model, x = model_of(sampled, sampled), tokens()
    torch.testing.assert_close(model(x), model.with_attention(hashed)(x), rtol=0, atol=1e-5)
    smooth = model.with_attention(replace(sampled, noise=0.0))
    assert (smooth(x) - model(x)).abs().max() > 0.01


def test_the_low_rank_layer_is_linear_attention():
    q, k, v = torch.randn(3, 1, 1, 7, 4, generator=torch.Generator().manual_seed(1))
    out = LowRankConfig().bind(4, 0)(q, k, v, True, None)
    features = [torch.nn.functional.elu(x) + 1 for x in (q, k)]
    weights = (features[0] @ features[1].mT).tril()
    torch.testing.assert_close(out, weights / weights.sum(-1, keepdim=True) @ v)


def test_the_seed_decides_the_weights_and_no_global_state_moves():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two, other = model_of(SoftmaxConfig()), model_of(SoftmaxConfig()), None
    assert torch.equal(torch.rand(1), expected)
    other = Transformer(one.config, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)


def test_a_shift_of_wave_positions_is_one_rotation():
    """e(i + 1) = R e(i) for every i: a linear map finds the previous position, exactly and everywhere."""
    codes = prime_positions(torch.arange(4000), 64).double()
    solved = torch.linalg.lstsq(codes[:200], codes[1:201]).solution
    torch.testing.assert_close(codes[:-1] @ solved, codes[1:], rtol=0, atol=1e-4)
    cosines = codes @ codes.T / codes[0].square().sum()
    assert cosines.fill_diagonal_(0).abs().max() < 0.75


def test_alike_layers_meet_equal_content_and_pass_it_on_at_the_start():
    config = TransformerConfig(10, 2, length=8, dim=16, attention=(SoftmaxConfig(),) * 2, rotary=(True, False))
    plain, alike = Transformer(config, seed=0), Transformer(replace(config, identity_init=True), seed=0)
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    blocks: Any = list(zip(alike.blocks, plain.blocks, strict=True))
    for layer, (mine, other) in enumerate(blocks):
        query, key, value = mine.query_key_value.weight.detach().split(16)
        torch.testing.assert_close(x @ value.T @ mine.out.weight.T.detach(), x)
        if layer:
            torch.testing.assert_close(x @ query.T, x @ key.T)
        else:
            assert torch.equal(query, other.query_key_value.weight[:16])


def test_rotary_layers_see_distances_only():
    q, k = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    near, far = (apply_rotary(q, torch.tensor([at])) @ apply_rotary(k, torch.tensor([at - 3])).mT for at in (5, 4000))
    torch.testing.assert_close(near, far, rtol=0, atol=1e-3)
    assert (apply_rotary(q, torch.tensor([5])) @ apply_rotary(k, torch.tensor([4])).mT - near).abs() > 0.1
    model = model_of(SoftmaxConfig(beta=5.0), positions="none", rotary=(True,))
    torch.testing.assert_close(model(tokens(), first_position=1000), model(tokens()), rtol=0, atol=1e-3)
    moved = model_of(SoftmaxConfig(beta=5.0), positions="prime")
    assert (moved(tokens(), first_position=1000) - moved(tokens())).abs().max() > 0.1


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"dim": 0}, "dim"),
        ({"heads": 3}, "dim"),
        ({"length": 2.5}, "length"),
        ({"positions": "rotary"}, "positions"),
        ({"recency": (1.0, 1.0)}, "recency"),
        ({"recency": (100.0,)}, "recency"),
        ({"recency": (-1.0,)}, "recency"),
        ({"rotary": (True, False)}, "rotary"),
        ({"dim": 10, "rotary": (True,)}, "even"),
        ({"attention": ()}, "attention"),
        ({"attention": SoftmaxConfig()}, "attention: got SoftmaxConfig"),
        ({"attention": ("softmax",)}, "attention: got 'softmax'"),
        ({"attention": (SoftmaxConfig,)}, "attention: got <class"),
        ({"dim": True}, "dim"),
        ({"dim": 10**30}, "dim"),
        ({"is_causal": "no"}, "is_causal"),
        ({"rotary": None}, "rotary"),
        ({"recency": 1.0}, "recency"),
        ({"attention": (LatestMatchConfig(),), "is_causal": False}, "attention"),
    ],
)
def test_impossible_configs_are_refused(options, what):
    sizes: dict[str, Any] = {"input_vocab": 11, "target_vocab": 3, "length": 20, "dim": 16, "heads": 2}
    with pytest.raises(InputError, match=what):
        TransformerConfig(**(sizes | {"attention": (SoftmaxConfig(),)} | options))


def test_impossible_calls_are_refused():
    model = model_of(SoftmaxConfig(), SoftmaxConfig())
    with pytest.raises(InputError, match="learned"):
        model(torch.zeros(1, 21, dtype=torch.int64))
    with pytest.raises(InputError, match="tokens"):
        model(torch.zeros(5, dtype=torch.int64))
    with pytest.raises(InputError, match=r"tokens: got torch\.float32"):
        model(torch.zeros(1, 5))
    with pytest.raises(InputError, match="tokens: got list"):
        model([[1, 2]])
    for wrong in (-1, 11):
        with pytest.raises(InputError, match=f"token: got {wrong}, expected 0 to 10"):
            model(torch.tensor([[0, wrong]]))
    with pytest.raises(InputError, match="first_position"):
        model(tokens(), first_position=-1)
    with pytest.raises(InputError, match="mechanisms"):
        model.with_attention(SoftmaxConfig(), SoftmaxConfig(), SoftmaxConfig())
    with pytest.raises(InputError, match="attention: got 'anna'"):
        model.with_attention("anna")  # type: ignore[arg-type]
    for seed in (-1, 1.5, "a", True, 2**70):
        for call in (model.draw, lambda seed: AnnaConfig(seed=seed), lambda seed: Transformer(model.config, seed=seed)):
            with pytest.raises(InputError, match="seed: got"):
                call(seed)  # type: ignore[arg-type]
    for options in ({"beta": "x"}, {"beta": None}, {"beta": math.nan}, {"dropout": "a"}, {"dropout": 1.0}):
        with pytest.raises(InputError, match=f"{next(iter(options))}: got"):
            SoftmaxConfig(**options)  # type: ignore[arg-type]
    for options in ({"tables": 0}, {"hashes": True}, {"tables": 2.5}):
        with pytest.raises(InputError, match=f"{next(iter(options))}: got"):
            AnnaConfig(**options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="family"):
        AnnaConfig(family="euclidean")
    with pytest.raises(InputError, match="gradient"):
        AnnaConfig(gradient="all")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="mechanism"):
        read_attention({"mechanism": "hash"})
    with pytest.raises(InputError, match="options"):
        read_attention({"mechanism": "softmax", "gamma": 1})
    with pytest.raises(InputError, match="family"):
        angular("sphere", 3)


def test_a_mechanism_with_parameters_keeps_them_under_its_own_description():
    mechanism = LinformerConfig(length=8, mixtures=2)
    config = TransformerConfig(input_vocab=4, target_vocab=2, length=8, dim=8, attention=(mechanism,), is_causal=False)
    model = Transformer(config)
    same, other = model.with_attention(mechanism), model.with_attention(LinformerConfig(length=8, mixtures=3))
    name = "blocks.0.attend.key_map"
    assert dict(same.named_parameters())[name] is dict(model.named_parameters())[name]
    assert dict(other.named_parameters())[name].shape == (3, 8)


def test_a_pooled_model_reads_rows_of_about_the_same_length_together():
    config = TransformerConfig(
        11, 3, 9, 16, 2, (SoftmaxConfig(),), is_causal=False, pooled=True, padding=0, positions="prime"
    )
    model, lengths = Transformer(config), [9, 2, 7, 1, 0, 3, 9, 5, 2, 8, 1]
    rows = torch.zeros(len(lengths), 9, dtype=torch.int64)
    for row, n in zip(rows, lengths, strict=True):
        row[:n] = torch.randint(1, 11, (n,))
    together = model(rows)
    assert together.shape == (11, 9, 3)
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda block, inputs: seen.append(inputs[0].shape[1]))
    torch.testing.assert_close(model(rows), together, rtol=0, atol=0)
    assert seen == [2, 7, 9]  # of the lengths 0 1 1 2, 2 3 5 7 and 8 9 9, four at a time
    for row, n, logits in zip(rows, lengths, together, strict=True):
        torch.testing.assert_close(model(row[None, : max(n, 1)])[0, 0], logits[0], rtol=1e-5, atol=1e-6)


def test_a_pooled_model_gives_padded_sequences_the_logits_they_have_alone():
    config = TransformerConfig(
        11, 3, 9, 16, 2, (SoftmaxConfig(),) * 2, is_causal=False, mlp=24, pooled=True, padding=0, positions="prime"
    )
    model = Transformer(config)
    assert model.blocks[0].mlp[0].out_features == 24  # type: ignore[union-attr, index]
    x = torch.tensor([[3, 4, 5, 6, 7, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8, 9]])
    out = model(x)
    assert out.shape == (2, 9, 3)
    assert torch.equal(out, out[:, :1].expand(-1, 9, -1))
    torch.testing.assert_close(out[:1, 0], model(x[:1, :5])[:, 0])
    with pytest.raises(InputError, match="pooled: got True in a causal model"):
        TransformerConfig(11, 3, 9, pooled=True)
