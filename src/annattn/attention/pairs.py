"""All pairs of queries and keys with their collision probabilities: what the forms that train are made of. Quadratic.

With c what real hash functions give and E its average, the trained forms use E + noise·(c − E), with no gradient
through the parenthesis. At noise 0 the output is an average, and at noise 1 that of hashing. Raising the noise in
between teaches a model little by little to do without averages. The gradient is that of the average, so it also
reaches the pairs that did not meet.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from annattn.attention.inputs import accumulator, check_hasher, check_inputs, grouped, hash_inputs, ungrouped
from annattn.attention.packed import Documents
from annattn.checks import require_count, require_number
from annattn.errors import InputError
from annattn.kernels import nan_targets
from annattn.lsh import NO_BUCKET, Hasher, HashFamily
from annattn.lsh.rows import unit_rows

__all__ = ["ExpectedPairs", "SampledPairs", "expected_pairs", "sampled_pairs", "with_noise"]


@dataclass(frozen=True)
class ExpectedPairs:
    """Every pair's z·log p, the values, and which keys are seen; heads are laid out in groups."""

    scores: Tensor
    values: Tensor
    seen: Tensor
    query: Tensor  # as given: the shape of the output
    dtype: torch.dtype

    @property
    def chances(self) -> Tensor:
        """p^z where the key is seen, else 0."""
        return self.scores.exp() * self.seen

    def total(self, weights: Tensor) -> Tensor:
        """Σ_j w_ij, in the layout of the inputs."""
        return ungrouped(weights.sum(-1), self.query)

    def variance(self, tables: int) -> Tensor:
        """By how much Σ_j c_ij v_j / Σ_j c_ij differs from its average with ℓ tables: the mean squared distance.

        The variance of a quotient to first order in 1/ℓ, Σ_j p_j (1 - p_j) |v_j - mean|² / (ℓ (Σ_j p_j)²), as if keys
        met a query independently of each other. It has a gradient, which meetings themselves have not.
        """
        chances = self.chances
        total = chances.sum(-1, keepdim=True).clamp(min=torch.finfo(chances.dtype).tiny)
        mean = chances @ self.values / total
        spread = chances * (1 - chances) / (tables * total.square())
        crossed = (mean * (spread @ self.values)).sum(-1)
        squares = (spread @ self.values.square().sum(-1, keepdim=True)).squeeze(-1)
        found = squares - 2 * crossed + spread.sum(-1) * mean.square().sum(-1)
        return ungrouped(found.clamp(min=0), self.query)

    def read(self, weights: Tensor, divisor: Tensor | None = None) -> Tensor:
        """Σ_j w_ij v_j, over a divisor if there is one, in the layout and dtype of the inputs."""
        out = weights.to(self.values.dtype) @ self.values
        return ungrouped(out if divisor is None else out / divisor, self.query).to(self.dtype)


@dataclass(frozen=True)
class SampledPairs:
    """Expected pairs, and what hash functions drawn for them did."""

    expected: ExpectedPairs
    query_codes: Tensor  # tables first
    key_codes: Tensor
    unknown: Tensor  # the queries that get NaN, as by `anna_attention`

    def met(self, table: int) -> Tensor:
        """Which pairs share a bucket of this table."""
        return self.query_codes[table][..., :, None] == self.key_codes[table][:, None, None, :]

    def counts(self) -> Tensor:
        """In how many tables each pair meets, added up in one byte per pair where that is enough."""
        tables, seen = len(self.query_codes), self.expected.seen
        narrow, scores = tables < 256, self.expected.scores
        counts = torch.zeros_like(scores, dtype=torch.uint8 if narrow else torch.int32)
        for table in range(tables):
            met = self.met(table)
            counts += met.view(torch.uint8) if narrow else met
        return counts.to(scores.dtype) * seen

    def newest_hits(self) -> Tensor:
        """In how many tables each key is the newest that its query meets."""
        scores, seen = self.expected.scores, self.expected.seen
        hits, keys = torch.zeros_like(scores), scores.shape[-1]
        if keys:
            place = torch.arange(1, keys + 1, device=scores.device)
            for table in range(len(self.query_codes)):
                newest, at = ((self.met(table) & seen) * place).max(-1, keepdim=True)
                hits.scatter_add_(-1, at, (newest > 0).to(hits.dtype))
        return hits

    def read(self, weights: Tensor, divisor: Tensor | None = None) -> Tensor:
        """The same, but NaN for queries that may have met a row without a bucket."""
        return self.expected.read(weights, divisor).masked_fill(self.unknown[..., None], torch.nan)


