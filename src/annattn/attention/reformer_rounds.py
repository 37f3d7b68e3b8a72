"""Reformer as it is trained: several rounds, a causal form, masks. The form of the ANNA paper is in `reformer.py`."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annattn.attention import reference
from annattn.attention.inputs import accumulator, attention_call, check_hasher, check_inputs
from annattn.attention.mechanism import Attend, HashedConfig, Mechanism
from annattn.attention.partial_softmax import Partial, softmax_of_runs, taken
from annattn.checks import require_count, require_flag
from annattn.kernels import nan_targets
from annattn.lsh import Hasher, Hyperplane
from annattn.lsh.rows import unit_rows

__all__ = ["MECHANISM", "ReformerRoundsConfig", "reformer_rounds_attention", "reformer_rounds_weights"]


@attention_call
def reformer_rounds_attention(
    query_key: Float[Tensor, "batch heads n dim"],
    value: Float[Tensor, "batch heads n value_dim"],
    hasher: Hasher | None,
    *,
    chunk: int = 64,
    is_causal: bool = False,
    key_mask: Bool[Tensor, "batch n"] | None = None,
) -> Float[Tensor, "batch heads n value_dim"]:
    """Softmax of ⟨q_i, q_j/‖q_j‖⟩/√d over the tokens near i in its bucket, joined over rounds, one per table.

    In a round, token i reads those of its bucket that are fewer than 2 · `chunk` places before it, or after it if not
    causal, when a bucket's tokens stand in order of time. A token met in several rounds counts several times. It reads
    itself only if it meets nobody else. A masked row takes no part, and gets zeros. Without a hasher there is one round
    and one bucket: a token reads the nearest ones in time, which is what remains of a Reformer without sorting.

    The original cuts the tokens, sorted by bucket, into chunks that read themselves and the chunk before. There the
    cuts, and so what a token reads, depend on how many later tokens fall into lower buckets: the future reaches the
    past. Counting places inside the bucket avoids that.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(2).sample(tables=1, hashes=2)
    >>> x = torch.tensor([[[[9.0, 0.0], [-9.0, 0.0], [9.0, 0.0], [-9.0, 0.0]]]])
    >>> value = torch.tensor([[[[1.0], [2.0], [3.0], [4.0]]]])
    >>> aa.attention.reformer_rounds_attention(x, value, hasher, is_causal=True).flatten()
    tensor([1., 2., 1., 2.])
    """
    check_inputs(query_key, query_key, value, key_mask, is_causal=is_causal)
    if hasher is not None:
        check_hasher(hasher, query_key)
    chunk = require_count("chunk", chunk)
    n = query_key.shape[2]
    if key_mask is not None:
        query_key, value = (x.masked_fill(~key_mask[:, None, :, None], 0) for x in (query_key, value))
    wide = torch.promote_types(accumulator(query_key.dtype), accumulator(value.dtype))
    query, values = query_key.to(wide), value.to(wide)
    key = unit_rows(query)
    if hasher is None:
        codes = torch.zeros(*query_key.shape[:3], 1, dtype=torch.int64, device=query_key.device)
    else:
        (codes,) = hasher.joint_codes(query_key.detach())
    length = min(2 * chunk, max(n, 1))
    rounds = []
    for code in codes.unbind(-1):
        if key_mask is not None:
            # Tokens that take no part come last, in a bucket of their own.
            code = torch.where(key_mask[:, None], code, torch.iinfo(torch.int64).max)
        rounds.append(_one_round(query, key, values, code, length, is_causal))
    found = Partial.of_all(rounds)
    out = torch.where(found.log_total[..., None] == -torch.inf, values, found.mean)
    out = out.masked_fill(nan_targets(codes, codes, int(is_causal))[..., None], torch.nan)
    if key_mask is not None:
        out = out.masked_fill(~key_mask[:, None, :, None], 0)
    return out.to(value.dtype)


def _one_round(query: Tensor, key: Tensor, value: Tensor, code: Tensor, length: int, is_causal: bool) -> Partial:
    """The tokens of a query's bucket that are fewer than `length` places away, without itself."""
    code = code.contiguous()
    sorted_code, order = code.sort(dim=-1, stable=True)
    place = order.argsort(dim=-1)
    low = torch.maximum(place - (length - 1), torch.searchsorted(sorted_code, code))
    high = place if is_causal else torch.minimum(place + length, torch.searchsorted(sorted_code, code, right=True))
    run = length if is_causal else 2 * length - 1
    return softmax_of_runs(query, taken(key, order), taken(value, order), low, high, run, without=place)


def reformer_rounds_weights(query: Tensor, key: Tensor, seen: Tensor, *, hasher: Hasher | None, chunk: int) -> Tensor:
    """exp(s_ij) times the number of rounds in which i finds j; 1 for i itself if it finds nobody.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=1, hashes=1)
    >>> x = torch.tensor([[1.0], [1.0], [1.0]])
    >>> reformer_rounds_weights(x, x, reference.visible(3, 3, is_causal=True), hasher=hasher, chunk=1)
    tensor([[1., 0., 0.],
            [1., 0., 0.],
            [0., 1., 0.]], dtype=torch.float64)
    """
    n, live = len(query), [bool(seen[i, i]) for i in range(len(query))]
    tuples = [[()]] * n if hasher is None else reference.hash_tuples(query, hasher)
    scores = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        q = query[i].double()
        for u in range(1 if hasher is None else hasher.tables):
            bucket = [j for j in range(n) if live[j] and (j == i or tuples[j][u] == tuples[i][u])]
            for place, j in enumerate(bucket):
                if live[i] and j != i and seen[i, j] and abs(place - bucket.index(i)) < 2 * chunk:
                    k = query[j].double()
                    scores[i, j] += torch.exp(q @ (k / k.norm().clamp(min=1e-300)) / math.sqrt(len(q)))
        if live[i] and not scores[i].any():
            scores[i, i] = 1.0
    return reference.normalised(scores)


@dataclass(frozen=True)
class ReformerRoundsConfig(HashedConfig):
    """`reformer_rounds_attention` with ℓ = `tables` rounds; `sorts=False` leaves out the hashing, and so the sorting.

    >>> ReformerRoundsConfig(tables=4, hashes=4).shared_query_key
    True
    """

    shared_query_key: ClassVar[bool] = True
    chunk: int = 64
    sorts: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_flag("sorts", self.sorts)

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        hasher = self.hasher(head_dim, layer, seed) if self.sorts else None
        return lambda q, k, v, is_causal, mask: reformer_rounds_attention(
            q, v, hasher, chunk=self.chunk, is_causal=is_causal, key_mask=mask
        )


MECHANISM = Mechanism(
    reformer_rounds_attention,
    reformer_rounds_weights,
    ReformerRoundsConfig,
    lambda dim: {"chunk": 1, "hasher": Hyperplane(dim).sample(tables=2, hashes=2)},
)
