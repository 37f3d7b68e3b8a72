"""Hypothesis strategies for hashers and attention inputs, and the brute force they are compared with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from annattn.attention import MECHANISMS, AttentionConfig, reference
from annattn.lsh import FAMILIES, CrossPolytope, Hasher, HashFamily

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def families(dim: int) -> list[HashFamily]:
    """Every listed family, and the variants its options make."""
    structured = [CrossPolytope(dim, rotation="structured")] if dim >= 16 else []
    return [*(make(dim) for make in FAMILIES.values()), *structured]


@st.composite
def hashers(draw, dim: int, tables: int = 4) -> Hasher:
    family = draw(st.sampled_from(families(dim)))
    # 70 hashes are too wide for any packed code, and so take the exact compaction.
    hashes = draw(st.sampled_from([1, 2, 3, 5, 70]))
    shared = hashes % 2 == 0 and draw(st.booleans())
    return family.sample(
        tables=draw(st.integers(1, tables)), hashes=hashes, seed=draw(st.integers(0, 2**40)), shared=shared
    )


@dataclass(frozen=True)
class Inputs:
    query: Tensor
    key: Tensor
    value: Tensor
    is_causal: bool
    key_mask: Tensor | None

    @property
    def masks(self) -> dict[str, Any]:
        return {"is_causal": self.is_causal, "key_mask": self.key_mask}


@st.composite
def attention_inputs(draw, dim: int, dtypes=DTYPES, longest: int = 7) -> Inputs:
    """Small shapes of every kind; few distinct rows, so that collisions abound; values whose sums are exact."""
    batch, key_heads, share = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys = draw(st.integers(0, longest)), draw(st.integers(0, longest))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    pool = torch.randn(draw(st.integers(1, 4)), dim, generator=generator).to(dtype)

    def rows(heads: int, n: int) -> Tensor:
        picked = pool[torch.randint(len(pool), (batch, heads, n), generator=generator)]
        # Some rows a little off, so that near and equal differ.
        nudge = torch.randint(0, 4, (batch, heads, n, 1), generator=generator) == 0
        return picked + nudge * (torch.randn(picked.shape, generator=generator) / 8).to(dtype)

    width = draw(st.integers(0, 3))
    value = torch.randint(-8, 9, (batch, key_heads, keys, width), generator=generator).to(dtype)
    mask = torch.rand(batch, keys, generator=generator) < 0.6 if draw(st.booleans()) else None
    return Inputs(rows(key_heads * share, queries), rows(key_heads, keys), value, draw(st.booleans()), mask)


def brute_force(weights, inputs: Inputs, needs: tuple[str, ...] = (), **options: Any) -> Tensor:
    """Σ_j w_ij v_j head by head, with the weights of `reference`; float64.

    `needs` names what else decides the weights: the head's values, or the order.
    """
    batch, heads, queries, _ = inputs.query.shape
    share = heads // inputs.key.shape[1]
    out = torch.zeros(batch, heads, queries, inputs.value.shape[-1], dtype=torch.float64)
    for b in range(batch):
        mask = None if inputs.key_mask is None else inputs.key_mask[b]
        seen = reference.visible(queries, inputs.key.shape[2], is_causal=inputs.is_causal, key_mask=mask)
        for h in range(heads):
            known = {"value": inputs.value[b, h // share], "is_causal": inputs.is_causal}
            rows = inputs.query[b, h], inputs.key[b, h // share]
            matrix = weights(*rows, seen, **options, **{name: known[name] for name in needs})
            out[b, h] = reference.attend(matrix, inputs.value[b, h // share])
    return out


def assert_matches(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Equal up to one rounding of the result: sums of the small integers used here are exact."""
    assert actual.dtype == dtype
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def mechanisms(wanted: Callable[[type[AttentionConfig]], bool]) -> pytest.MarkDecorator:
    """The listed mechanisms that have something, to be tested for it."""
    chosen = {name: mechanism for name, mechanism in MECHANISMS.items() if wanted(mechanism.config)}
    return pytest.mark.parametrize("mechanism", chosen.values(), ids=chosen)