def with_noise(expected: Tensor, sampled: Tensor, noise: float) -> Tensor:
    """The average plus a share of the deviation from it, which has no gradient.

    >>> with_noise(torch.tensor([1.0]), torch.tensor([3.0]), 0.5)
    tensor([2.])
    """
    return expected + noise * (sampled - expected).detach()


def expected_pairs(
    query: Tensor, key: Tensor, value: Tensor, family: HashFamily, hashes: int, is_causal: bool,
    key_mask: Tensor | None, documents: Documents | None = None,
) -> ExpectedPairs:  # fmt: skip
    """The pairs of these inputs under `hashes` hash functions of a family that sees angles."""
    check_inputs(query, key, value, key_mask, is_causal=is_causal)
    hashes = require_count("hashes", hashes)
    if family.dim != query.shape[-1]:
        raise InputError("family", given=f"one of dim {family.dim}", expected=f"one of the query's {query.shape[-1]}")
    dtype, original = value.dtype, query
    if key_mask is not None:
        hidden = ~key_mask[:, None, :, None]
        key, value = key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
    queries, keys = query.shape[2], key.shape[2]
    # Values may be wider than queries and keys; the pairs are then not worth it.
    wide = torch.promote_types(accumulator(query.dtype), accumulator(key.dtype))
    query, key, value = query.to(wide), key.to(wide), value.to(accumulator(dtype))
    unit_query, unit_key, values = (grouped(x, key.shape[1]) for x in (unit_rows(query), unit_rows(key), value))
    scores = family.log_probability(unit_query @ unit_key.mT)
    if scores is None:
        raise InputError(
            "family",
            given=str(family),
            expected="one whose collision probability is a function of the angle",
            hint="use Hyperplane or CrossPolytope",
        )
    seen = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=query.device)
    if is_causal:
        seen = seen.tril(keys - queries)
    if key_mask is not None:
        seen = seen & key_mask.repeat_interleave(key.shape[1], 0)[:, None, None, :]
    if documents is not None:
        seen = seen & documents.same().repeat_interleave(key.shape[1], 0)[:, None]
    return ExpectedPairs(hashes * scores, values, seen, original, dtype)


def sampled_pairs(
    query: Tensor, key: Tensor, value: Tensor, hasher: Hasher, noise: float, is_causal: bool, key_mask: Tensor | None,
    documents: Documents | None = None,
) -> SampledPairs:  # fmt: skip
    """The pairs of these inputs under drawn hash functions."""
    check_inputs(query, key, value, key_mask, is_causal=is_causal)
    check_hasher(hasher, key)
    require_number("noise", noise, "a number from 0 to 1", low=0, high=1)
    expected = expected_pairs(query, key, value, hasher.family, hasher.hashes, is_causal, key_mask, documents)
    query_codes, key_codes = hash_inputs(hasher, query.detach(), key.detach(), key_mask)
    unknown = nan_targets(query_codes, key_codes, int(is_causal))
    if documents is not None:
        met = documents.unknown(key_codes, is_causal=is_causal).repeat_interleave(query.shape[1] // key.shape[1], 1)
        unknown = met | (query_codes == NO_BUCKET).any(-1)
    return SampledPairs(
        expected,
        _by_table(grouped(query_codes, key.shape[1]), hasher),
        _by_table(key_codes.flatten(0, 1), hasher),
        unknown,
    )


def _by_table(codes: Tensor, hasher: Hasher) -> Tensor:
    """Tables first, and in two bytes per code where they hold it: these are read once for every pair."""
    narrow = hasher.buckets is not None and hasher.buckets <= 2**15
    return codes.movedim(-1, 0).to(torch.int16 if narrow else codes.dtype).contiguous()
