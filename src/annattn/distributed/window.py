"""Softmax over the tokens near a query and ANNA over all others, over a sequence that is cut among ranks."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from annattn.attention.band import band_softmax
from annattn.attention.inputs import accumulator, attention_call, check_inputs
from annattn.attention.mechanism import Gradient
from annattn.attention.packed import Documents
from annattn.attention.partial_softmax import Partial
from annattn.attention.shapes import KeyMask, Keys, Outputs, Packing, Queries, Values
from annattn.attention.window import Combine, both_sides, check_near, check_window, combined
from annattn.checks import require_choice
from annattn.distributed.agreement import describe_hasher, describe_tensor
from annattn.distributed.attention import (
    PATIENCE,
    Way,
    check_documents,
    describe_documents,
    describe_inputs,
    slope_wanted,
    start,
)
from annattn.distributed.codes import Slices, hashed_codes, own_documents, slices
from annattn.distributed.mean import WAYS, Plan, sharded_mean
from annattn.distributed.neighbours import with_neighbours
from annattn.distributed.peers import FromTheEnd, Peers, cpu_by_default
from annattn.kernels import Order, wanted_gradient
from annattn.lsh import Hasher

__all__ = ["window_attention"]

_CALLING = "window_attention"


@cpu_by_default
@attention_call
def window_attention(
    query: Queries, key: Keys, value: Values, hasher: Hasher, *,
    window: int, group: dist.ProcessGroup | None = None, is_causal: bool = False,
    key_mask: KeyMask | None = None, documents: Packing | None = None, combine: Combine = "joined",
    gate: Float[Tensor, " heads"] | float = 0.0, scale: float | None = None, shift: int = 0,
    gradient: Gradient = "linear", near: tuple[Tensor, Tensor] | None = None, way: Way = "auto",
    patience: float = PATIENCE,
) -> Outputs:  # fmt: skip
    """`annattn.window_attention` with form="hashed" over the slices of all ranks.

    See `anna_attention` for what that means. A rank is sent the last `window` + `shift` tokens before its slice, and
    without `is_causal` the first `window` after it: by the rank next to it or, where slices are shorter than that, by
    several. A gate that is trained gets this rank's part of its gradient, as any other weight does.
    """
    gate_shape = str(tuple(gate.shape)) if isinstance(gate, Tensor) else str(gate)

    def described() -> dict[str, str]:
        check_inputs(query, key, value, key_mask, hasher=hasher)
        nonlocal window, shift
        window, shift = check_window(window, combine, scale, shift, is_causal=is_causal)
        require_choice("way", way, WAYS)
        if documents is not None:
            check_documents(documents, query)
        if near is not None:
            check_near(near, query, key)
        return {
            **describe_inputs(query, key, value),
            **describe_hasher(hasher),
            "window": str(window),
            "is_causal": str(is_causal),
            "documents": "none" if documents is None else describe_documents(documents),
            "combine": combine,
            "gate": gate_shape,
            "scale": str(scale),
            "shift": str(shift),
            "near": "none" if near is None else str([(describe_tensor(x), x.requires_grad) for x in near]),
            "way": way,
            "gradient": wanted_gradient(hasher, gradient, query, key),
        }

    peers, said = start(group, patience, _CALLING, described)
    with peers.telling(_CALLING):
        cut = slices(peers, query, key, aligned=True, doing=_CALLING)
        own = None if documents is None else own_documents(peers, cut, documents, query, _CALLING)
    window, shift = (min(places, sum(cut.keys)) for places in (window, shift))  # no two tokens are further apart
    near_query, near_key = (query, None) if near is None else near
    mask = torch.ones(key.shape[0], key.shape[2], dtype=torch.bool, device=key.device) if key_mask is None else key_mask
    tokens = _Tokens(key, value.to(accumulator(value.dtype)), near_key, mask, own)
    tokens = tokens.with_neighbours(peers, cut, (window + shift, 0 if is_causal else window))
    close = tokens.part(shift, None).near(near_query, window, scale, is_causal)

    def meet(ranks: Peers, order: Order, found: _Tokens, query: Tensor, what: str) -> tuple[Tensor, Tensor]:
        lengths = cut if ranks is peers else cut.from_the_end()
        with peers.telling(what):
            codes = hashed_codes(ranks, lengths, hasher, query, found.key, found.mask, found.documents, order, what)
        plan = Plan(ranks, order, slope_wanted(said["gradient"], hasher), False, way, what)
        mean, count = sharded_mean(query, found.key, found.value, codes, plan, counted=True)
        return mean, count.to(mean.dtype) / hasher.tables

    # The token at its own place is one a window before, or after, its query: all it sees of these are far.
    n, order = query.shape[2], Order.ALL if not is_causal and window == 0 else Order.CAUSAL
    far, mass = meet(peers, order, tokens.part(0, n, later=shift), query, _CALLING)
    if order == Order.CAUSAL and not is_causal:
        after = tokens.part(2 * window, 2 * window + n).flipped()
        what = f"{_CALLING}, the tokens after"
        other, more = meet(FromTheEnd(peers), order, after, query.flip(2), what)
        far, mass = both_sides(far, mass, other.flip(2), more.flip(2))
    return combined(close, far, mass, gate, combine).to(value.dtype)


@dataclass(frozen=True)
class _Tokens:
    """Consecutive tokens: their keys, values, keys of the near part if those are others, and which take part.

    `documents` has the numbers of this rank's queries and of these tokens.
    """

    key: Tensor
    value: Tensor
    near_key: Tensor | None
    mask: Tensor
    documents: Documents | None

    def with_neighbours(self, peers: Peers, cut: Slices, reach: tuple[int, int]) -> "_Tokens":
        """These and so many before and after them; those outside of the whole sequence take no part."""
        own = self.documents
        # Everything a token is, in one row per token, so that one exchange brings all of it.
        about = torch.stack([self.mask.long(), torch.zeros_like(self.mask.long()) if own is None else own.key], -1)
        carried = [self.key, self.value] if self.near_key is None else [self.key, self.value, self.near_key]
        rows = [x.permute(2, 0, 1, 3).flatten(1) for x in carried]
        doing = f"{_CALLING}, exchange of neighbours"
        longer = with_neighbours(peers, [*rows, about.transpose(0, 1).flatten(1)], cut.keys, reach, doing)
        key, value, *near = (
            x.unflatten(1, (like.shape[0], like.shape[1], like.shape[3])).permute(1, 2, 0, 3)
            for x, like in zip(longer, carried, strict=False)
        )
        there, numbers = longer[-1].unflatten(1, (-1, 2)).transpose(0, 1).unbind(-1)
        documents = None if own is None else Documents(own.query, numbers, own.most)
        return _Tokens(key, value, near[0] if near else None, there.bool(), documents)

    def part(self, start: int, stop: int | None, later: int = 0) -> "_Tokens":
        """The tokens from `start` to `stop`, each with the value of the token `later` places after it."""
        keys, values = slice(start, stop), slice(start + later, None if stop is None else stop + later)
        mask, own = self.mask[:, keys] & self.mask[:, values], self.documents
        if own is not None:
            if later:  # nothing follows the last token of a document
                mask = mask & (own.key[:, keys] == own.key[:, values])
            own = Documents(own.query, own.key[:, keys], own.most)
        near_key = None if self.near_key is None else self.near_key[:, :, keys]
        return _Tokens(self.key[:, :, keys], self.value[:, :, values], near_key, mask, own)

    def flipped(self) -> "_Tokens":
        """The last one first, and the queries too."""
        own = self.documents
        if own is not None:
            own = Documents(own.query.flip(1), own.key.flip(1), own.most)
        return _Tokens(self.key.flip(2), self.value.flip(2), None, self.mask.flip(1), own)

    def near(self, query: Tensor, window: int, scale: float | None, is_causal: bool) -> Partial:
        """Softmax over the tokens less than `window` places from each query; there are `window` on each side."""
        n, own = query.shape[2], self.documents
        if not is_causal:  # the last query is aligned with the last token: as many more queries, whose answers go
            query = pad(query, (0, 0, 0, window))
            own = None if own is None else Documents(pad(own.query, (0, window)), own.key, own.most)
        key = self.key if self.near_key is None else self.near_key
        found = band_softmax(
            query, key, self.value, window=window, scale=scale, is_causal=is_causal, key_mask=self.mask, documents=own
        )
        return Partial(found.mean[:, :, :n], found.log_total[:, :, :n])
