"""Who is compared: a mechanism per contender, in sizes that fit the length, and how it is trained."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from annattn.attention import (
    AnnaConfig,
    AttentionConfig,
    BasedConfig,
    ExpectedCollisionConfig,
    HyperConfig,
    KdeformerConfig,
    LatestMatchConfig,
    LinformerConfig,
    PerformerConfig,
    PolySketchConfig,
    ReformerRoundsConfig,
    RoutingConfig,
    SampledCollisionConfig,
    SampledLatestConfig,
    ScatterbrainConfig,
    SlidingWindowConfig,
    SoftmaxConfig,
    WindowConfig,
)
from annattn.experiments.recipe import Stage
from annattn.experiments.recipes import wide_then_noisy

__all__ = ["CONTENDERS", "Contender", "Kind", "reach"]

Kind = Literal["reference", "anna", "low rank", "neighbours", "window", "part"]
Layers = tuple[AttentionConfig, ...]

_TABLES, _HASHES = 16, 8


def reach(n: int) -> int:
    """How many keys a query may look at one by one: 8 of up to 48 tokens, 16 of up to 256, and 64 beyond.

    >>> reach(32), reach(64), reach(2000)
    (8, 16, 64)
    """
    return 8 if n <= 48 else 16 if n <= 256 else 64


@dataclass(frozen=True)
class Contender:
    """A mechanism in the comparison.

    - title: its name in tables. kind: which side of the paper's division it is on; "part" is a contender with one of
      its parts left out.
    - make: (number of layers, n, reach) to the mechanisms it runs with.
    - train: (steps, number of layers, n) to how it is trained; by default as it runs.
    - choose: (number of layers, n) to mechanisms among which validation data choose after training; by default there is
      nothing to choose.

    >>> CONTENDERS["reformer"].layers(2, 64)[0].chunk
    4
    """

    title: str
    kind: Kind
    make: Callable[[int, int, int], Layers]
    train: Callable[[int, int, int], tuple[Stage, ...]] | None = None
    choose: Callable[[int, int], list[Layers]] | None = None

    def layers(self, layers: int, n: int, reads: int | None = None) -> Layers:
        """The mechanisms it runs with, in the sizes for n tokens or for queries that look at `reads` keys."""
        return self.make(layers, n, reads or reach(n))

    def stages(self, steps: int, layers: int, n: int) -> tuple[Stage, ...]:
        """How it is trained in this many steps."""
        if self.train is None:
            return (Stage(steps, self.layers(layers, n)),)
        return self.train(steps, layers, n)

    def choices(self, layers: int, n: int) -> list[Layers]:
        """Mechanisms to choose from on validation data."""
        return [self.layers(layers, n)] if self.choose is None else self.choose(layers, n)

    def missing(self, layers: int, n: int, *, is_causal: bool) -> str | None:
        """Why it cannot take part in a task; None if it can."""
        for one in self.layers(layers, n):
            if one.causal == "never" and is_causal:
                return "no causal form"
            if one.causal == "always" and not is_causal:
                return "causal only"
        return None


def _all(make: Callable[[int, int], AttentionConfig]) -> Callable[[int, int, int], Layers]:
    """The same mechanism in every layer, made for the length and the reach."""
    return lambda layers, n, reads: (make(n, reads),) * layers


def _anna(layers: int, n: int, reads: int) -> Layers:
    return (AnnaConfig("hyperplane", _TABLES, _HASHES),) * layers


def _surrogate(steps: int, layers: int, n: int) -> tuple[Stage, ...]:
    # Dropout makes weights about as noisy as the counts of a few tables.
    return (Stage(steps, (SoftmaxConfig(beta=1.0, dropout=0.1),) * layers),)


def _numbers_of_hashes(layers: int, n: int) -> list[Layers]:
    return [(AnnaConfig("hyperplane", _TABLES, z),) * layers for z in (1, 2, 4, 8)]


def _trained_directly(steps: int, layers: int, sampled: Callable[[int], Layers]) -> tuple[Stage, ...]:
    return wide_then_noisy(steps, (ExpectedCollisionConfig("hyperplane", 6),) * layers, sampled, _HASHES)


def _direct(steps: int, layers: int, n: int) -> tuple[Stage, ...]:
    return _trained_directly(
        steps, layers, lambda hashes: (SampledCollisionConfig("hyperplane", _TABLES, hashes),) * layers
    )


def _first_then_latest(layers: int, n: int, reads: int) -> Layers:
    """The first of several layers finds the token before, which is no question of recency."""
    latest = (LatestMatchConfig("hyperplane", _TABLES, _HASHES),) * max(1, layers - 1)
    return (AnnaConfig("hyperplane", _TABLES, _HASHES), *latest)[-layers:]


def _latest(steps: int, layers: int, n: int) -> tuple[Stage, ...]:
    def sampled(hashes: int) -> Layers:
        later = (SampledLatestConfig("hyperplane", _TABLES, hashes),) * (layers - 1)
        return SampledCollisionConfig("hyperplane", _TABLES, hashes), *later

    return _trained_directly(steps, layers, sampled)


def _hyper(columns: bool) -> Callable[[int, int, int], Layers]:
    return _all(lambda n, r: HyperConfig(hashes=4, block=r, columns=r if columns else 0, exact_below=r))


def _kdeformer(columns: bool) -> Callable[[int, int, int], Layers]:
    return _all(lambda n, r: KdeformerConfig(hashes=4, block=r, columns=r if columns else 0))


def _reformer(sorts: bool) -> Callable[[int, int, int], Layers]:
    return _all(lambda n, r: ReformerRoundsConfig(tables=2, hashes=3, chunk=r // 4, sorts=sorts))


def _window(n: int, reads: int) -> WindowConfig:
    return WindowConfig("hyperplane", _TABLES, _HASHES, window=reads // 2, combine="joined")


# Low-rank contenders get about four features per key that others read: 32 for 8, 64 for 16, and 256 for 64.
CONTENDERS: dict[str, Contender] = {
    "softmax": Contender("softmax", "reference", _all(lambda n, r: SoftmaxConfig(beta=16.0))),
    "anna_paper": Contender("ANNA, the paper's way", "anna", _anna, _surrogate, _numbers_of_hashes),
    "anna_direct": Contender("ANNA, trained directly", "anna", _anna, _direct),
    "latest_match": Contender("latest match", "anna", _first_then_latest, _latest),
    "window_anna": Contender("window + ANNA", "anna", _all(_window)),
    "performer": Contender("Performer", "low rank", _all(lambda n, r: PerformerConfig(count=4 * r))),
    "linformer": Contender("Linformer", "low rank", _all(lambda n, r: LinformerConfig(length=n, mixtures=r))),
    "polysketch": Contender(
        "PolySketchFormer", "low rank", _all(lambda n, r: PolySketchConfig(rank=round(2 * r**0.5)))
    ),
    "based": Contender("Based", "low rank", _all(lambda n, r: BasedConfig(feature_dim=round(2 * r**0.5)))),
    "scatterbrain": Contender(
        "Scatterbrain", "low rank", _all(lambda n, r: ScatterbrainConfig(count=2 * r, window=r // 2))
    ),
    "reformer": Contender("Reformer", "neighbours", _reformer(sorts=True)),
    "hyper": Contender("HyperAttention", "neighbours", _hyper(columns=True)),
    "kdeformer": Contender("KDEformer", "neighbours", _kdeformer(columns=True)),
    "routing": Contender("Routing", "neighbours", _all(lambda n, r: RoutingConfig(clusters=r // 2, window=r))),
    "sliding_window": Contender("sliding window", "window", _all(lambda n, r: SlidingWindowConfig(window=r))),
    "reformer_unsorted": Contender("Reformer without sorting", "part", _reformer(sorts=False)),
    "hyper_sparse": Contender("HyperAttention without columns", "part", _hyper(columns=False)),
    "kdeformer_sparse": Contender("KDEformer without columns", "part", _kdeformer(columns=False)),
}
"""Every contender by its name on the command line."""
