"""The recipes behind the figures, by name."""

from collections.abc import Callable
from typing import Any

from annattn.attention import BasedConfig, PerformerConfig
from annattn.experiments.recipe import Recipe, Stage
from annattn.nn import (
    AnnaConfig,
    AttentionConfig,
    ExpectedCollisionConfig,
    LatestMatchConfig,
    LowRankConfig,
    SampledCollisionConfig,
    SampledLatestConfig,
    SoftmaxConfig,
    TransformerConfig,
)
from annattn.tasks import AssociativeRecall, InductionHeads, KHop, Match2, Task

__all__ = ["RECIPES", "STATES", "recall_state_recipe", "wide_then_noisy"]


_MATCH2: dict[str, Any] = {"n": 32, "modulus": 37}
_INDUCTION: dict[str, Any] = {"n": 100, "letters": 4}
# The paper does not say how positions enter the model. Here they enter in the same way in both ways of training.
_LATEST_AFTER_PREVIOUS: dict[str, Any] = {"positions": "none", "rotary": (True, False), "recency": (0.0, 0.5)}
_K_HOP: dict[str, Any] = {"n": 100, "letters": 4, "hops": 4}


def _model(task: Task, attention: tuple[AttentionConfig, ...], **options: Any) -> TransformerConfig:
    """A model with the task's vocabularies and length."""
    sizes: dict[str, Any] = {"length": task.n, "dim": 64} | options
    return TransformerConfig(task.input_vocab, task.target_vocab, attention=attention, **sizes)


def _match2_paper(beta: float, dataset: int | None = None) -> Recipe:
    attention = (SoftmaxConfig(beta=beta),)
    return Recipe(
        task="match2",
        task_options=_MATCH2,
        model=_model(Match2(**_MATCH2), attention, is_causal=False, positions="none"),
        stages=(Stage(20_000, attention),),
        rate=1e-2,
        dataset=dataset,
    )


def _match2_direct() -> Recipe:
    def sampled(tables: int, hashes: int) -> tuple[AttentionConfig, ...]:
        return (SampledCollisionConfig("cross_polytope", tables, hashes),)

    return Recipe(
        task="match2",
        task_options=_MATCH2,
        model=_model(Match2(**_MATCH2), (AnnaConfig("cross_polytope", 4, 3),), is_causal=False, positions="none"),
        # Wide collision probabilities come first, because their gradient reaches pairs at right angles. The last stage
        # has fewer tables than the finished model, so that the model has a margin.
        stages=(
            Stage(800, (ExpectedCollisionConfig("hyperplane", 4),)),
            Stage(600, sampled(4, 1), (0.0, 1.0)),
            Stage(1000, sampled(4, 2)),
            Stage(1400, sampled(2, 3)),
        ),
        rate=3e-3,
    )


def _induction_paper(beta: float) -> Recipe:
    surrogate, dropped = SoftmaxConfig(beta=beta), SoftmaxConfig(beta=beta, dropout=0.2)
    return Recipe(
        task="induction_heads",
        task_options=_INDUCTION,
        model=_model(InductionHeads(**_INDUCTION), (surrogate,) * 2, dim=128, **_LATEST_AFTER_PREVIOUS),
        # Dropout makes the weights about as noisy as the counts of a few tables; without it hashing ruins the model.
        stages=(Stage(1500, (dropped,) * 2, n=50), Stage(3000, (dropped,) * 2)),
        rate=3e-3,
    )


def _induction_direct(*, latest: bool = False, one_head: bool = False) -> Recipe:
    tables = (32, 4)
    task: dict[str, Any] = _INDUCTION | ({"asked_from": 1} if one_head else {})
    last = SampledLatestConfig if latest else SampledCollisionConfig

    def sampled(first: int, second: type[SampledCollisionConfig | SampledLatestConfig]) -> tuple[AttentionConfig, ...]:
        return SampledCollisionConfig("hyperplane", tables[0], first), second("hyperplane", tables[1], 8)

    hashed = AnnaConfig("hyperplane", tables[0], 8), AnnaConfig("hyperplane", tables[1], 8)
    if latest:
        hashed = hashed[0], LatestMatchConfig("hyperplane", tables[1], 8)
    return Recipe(
        task="induction_heads",
        task_options=task,
        # Two heads of 32: in layer 2 one looks for the match, the other for the number of hops at position 0. One head
        # is enough where training always asks for one hop.
        model=_model(InductionHeads(**task), hashed, heads=1 if one_head else 2, **_LATEST_AFTER_PREVIOUS),
        # Short words and averages first. Then noise, which rewards near-certain collisions.
        stages=(
            Stage(200, sampled(6, SampledCollisionConfig), (0.0, 0.0), n=50),
            Stage(400, sampled(6, SampledCollisionConfig), (0.0, 0.6), n=50),
            Stage(400, sampled(8, last), (0.6, 0.95)),
            Stage(400, sampled(8, last), (0.95, 0.95)),
        ),
    )


