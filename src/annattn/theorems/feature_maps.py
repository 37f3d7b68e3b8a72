"""Performer, PolySketchFormer and Based as the paper's low-rank attention: transformers that `to_protocol` takes.

Their attention is low rank with one more column of values, all ones, whose output a layer divides by. Features are
rounded to 2⁻¹⁰, as the paper's numbers of p bits are, so that sums are exact in whatever order machines add them up.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from annattn.attention import BasedFeatures, FeatureMap, PerformerFeatures, PolySketchFeatures, low_rank_attention
from annattn.compiler import Head, Layer, LowRank, Transformer
from annattn.theorems.integers import PRIME, integer_linear

__all__ = ["FEATURE_MAPS", "FeatureModel", "RoundedFeatures"]

FEATURE_MAPS: dict[str, Callable[[int, int], FeatureMap]] = {
    "Performer": lambda dim, seed: PerformerFeatures(dim, count=2 * dim, seed=seed),
    "PolySketchFormer": lambda dim, seed: PolySketchFeatures(dim, rank=2, seed=seed),
    "Based": lambda dim, seed: BasedFeatures(),
}
"""Feature maps with few features, by the name of their mechanism: (width of a head, seed) to the map."""

_STEPS = 1024


@dataclass(frozen=True)
class RoundedFeatures(FeatureMap):
    """The features of a map, rounded to multiples of 2⁻¹⁰.

    >>> RoundedFeatures(BasedFeatures()).query(torch.tensor([[0.3]])).mul(1024)
    tensor([[1024.,  307.,   65.]])
    """

    exact: FeatureMap

    def query(self, x: Tensor) -> Tensor:
        """See `FeatureMap`."""
        return torch.round(_STEPS * self.exact.query(x)) / _STEPS

    def key(self, x: Tensor) -> Tensor:
        """See `FeatureMap`."""
        return torch.round(_STEPS * self.exact.key(x)) / _STEPS

    @property
    def offset(self) -> float:  # type: ignore[override]
        """That of the map."""
        return self.exact.offset


class FeatureModel:
    """A random transformer of one head whose attention is that of a feature map, on rows of whole numbers.

    `direct` calls `low_rank_attention` with the map; `transformer` is the same as the Definition writes it.

    >>> from annattn.theorems.integers import integer_rows
    >>> model, x = FeatureModel("Based", layers=2, width=3, seed=0), integer_rows(5, 3, seed=1)
    >>> torch.equal(model.direct(x), model.transformer(x))
    True
    """

    def __init__(self, name: str, *, layers: int, width: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.width, self.features = width, RoundedFeatures(FEATURE_MAPS[name](width, seed))
        self.maps = [tuple(integer_linear(rng, width, width) for _ in range(3)) for _ in range(layers)]

    def direct(self, x: Tensor) -> Tensor:
        """The rows after all layers."""
        for query, key, value in self.maps:
            rows = _centred(query(x)), _centred(key(x)), value(x)
            read = low_rank_attention(*(one[None, None] for one in rows), features=self.features)[0, 0]
            x = _update(x, read)
        return x

    @property
    def transformer(self) -> Transformer:
        """Layers of `LowRank` whose heads have the features as queries and keys, and a column of ones beside values."""
        features, width = self.features, self.width
        count = features.query(torch.zeros(1, width, dtype=torch.float64)).shape[1]

        def divided(x: Tensor, reads: list[Tensor]) -> Tensor:
            return _update(x, reads[0][:, :-1] / (reads[0][:, -1:] + features.offset))

        def layer(
            query: Callable[[Tensor], Tensor], key: Callable[[Tensor], Tensor], value: Callable[[Tensor], Tensor]
        ) -> Layer:
            head = Head(
                lambda x: features.query(_centred(query(x))),
                lambda x: features.key(_centred(key(x))),
                lambda x: torch.cat([value(x), torch.ones_like(x[:, :1])], dim=1),
                count,
                width + 1,
            )
            return Layer([head], LowRank(), update=divided, width=width)

        return Transformer([layer(*maps) for maps in self.maps])


def _centred(x: Tensor) -> Tensor:
    """Whole numbers modulo 31 as numbers from −1 to 1."""
    return (x - PRIME // 2) / (PRIME // 2)


def _update(x: Tensor, read: Tensor) -> Tensor:
    return (x + torch.floor(64 * read)) % PRIME
