"""Routing attention: softmax inside clusters of queries and keys, by centroids that follow their means."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from annattn.attention.inputs import accumulator, attention_call, check_inputs
from annattn.attention.mechanism import Attend, Mechanism, SeededConfig
from annattn.attention.partial_softmax import partial_softmax, softmax_of_runs, taken
from annattn.attention.sampled_columns import shared_heads
from annattn.attention.shapes import KeyMask, Keys, Outputs, Queries, Values
from annattn.checks import keep_number, require_count
from annattn.errors import InputError
from annattn.lsh.rows import unit_rows

__all__ = ["MECHANISM", "RoutingConfig", "routing_attention", "routing_weights"]


@attention_call
def routing_attention(
    query: Queries, key: Keys, value: Values, *,
    centroids: Float[Tensor, "clusters dim"], window: int,
    is_causal: bool = False, key_mask: KeyMask | None = None,
) -> Outputs:  # fmt: skip
    """Softmax of ⟨q, k⟩/√d inside clusters: each centroid takes the `window` queries and keys nearest to it by angle.

    A query in several clusters gets the mean of what it reads in each, and one in none gets zeros. Whom a centroid
    takes depends on all tokens, so a causal call does without: each row then belongs to its nearest centroid alone, and
    a query reads the last `window` keys of its cluster. With √n clusters and windows of √n the work is n^1.5.

    >>> import annattn as aa
    >>> x = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]]]])
    >>> value = torch.tensor([[[[1.0], [2.0], [3.0], [4.0]]]])
    >>> aa.attention.routing_attention(100 * x, x, value, centroids=torch.eye(2), window=1).flatten()
    tensor([1., 2., 0., 0.])
    """
    check_inputs(query, key, value, key_mask, is_causal=is_causal)
    window = require_count("window", window)
    expected = f"a tensor (clusters, {query.shape[3]}) on the query's device {query.device}"
    if not isinstance(centroids, Tensor):
        raise InputError("centroids", given=type(centroids).__name__, expected=expected)
    if centroids.ndim != 2 or centroids.shape[1] != query.shape[3] or centroids.device != query.device:
        raise InputError("centroids", given=f"{tuple(centroids.shape)} on {centroids.device}", expected=expected)
    batch, heads = query.shape[:2]
    wide = torch.promote_types(accumulator(query.dtype), accumulator(value.dtype))
    live = key.new_ones(batch, 1, key.shape[2], dtype=torch.bool)
    if key_mask is not None:
        live = key_mask[:, None]
        key, value = (x.masked_fill(~live[..., None], 0) for x in (key, value))
    rows = query.to(wide), shared_heads(key.to(wide), heads), shared_heads(value.to(wide), heads)
    # Whom a row belongs to is not differentiable.
    near_query, near_key = (unit_rows(x.detach()) @ unit_rows(centroids.detach().to(wide)).T for x in rows[:2])
    live = live.expand(batch, heads, -1)
    attend = _nearest_clusters if is_causal else _balanced_clusters
    return attend(*rows, near_query, near_key, live, window).to(value.dtype)


def _balanced_clusters(
    query: Tensor, key: Tensor, value: Tensor, near_query: Tensor, near_key: Tensor, live: Tensor, window: int
) -> Tensor:
    dim, clusters = query.shape[3], near_key.shape[-1]
    near_key = near_key.masked_fill(~live[..., None], -torch.inf)
    chosen_query, chosen_key = (
        near.argsort(dim=2, descending=True, stable=True)[:, :, :window].mT for near in (near_query, near_key)
    )  # (batch, heads, clusters, window)

    def members(x: Tensor, chosen: Tensor) -> Tensor:
        return taken(x, chosen.flatten(2)).unflatten(2, chosen.shape[2:])

    scores = members(query, chosen_query) @ members(key, chosen_key).mT / math.sqrt(max(dim, 1))
    takes_part = live.gather(2, chosen_key.flatten(2)).unflatten(2, chosen_key.shape[2:])
    read = partial_softmax(scores.masked_fill(~takes_part[..., None, :], -torch.inf), members(value, chosen_key)).mean
    ones = read.new_ones(*read.shape[:-1], 1)
    index = chosen_query.flatten(2)[..., None]
    total = read.new_zeros(*query.shape[:3], read.shape[-1] + 1)
    index = index.expand(*index.shape[:3], total.shape[-1])
    total = total.scatter_add(2, index, torch.cat([read, ones], -1).flatten(2, 3))
    return total[..., :-1] / total[..., -1:].clamp(min=1) if clusters else total[..., :-1]


def _nearest_clusters(
    query: Tensor, key: Tensor, value: Tensor, near_query: Tensor, near_key: Tensor, live: Tensor, window: int
) -> Tensor:
    n, m, clusters = query.shape[2], key.shape[2], near_key.shape[-1]
    mine, theirs = (near.argmax(-1) if clusters else near.sum(-1).long() for near in (near_query, near_key))
    # Sorted by cluster, then by place; those that take no part come last.
    place = torch.arange(m, device=key.device)
    rank = torch.where(live, theirs * m + place, clusters * m + place)
    ranks, order = rank.sort(dim=-1)
    horizon = torch.arange(n, device=key.device) + m - n
    last = torch.searchsorted(ranks, mine * m + horizon, right=True)
    bottom = torch.searchsorted(ranks, mine * m)
    first = torch.maximum(last - window, bottom)
    last = torch.where(horizon >= 0, last, first)  # a query before the first key
    found = softmax_of_runs(query, taken(key, order), taken(value, order), first, last, window)
    return found.mean


def routing_weights(
    query: Tensor, key: Tensor, seen: Tensor, *, centroids: Tensor, window: int, is_causal: bool = False
) -> Tensor:
    """The mean over the clusters of query i of softmax(s_ij) over the keys of that cluster.

    >>> x = torch.eye(2)
    >>> routing_weights(x, x, torch.ones(2, 2), centroids=torch.eye(2), window=1)
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    (n, m), seen = seen.shape, seen.bool()
    live = [j for j in range(m) if seen[:, j].any()]
    unit = [x.double() / x.double().norm(dim=1, keepdim=True).clamp(min=1e-300) for x in (query, key, centroids)]
    near_query, near_key = unit[0] @ unit[2].T, unit[1] @ unit[2].T
    scores = torch.exp(query.double() @ key.double().T / math.sqrt(max(query.shape[1], 1)))
    weights = torch.zeros(n, m, dtype=torch.float64)
    for i in range(n):
        read = []
        for cluster in range(len(centroids)):
            if is_causal:
                taken_in = int(near_query[i].argmax()) == cluster
                keys = [j for j in live if seen[i, j] and int(near_key[j].argmax()) == cluster][-window:]
            else:
                ahead = sum((near_query[k, cluster], -k) > (near_query[i, cluster], -i) for k in range(n))
                taken_in = ahead < window
                keys = sorted(live, key=lambda j: (-near_key[j, cluster], j))[:window]
            if taken_in:
                read.append(keys)
        for keys in read:
            for j in keys:
                weights[i, j] += scores[i, j] / scores[i, keys].sum() / len(read)
    return weights