def _k_hop_direct() -> Recipe:
    hashes = (8, 8, 10, 10)
    wide = tuple(ExpectedCollisionConfig("hyperplane", z) for z in (6, 8, 8, 8))
    sampled = tuple(SampledCollisionConfig("hyperplane", 32, z) for z in hashes)
    hashed = tuple(AnnaConfig("hyperplane", 64, z) for z in hashes)
    # Layer 1 finds the letter before, layer 2 the latest match. Layers 3 and 4 go to positions, so they double hops.
    places: dict[str, Any] = {
        "positions": "prime",
        "rotary": (True, False, False, False),
        "recency": (0.0, 0.5, 0.0, 0.0),
    }
    return Recipe(
        task="k_hop",
        task_options=_K_HOP,
        model=_model(KHop(**_K_HOP), hashed, heads=2, **places),
        stages=(
            Stage(1800, wide, n=50),
            Stage(250, wide),
            Stage(300, sampled, (0.0, 0.6)),
            Stage(400, sampled, (0.6, 0.95)),
            Stage(500, sampled, (0.95, 0.95)),
        ),
        rate=2e-3,
    )


def _k_hop_16() -> Recipe:
    options: dict[str, Any] = _K_HOP | {"hops": 16}
    hashes = (8, 8, 16, 16, 16, 16)

    def expected(layers: int) -> tuple[AttentionConfig, ...]:
        return tuple(ExpectedCollisionConfig("hyperplane", z) for z in (6, *hashes[1:layers]))

    sampled = tuple(SampledCollisionConfig("hyperplane", 32, z) for z in hashes)
    hashed = tuple(AnnaConfig("hyperplane", 64, z) for z in hashes)
    # Layer 1 finds the letter before, layer 2 the latest match. Each further layer goes to positions and doubles hops,
    # which is learnt one doubling at a time, and the next one starts from the one before.
    places: dict[str, Any] = {
        "positions": "prime",
        "rotary": (True, *(False,) * 5),
        "recency": (0.0, 0.5, *(0.0,) * 4),
    }
    far = {"favour_many": True}
    return Recipe(
        task="k_hop",
        task_options=options,
        model=_model(KHop(**options), hashed, dim=128, heads=4, **places),
        stages=(
            Stage(250, expected(2), n=40, task_options={"asked_to": 1}),
            Stage(350, expected(3), n=40, task_options={"asked_to": 2}),
            Stage(700, expected(4), n=48, task_options={"asked_to": 4}, copies=True),
            Stage(1300, expected(5), n=64, task_options={"asked_to": 8}, copies=True),
            Stage(1000, expected(6), copies=True),
            Stage(600, expected(6), task_options=far),
            Stage(300, sampled, (0.0, 0.6), task_options=far),
            Stage(400, sampled, (0.6, 0.95), task_options=far),
            Stage(900, sampled, (0.95, 0.95), task_options=far),
        ),
        decay_from=4200,  # the noise comes with the full rate, or the last layers never learn to bear it
    )


_RECALL: dict[str, Any] = {"n": 256, "pairs": 64, "keys": 4096, "values": 64}


def _recall(
    stages: tuple[Stage, ...],
    attention: tuple[AttentionConfig, ...],
    options: dict[str, Any] = _RECALL,
    **model: Any,
) -> Recipe:
    places: dict[str, Any] = {"positions": "none", "rotary": (True, False), "identity_init": True}
    return Recipe(
        task="associative_recall",
        task_options=options,
        model=_model(AssociativeRecall(**options), attention, **places, **model),
        stages=stages,
        batch=16,
        rate=3e-3,
    )


