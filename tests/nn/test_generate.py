"""Tokens that come one by one are those of the full forward pass."""

import pytest
import torch

from annattn.attention import (
    MECHANISMS,
    BasedConfig,
    CollisionSoftmaxConfig,
    ExpectedLatestConfig,
    HyperConfig,
    PerformerConfig,
    PolySketchConfig,
    ReformerRoundsConfig,
    RoutingConfig,
    ScatterbrainConfig,
    SlidingWindowConfig,
)
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
    WindowConfig,
)
from annattn.nn.decoding import CONSTANT_COST, GrowingCache, choose_token

ATTENTION = [
    AnnaConfig(tables=4, hashes=3),
    LatestMatchConfig(tables=4, hashes=3),
    WindowConfig(tables=4, hashes=3, window=5),
    WindowConfig(tables=4, hashes=3, window=5, combine="joined", gate=1.0, shift=1),
    SoftmaxConfig(beta=4.0),
    ExactMatchConfig(),
    LowRankConfig(),
    ExpectedCollisionConfig(hashes=3),
    SampledCollisionConfig(tables=4, hashes=3, noise=0.5),
    SampledLatestConfig(tables=4, hashes=3),
    ExpectedLatestConfig(hashes=3),
    ReformerRoundsConfig(tables=2, hashes=2, chunk=2),
    HyperConfig(hashes=3, block=2, columns=3, exact_below=4),
    RoutingConfig(clusters=3, window=4),
    PerformerConfig(count=8),
    PolySketchConfig(rank=4),
    BasedConfig(feature_dim=4),
    ScatterbrainConfig(count=8, window=4),
    SlidingWindowConfig(window=4),
    CollisionSoftmaxConfig(),
]


def test_every_causal_mechanism_is_here():
    causal = {mechanism.config for mechanism in MECHANISMS.values() if mechanism.config.causal != "never"}
    assert {type(one) for one in ATTENTION} == causal


every_mechanism = pytest.mark.parametrize("mechanism", ATTENTION, ids=lambda one: type(one).__name__)
START = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])


def small_model(mechanism, **options) -> Transformer:
    config = TransformerConfig(
        input_vocab=9, target_vocab=9, length=64, dim=16, heads=2, attention=(mechanism,) * 2, **options
    )
    return Transformer(config, seed=1).double().eval()


@every_mechanism
@pytest.mark.parametrize("options", [{"positions": "prime"}, {"rotary": (True, False)}, {"recency": (0.5, 0)}], ids=str)
def test_logits_through_caches_equal_the_full_forward_pass(mechanism, options):
    model = small_model(mechanism, **options)
    tokens = torch.randint(9, (2, 15), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(tokens)
        caches, parts, start = model.caches(batch=2), [], 0
        for size in (7, 1, 5, 1, 1):
            parts.append(model(tokens[:, start : start + size], first_position=start, caches=caches))
            start += size
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mechanism", ATTENTION[:5], ids=lambda one: type(one).__name__)
def test_greedy_tokens_equal_those_of_the_full_forward_pass(mechanism):
    model = small_model(mechanism)
    got = torch.stack(list(model.generate(START, 10, temperature=0)), 1)
    tokens = START
    with torch.no_grad():
        for _ in range(10):
            tokens = torch.cat([tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(got, tokens[:, 5:])


def test_a_seed_decides_the_sample_and_top_k_its_range():
    model = small_model(AnnaConfig(tables=4, hashes=3))
    draws = [torch.stack(list(model.generate(START, 30, 2.0, seed=seed)), 1) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    greedy = torch.stack(list(model.generate(START, 10, temperature=0)), 1)
    assert torch.equal(torch.stack(list(model.generate(START, 10, 5.0, top_k=1)), 1), greedy)


def test_samples_follow_the_softmax_of_the_logits():
    logits = torch.randn(9, generator=torch.Generator().manual_seed(0))
    drawn = choose_token(logits.expand(50_000, 9), 0.7, 4, torch.Generator().manual_seed(1))
    kept = logits.masked_fill(logits < logits.topk(4).values[-1], -torch.inf) / 0.7
    shares = torch.bincount(drawn, minlength=9) / len(drawn)
    torch.testing.assert_close(shares, kept.softmax(-1), rtol=0, atol=0.01)


def test_tokens_stream_and_what_a_layer_holds_does_not_grow():
    model = small_model(AnnaConfig(tables=4, hashes=3), positions="none")
    stream = model.generate(START, 10**9)
    assert [next(stream).shape for _ in range(3)] == [(2,)] * 3
    for mechanism in ATTENTION:
        caches = small_model(mechanism).caches()
        assert all(isinstance(cache, GrowingCache) != isinstance(mechanism, CONSTANT_COST) for cache in caches)


def test_errors_come_before_the_first_token():
    model = small_model(AnnaConfig())
    for bad, message in [
        ((START, 61), "at most 60: the model has 64 positions"),
        ((START, -1), "n: got"),
        ((START, 3, -1.0), "temperature"),
        ((START, 3, 1.0, 0), "top_k"),
        ((START[:, :0], 3), "at least one token"),
    ]:
        with pytest.raises(InputError, match=message):
            model.generate(*bad)
    config = TransformerConfig(input_vocab=9, target_vocab=2, length=64, dim=16)
    with pytest.raises(InputError, match="the 9 input tokens"):
        Transformer(config).generate(START, 3)
    config = TransformerConfig(input_vocab=9, target_vocab=9, length=64, dim=16, is_causal=False)
    with pytest.raises(InputError, match="a causal model"):
        Transformer(config).generate(START, 3)
    with pytest.raises(InputError, match="caches"):
        model(START, caches=model.caches()[:1])