@dataclass(frozen=True)
class RoutingConfig(SeededConfig):
    """`routing_attention` with centroids that all heads of a layer share.

    In training each forward pass moves a centroid towards the mean of the unit queries and keys nearest to it, by
    1 − `decay`. The commitment loss of the original, which pulls queries and keys to their centroids, is left out.

    >>> RoutingConfig(clusters=8, window=32)
    RoutingConfig(clusters=8, window=32, decay=0.999, seed=0)
    """

    drawn: ClassVar[tuple[str, ...]] = ("clusters",)
    clusters: int = 16
    window: int = 64
    decay: float = 0.999
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_number(self, "decay", "a number from 0 to 1", low=0, high=1)

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        return _Routing(self, head_dim, self.layer_seed(layer, seed))


class _Routing(nn.Module):
    centroids: Tensor

    def __init__(self, config: RoutingConfig, head_dim: int, seed: int) -> None:
        super().__init__()
        self.window, self.decay = config.window, config.decay
        drawn = torch.randn(config.clusters, head_dim, generator=torch.Generator().manual_seed(seed), device="cpu")
        self.register_buffer("centroids", unit_rows(drawn))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self._follow(q, k, mask)
        return routing_attention(
            q, k, v, centroids=self.centroids, window=self.window, is_causal=is_causal, key_mask=mask
        )

    @torch.no_grad()
    def _follow(self, q: Tensor, k: Tensor, mask: Tensor | None) -> None:
        keys = k if mask is None else k.transpose(1, 2)[mask]
        rows = torch.cat([unit_rows(x.to(self.centroids)).reshape(-1, x.shape[-1]) for x in (q, keys)])
        nearest = (rows @ self.centroids.T).argmax(-1)
        total = torch.zeros_like(self.centroids).index_add_(0, nearest, rows)
        used = torch.bincount(nearest, minlength=len(self.centroids))[:, None] > 0
        moved = self.decay * self.centroids + (1 - self.decay) * unit_rows(total)
        self.centroids.copy_(torch.where(used, unit_rows(moved), self.centroids))


def _options(dim: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(dim)
    return {"centroids": torch.randn(3, dim, generator=generator, dtype=torch.float64, device="cpu"), "window": 2}


MECHANISM = Mechanism(routing_attention, routing_weights, RoutingConfig, _options, weights_need=("is_causal",))