def _recall_anna() -> Recipe:
    def sampled(hashes: int) -> tuple[AttentionConfig, ...]:
        return SampledCollisionConfig("hyperplane", 16, hashes), SampledCollisionConfig("hyperplane", 8, hashes)

    # With few hashes, unrelated keys collide by chance and are pushed apart. With more, only equal ones still collide.
    stages = (
        Stage(800, (ExpectedCollisionConfig("hyperplane", 8),) * 2),
        Stage(600, sampled(8), (0.0, 0.9)),
        Stage(600, sampled(12), (0.9, 0.9)),
        Stage(500, sampled(16), (0.9, 0.9)),
    )
    # At 16,384 tokens there are 64 times as many keys to meet by chance as in training, which takes even more hashes.
    return _recall(stages, (AnnaConfig("hyperplane", 32, 28), AnnaConfig("hyperplane", 16, 28)), length=16_384)


def _recall_like(mechanism: AttentionConfig) -> Recipe:
    return _recall((Stage(_recall_anna().steps, (mechanism,) * 2),), (mechanism,) * 2, length=16_384)


def wide_then_noisy(
    steps: int, average: tuple[AttentionConfig, ...], sampled: Callable[[int], tuple[AttentionConfig, ...]], hashes: int
) -> tuple[Stage, ...]:
    """Average collisions first, whose gradient reaches pairs at right angles; then more and more of their noise.

    Args:
        steps: a half of them for the average, and two quarters for samples.
        average: mechanisms of all layers for the first half.
        sampled: those for the rest, given the number of hashes: 6, and then `hashes`.
        hashes: the number that the model runs with.

    >>> layers = (ExpectedCollisionConfig("hyperplane", 6),)
    >>> [stage.steps for stage in wide_then_noisy(10, layers, lambda z: (SampledCollisionConfig(hashes=z),), 8)]
    [5, 2, 3]
    """
    first, second = steps // 2, steps // 4
    return (
        Stage(first, average),
        Stage(second, sampled(6), (0.0, 0.9)),
        Stage(steps - first - second, sampled(hashes), (0.9, 1.0)),
    )


STATES: dict[str, AttentionConfig] = {
    "ANNA": AnnaConfig("hyperplane", 16, 8),
    "softmax": SoftmaxConfig(beta=16.0),
    **{f"Performer, {count} features": PerformerConfig(count) for count in (16, 64, 256)},
    **{f"Based, {1 + dim + dim**2:,} features": BasedConfig(dim) for dim in (8, 32)},
}
"""What remembers the pairs in `recall_state_recipe`, by its name in the table. Features are those of one head."""


def recall_state_recipe(pairs: int, second: AttentionConfig) -> Recipe:
    """Associative recall of this many pairs, four tokens per pair, with this mechanism in layer 2.

    Layer 1, which takes a value to its key, is softmax for every mechanism. So they differ only in what they keep of
    the pairs. ANNA is trained with average collisions first, then with more and more of their noise.

    >>> recall_state_recipe(8, BasedConfig(8)).make_task().n
    32
    """
    near, steps = SoftmaxConfig(beta=16.0), 1500
    stages: tuple[Stage, ...] = (Stage(steps, (near, second)),)
    if isinstance(second, AnnaConfig):
        average, tables = ExpectedCollisionConfig("hyperplane", 6), second.tables
        stages = wide_then_noisy(
            steps,
            (near, average),
            lambda hashes: (near, SampledCollisionConfig("hyperplane", tables, hashes)),
            second.hashes,
        )
    options: dict[str, Any] = {"n": 4 * pairs, "pairs": pairs, "keys": 128, "values": 32}
    return _recall(stages, (near, second), options, heads=2)


RECIPES: dict[str, Recipe] = {
    "match2_paper": _match2_paper(0.1),
    "match2_paper_dataset": _match2_paper(0.1, dataset=10_000),
    "match2_paper_beta_1": _match2_paper(1.0),
    "match2_paper_beta_10": _match2_paper(10.0),
    "match2_direct": _match2_direct(),
    "induction_paper": _induction_paper(1.0),
    "induction_paper_beta_0.1": _induction_paper(0.1),
    "induction_paper_beta_10": _induction_paper(10.0),
    "induction_direct": _induction_direct(),
    "induction_one_head": _induction_direct(one_head=True),
    "induction_latest": _induction_direct(latest=True),
    "k_hop_direct": _k_hop_direct(),
    "k_hop_16_direct": _k_hop_16(),
    "recall_anna": _recall_anna(),
    "recall_softmax": _recall_like(SoftmaxConfig(beta=16.0)),
    "recall_low_rank": _recall_like(LowRankConfig()),
}
"""Every recipe by the name that `annattn train` uses."""
