"""KDEformer: exact blocks of rows sorted by hash, and columns sampled by the size of their values for other pairs."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from annattn.attention import reference
from annattn.attention.inputs import attention_call, check_inputs
from annattn.attention.mechanism import Attend, Causal, Mechanism, SeededConfig
from annattn.attention.sampled_columns import blocks_and_columns, literal_blocks, prepared, sampling_points
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.checks import require_count
from annattn.errors import InputError
from annattn.lsh import Hasher, Hyperplane
from annattn.seeds import check_seed

__all__ = ["MECHANISM", "KdeformerConfig", "kdeformer_attention", "kdeformer_weights"]


@attention_call
def kdeformer_attention(
    query: Queries, key: Keys, value: Values, hasher: Hasher, *,
    block: int = 64, columns: int = 800, seed: int = 0,
    is_causal: bool = False, key_mask: KeyMask | None = None,
) -> Outputs:  # fmt: skip
    """Softmax of ⟨q, k⟩/√d over a block of keys with nearby hashes, and s = `columns` keys sampled by their values.

    Key j is drawn with probability p_j = (‖v_j‖/Σ_l ‖v_l‖ + 1/n)/2, and one that is drawn outside the block stands for
    1/(p_j s) keys. With no columns, a query reads its block alone. The probabilities need all values, so there is no
    causal form.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=1, hashes=7)
    >>> q, k, v = torch.randn(3, 1, 1, 50, 4)
    >>> exact = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    >>> torch.testing.assert_close(aa.attention.kdeformer_attention(q, k, v, hasher), exact)
    """
    check_inputs(query, key, value, key_mask, is_causal=is_causal, hasher=hasher)
    if is_causal:
        raise InputError(
            "is_causal", given=True, expected="False", hint="KDEformer samples keys by the sizes of all values"
        )
    block, columns = require_count("block", block), require_count("columns", columns, least=0)
    batch, heads, m = query.shape[0], query.shape[1], key.shape[2]
    queries, keys, values, live = prepared(query, key, value, key_mask)
    chances = _chances(values, live)
    points = sampling_points(columns, check_seed(seed), query.device)
    points = points.expand(batch, heads, columns).contiguous()
    sampled = torch.searchsorted(chances.detach().cumsum(-1), points, right=True)
    sampled = sampled.clamp(max=m - 1) if m else sampled[..., :0]
    weight = -torch.log(chances.gather(-1, sampled) * max(columns, 1)).to(queries)
    out = blocks_and_columns(queries, keys, values, live, sampled, weight, hasher, block)
    return out.mean.to(value.dtype)


def _chances(value: Tensor, live: Tensor) -> Tensor:
    """p_j in float64, so that every dtype draws the same keys; zero for keys that take no part."""
    squares = value.double().square().sum(-1)
    size = torch.where(squares > 0, squares, 1).sqrt() * (squares > 0)
    total, count = size.sum(-1, keepdim=True), live.sum(-1, keepdim=True).clamp(min=1)
    uniform = live.double() / count
    return (torch.where(total > 0, size / torch.where(total > 0, total, 1), uniform) + uniform) / 2


def kdeformer_weights(
    query: Tensor, key: Tensor, seen: Tensor, *, value: Tensor, hasher: Hasher, block: int, columns: int, seed: int = 0
) -> Tensor:
    """exp(s_ij) in the block, and exp(s_ij)/(p_j s) for each time key j was drawn outside of it; normalised.

    >>> import annattn as aa
    >>> x = torch.ones(2, 4)
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=1, hashes=7)
    >>> kdeformer_weights(x, x, torch.ones(2, 2), value=x, hasher=hasher, block=2, columns=1)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    (n, m), live = seen.shape, seen.bool().any(0).tolist()
    sizes = [math.sqrt(float((v.double() ** 2).sum())) if on else 0.0 for v, on in zip(value, live, strict=True)]
    count, total = max(sum(live), 1), sum(sizes)
    chances = [((size / total if total else on / count) + on / count) / 2 for size, on in zip(sizes, live, strict=True)]
    drawn = [0] * m
    for point in sampling_points(columns, seed).tolist():
        below = 0.0
        for j in range(m):
            below += chances[j]
            if point < below:
                drawn[j] += 1
                break
    same = literal_blocks(query, key, live, hasher, block)
    factor = torch.zeros(n, m, dtype=torch.float64)
    for i in range(n):
        for j in range(m):
            if live[j]:
                factor[i, j] = 1.0 if same[i, j] else drawn[j] / (chances[j] * max(columns, 1))
    scores = torch.exp(query.double() @ key.double().T / math.sqrt(max(query.shape[1], 1)))
    return reference.normalised(torch.where(factor > 0, scores * factor, 0.0))


@dataclass(frozen=True)
class KdeformerConfig(SeededConfig):
    """`kdeformer_attention` with blocks sorted by z = `hashes` signs.

    >>> KdeformerConfig(columns=64).causal
    'never'
    """

    causal: ClassVar[Causal] = "never"
    may_be_zero: ClassVar[tuple[str, ...]] = ("columns",)
    drawn: ClassVar[tuple[str, ...]] = ("hashes", "columns")
    hashes: int = 7
    block: int = 64
    columns: int = 800
    seed: int = 0

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        drawn = self.layer_seed(layer, seed)
        hasher = Hyperplane(head_dim).sample(tables=1, hashes=self.hashes, seed=drawn)
        return lambda q, k, v, is_causal, mask: kdeformer_attention(
            q, k, v, hasher, block=self.block, columns=self.columns, seed=drawn, is_causal=is_causal, key_mask=mask
        )


MECHANISM = Mechanism(
    kdeformer_attention,
    kdeformer_weights,
    KdeformerConfig,
    lambda dim: {"hasher": Hyperplane(dim).sample(tables=1, hashes=3), "block": 2, "columns": 3},
    weights_need=("value",),
)
