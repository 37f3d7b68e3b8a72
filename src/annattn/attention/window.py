"""The hybrid that practice uses: exact softmax over the keys near a query, ANNA over all others, in one layer."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from annattn.attention import reference
from annattn.attention.anna import anna_mean
from annattn.attention.band import band_softmax
from annattn.attention.collision import expected_mean, sampled_counts
from annattn.attention.inputs import accumulator, attention_call, check_inputs
from annattn.attention.manners import torch_arguments
from annattn.attention.mechanism import Attend, Gradient, Mechanism, TrainableConfig
from annattn.attention.packed import Documents, packed
from annattn.attention.pairs import expected_pairs, sampled_pairs
from annattn.attention.partial_softmax import Partial
from annattn.attention.shapes import KeyMask, Keys, Outputs, Packing, Queries, Values
from annattn.checks import require_choice, require_count, require_factor, require_number
from annattn.errors import InputError
from annattn.lsh import Hasher, Hyperplane

__all__ = [
    "COMBINE",
    "FORMS",
    "MECHANISM",
    "Combine",
    "Form",
    "WindowConfig",
    "both_sides",
    "check_gate",
    "check_near",
    "check_window",
    "combined",
    "window_attention",
    "window_weights",
]

Combine = Literal["gate", "joined"]
Form = Literal["hashed", "sampled", "expected"]
COMBINE, FORMS = get_args(Combine), get_args(Form)


@attention_call
def window_attention(
    query: Queries, key: Keys, value: Values, hasher: Hasher, *,
    window: int,
    is_causal: bool = False, key_mask: KeyMask | None = None,
    documents: Packing | None = None, combine: Combine = "joined",
    gate: Float[Tensor, " heads"] | float = 0.0, scale: float | None = None, shift: int = 0, form: Form = "hashed",
    noise: float = 1.0, gradient: Gradient = "linear", near: tuple[Tensor, Tensor] | None = None, **torch_only: Any,
) -> Outputs:  # fmt: skip
    """softmax(scale · q·k) over the last `window` keys, ANNA over all earlier ones, and one output of the two.

    Time and memory grow as n · window for the near part, and as those of `anna_attention` for the far part. Positions
    count, whether masked or not: query i is near the keys i - window + 1 … i, and without `is_causal` also i + 1 …
    i + window - 1. A query that meets no far key gets the near part alone, and the other way round.

    Args:
        query: its heads may be a multiple of the key's. The far part sees directions alone.
        key: as for `anna_attention`; NaN in one reaches queries near it on both sides, as it does in a value.
        value: as for `anna_attention`.
        hasher: one draw for all heads, or one per key head.
        window: 0 for the far part alone; from the number of keys on, it is softmax attention.
        is_causal: query i sees the keys up to its own position, the last query aligned with the last key.
        key_mask: True where a key takes part.
        documents: boundaries of the documents packed into the sequence, or a number per token, as for `anna_attention`.
        combine: "joined" puts the weights of both parts into one normalisation: e^(gate + scale·q·k) for a near key,
            c_ij/ℓ for a far one that shares c_ij of ℓ buckets. "gate" weighs their outputs by σ(gate) and 1 - σ(gate).
        gate: a number for all heads, or one per head; it may be trained.
        scale: of the near part's scores, 1/√dim unless given.
        shift: 0, or s: a query that meets the key of a far token reads the value of the token s places later. With 1 a
            head finds what looked like the current token and reads what followed. Causal only.
        form: what the far part does. "hashed" is ANNA, linear in n. "sampled" (with `noise`) and "expected" are the
            forms to train it by, see `sampled_collision_attention`; they take all pairs, so n² time and memory.
        noise: of the form "sampled".
        gradient: of the form "hashed", for queries and keys.
        near: queries and keys of the near part where they are others, rotated by their positions, say.
        torch_only: arguments of torch's scaled_dot_product_attention. An `attn_mask` that is a padding mask is taken as
            the key mask it is; the others are errors that say what to use.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(4).sample(tables=4, hashes=4, seed=0, heads=2)
    >>> q, k, v = torch.randn(3, 1, 2, 10, 4)
    >>> near = aa.window_attention(q, k, v, hasher, window=10, is_causal=True)
    >>> torch.testing.assert_close(near, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    >>> far = aa.window_attention(q, k, v, hasher, window=0, is_causal=True)
    >>> torch.equal(far, aa.anna_attention(q, k, v, hasher, is_causal=True))
    True
    """
    if torch_only:
        key_mask = torch_arguments(torch_only, key_mask, query, key)
    check_inputs(query, key, value, key_mask, is_causal=is_causal, hasher=hasher)
    window, shift = check_window(window, combine, scale, shift, is_causal=is_causal)
    require_choice("form", form, FORMS)
    own = packed(documents, query, key)
    near_query, near_key = (query, key) if near is None else check_near(near, query, key)
    close = band_softmax(
        near_query, near_key, value, window=window, scale=scale, is_causal=is_causal, key_mask=key_mask, documents=own
    )
    meet = _meeting(form, hasher, noise, gradient)
    far, mass = _far(query, _Tokens(key, value, key_mask, own), window, shift, is_causal, meet)
    if form == "sampled" and combine == "gate":
        # As in `sampled_collision_attention`: who meets less than one key reads less than one value's worth.
        far = far * (mass * hasher.tables).clamp(max=1)[..., None]
    return combined(close, far, mass, gate, combine).to(value.dtype)


def check_window(window: int, combine: str, scale: float | None, shift: int, *, is_causal: bool) -> tuple[int, int]:
    """Window and shift as Python integers; raises InputError unless all these describe a window."""
    window, shift = require_count("window", window, least=0), require_count("shift", shift, least=0)
    require_choice("combine", combine, COMBINE)
    if scale is not None:
        require_factor("scale", scale)
    if shift and not is_causal:
        raise InputError(
            "shift", given=shift, expected="0 without is_causal", hint="what follows a token is its future"
        )
    return window, shift


def check_near(near: tuple[Tensor, Tensor], query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of the near part; raises InputError unless they are as many and as wide as the others."""
    pair = list(near) if isinstance(near, tuple | list) else []
    if len(pair) != 2 or not all(isinstance(x, Tensor) for x in pair):
        raise InputError("near", given=type(near).__name__, expected="queries and keys, two tensors")
    for near_rows, rows in zip(pair, (query, key), strict=True):
        if near_rows.shape != rows.shape or near_rows.device != rows.device or near_rows.layout is not rows.layout:
            raise InputError("near", given="other shapes, layouts or devices", expected="those of query and key")
    return pair[0], pair[1]


def check_gate(gate: Tensor | float, heads: int) -> Tensor | float:
    """A number for all heads, or a tensor of one per head; raises InputError for anything else."""
    if not isinstance(gate, Tensor):
        return require_number("gate", gate, "a number, or a tensor of one per head")
    if gate.shape not in ((), (heads,)):
        raise InputError("gate", given=f"shape {tuple(gate.shape)}", expected=f"one number per head, ({heads},)")
    return gate


def combined(near: Partial, far: Tensor, mass: Tensor, gate: Tensor | float, combine: str) -> Tensor:
    """One output of the near part, and the far part with Σ_j c_ij/ℓ."""
    is_near, is_far = near.log_total > -torch.inf, mass > 0
    gate = check_gate(gate, near.mean.shape[1])
    if isinstance(gate, Tensor):
        gate = gate.to(near.mean.dtype)[..., None]
    logit = torch.zeros_like(near.log_total) + gate
    if combine == "joined":
        logit = logit + near.log_total.masked_fill(~is_near, 0) - mass.masked_fill(~is_far, 1).log()
    share = logit.masked_fill(~is_near, -torch.inf).masked_fill(~is_far, torch.inf).sigmoid()[..., None]
    return share * near.mean + (1 - share) * far


@dataclass(frozen=True)
class _Tokens:
    """What queries may meet."""

    key: Tensor
    value: Tensor
    mask: Tensor | None
    documents: Documents | None


Meet = Callable[[Tensor, _Tokens, bool], tuple[Tensor, Tensor]]
"""(query, tokens, is_causal) to the mean of what is met, and Σ_j c_ij/ℓ."""


def _meeting(form: str, hasher: Hasher, noise: float, gradient: Gradient) -> Meet:
    def hashed(query: Tensor, of: _Tokens, is_causal: bool) -> tuple[Tensor, Tensor]:
        mean, count = anna_mean(
            query, of.key, of.value, hasher, is_causal, of.mask, of.documents, gradient, counted=True
        )
        return mean, count.to(mean.dtype) / hasher.tables

    def sampled(query: Tensor, of: _Tokens, is_causal: bool) -> tuple[Tensor, Tensor]:
        value = of.value.to(accumulator(of.value.dtype))
        pairs = sampled_pairs(query, of.key, value, hasher, noise, is_causal, of.mask, of.documents)
        used = sampled_counts(pairs, hasher.tables, noise)
        mean = pairs.read(used, divisor=used.sum(-1, keepdim=True).clamp(min=torch.finfo(used.dtype).tiny))
        return mean, pairs.expected.total(used) / hasher.tables

    def expected(query: Tensor, of: _Tokens, is_causal: bool) -> tuple[Tensor, Tensor]:
        value = of.value.to(accumulator(of.value.dtype))
        pairs = expected_pairs(query, of.key, value, hasher.family, hasher.hashes, is_causal, of.mask, of.documents)
        return expected_mean(pairs), pairs.total(pairs.chances)

    return {"hashed": hashed, "sampled": sampled, "expected": expected}[form]


def _far(query: Tensor, tokens: _Tokens, window: int, shift: int, is_causal: bool, meet: Meet) -> tuple[Tensor, Tensor]:
    """What queries find among the keys at least `window` places away."""
    if not is_causal and window == 0:
        return meet(query, tokens, False)
    # The last query is aligned with the last key, so without the last w keys query i sees those up to i - w.
    mean, mass = meet(query, _without_last(tokens, window, shift), True)
    if is_causal:
        return mean, mass
    # The other side is the same seen from the end.
    other, more = meet(query.flip(2), _from_the_end(tokens, query.shape[2], window), True)
    return both_sides(mean, mass, other.flip(2), more.flip(2))


def both_sides(mean: Tensor, mass: Tensor, other: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of what two sets of keys gave, by their masses, and the mass of both."""
    both = mass + more
    share = (mass / both.masked_fill(both == 0, 1))[..., None]
    return share * mean + (1 - share) * other, both


def _without_last(tokens: _Tokens, window: int, shift: int) -> _Tokens:
    end = max(tokens.key.shape[2] - window, shift)
    keys, values = slice(0, end - shift), slice(shift, end)
    if window == 0 and shift == 0:
        return tokens
    mask, documents = tokens.mask, tokens.documents
    if mask is not None:
        mask = mask[:, keys] & mask[:, values]
    if documents is not None:
        if shift:  # nothing follows the last token of a document
            within = documents.key[:, keys] == documents.key[:, values]
            mask = within if mask is None else mask & within
        documents = Documents(documents.query, documents.key[:, keys], documents.most)
    return _Tokens(tokens.key[:, :, keys], tokens.value[:, :, values], mask, documents)


def _from_the_end(tokens: _Tokens, queries: int, window: int) -> _Tokens:
    """The tokens in reverse, so many that the first of `queries` reversed queries sees those a window before it."""
    m = tokens.key.shape[2]
    more = max(queries - window, 0) - m
    mask, documents = tokens.mask, tokens.documents
    if more > 0 and mask is None:
        mask = torch.ones(tokens.key.shape[0], m, dtype=torch.bool, device=tokens.key.device)
    key, value = (pad(x.flip(2), (0, 0, 0, more)) for x in (tokens.key, tokens.value))
    if documents is not None:
        documents = Documents(documents.query.flip(1), pad(documents.key.flip(1), (0, more)), documents.most)
    return _Tokens(key, value, None if mask is None else pad(mask.flip(1), (0, more)), documents)


def window_weights(
    query: Tensor,
    key: Tensor,
    seen: Tensor,
    *,
    hasher: Hasher,
    window: int,
    combine: str = "joined",
    gate: float = 0.0,
    scale: float | None = None,
    shift: int = 0,
) -> Tensor:
    """e^(gate + scale·q·k) on near keys, c_ij/ℓ on far ones, normalised together, or apart and weighed by the gate.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=2, hashes=1)
    >>> x = torch.ones(3, 1)
    >>> window_weights(x, x, reference.visible(3, 3, is_causal=True), hasher=hasher, window=1)
    tensor([[1.0000, 0.0000, 0.0000],
            [0.2689, 0.7311, 0.0000],
            [0.2119, 0.2119, 0.5761]], dtype=torch.float64)
    """
    n, m = len(query), len(key)
    scale = 1 / math.sqrt(query.shape[1]) if scale is None else scale
    near, far = torch.zeros(n, m, dtype=torch.float64), torch.zeros(n, m, dtype=torch.float64)
    counts = reference.collision_counts(query, key, hasher)
    for i in range(n):
        for j in range(m):
            distance = abs(i + m - n - j)
            if seen[i, j] and distance < window:
                near[i, j] = math.exp(scale * float(query[i].double() @ key[j].double()))
            if seen[i, j] and distance >= window and j >= shift and seen[i, j - shift]:
                far[i, j] = counts[i, j - shift] / hasher.tables
    if combine == "joined":
        return reference.normalised(math.exp(gate) * near + far)
    share = 1 / (1 + math.exp(-gate))
    return reference.normalised(share * reference.normalised(near) + (1 - share) * reference.normalised(far))


@dataclass(frozen=True)
class WindowConfig(TrainableConfig):
    """`window_attention` with one gate for all heads; `nn.AnnaAttention` learns one per head.

    >>> WindowConfig(window=64).combine
    'joined'
    """

    may_be_zero: ClassVar[tuple[str, ...]] = ("window", "shift")
    window: int = 32
    combine: Combine = "joined"
    gate: float = 0.0
    shift: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("combine", self.combine, COMBINE)

    def bind(self, head_dim: int, layer: int = 0, seed: int | None = None) -> Attend:
        """See `AttentionConfig`."""
        hasher = self.hasher(head_dim, layer, seed)

        def attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
            return window_attention(
                q, k, v, hasher, window=self.window, combine=self.combine, gate=self.gate, shift=self.shift,
                is_causal=is_causal, key_mask=mask, gradient=self.gradient,
            )  # fmt: skip

        return attend


MECHANISM = Mechanism(
    window_attention,
    window_weights,
    WindowConfig,
    lambda dim: {"hasher": Hyperplane(dim).sample(tables=8, hashes=4), "window": 2, "combine": "joined", "gate": 0.5},
)
