"""Softmax over the last tokens and ANNA over all before, over a sequence that is cut among ranks."""

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from annattn.attention.band import band_softmax
from annattn.attention.inputs import accumulator, check_inputs
from annattn.attention.mechanism import Gradient
from annattn.attention.packed import Documents
from annattn.attention.shapes import KeyMask, Keys, Outputs, Packing, Queries, Values
from annattn.attention.window import Combine, check_window, combined
from annattn.checks import require_choice
from annattn.distributed.agreement import describe_hasher
from annattn.distributed.attention import (
    PATIENCE,
    Way,
    check_documents,
    describe_documents,
    describe_inputs,
    slope_wanted,
    start,
)
from annattn.distributed.codes import hashed_codes, own_documents, slices
from annattn.distributed.mean import WAYS, Plan, sharded_mean
from annattn.distributed.neighbours import with_tokens_before
from annattn.errors import InputError
from annattn.kernels import Order, wanted_gradient
from annattn.lsh import Hasher

__all__ = ["window_attention"]


def window_attention(
    query: Queries, key: Keys, value: Values, hasher: Hasher, *,
    window: int, group: dist.ProcessGroup | None = None, key_mask: KeyMask | None = None,
    documents: Packing | None = None, combine: Combine = "gate",
    gate: Float[Tensor, " heads"] | float = 0.0, scale: float | None = None, shift: int = 0,
    gradient: Gradient = "linear", near: tuple[Tensor, Tensor] | None = None, way: Way = "auto",
    patience: float = PATIENCE,
) -> Outputs:  # fmt: skip
    """`annattn.window_attention` with is_causal=True and form="hashed" over the slices of all ranks.

    See `anna_attention` for what that means. A rank is sent the last `window` + `shift` tokens before its slice, by the
    rank before it or, where slices are shorter than that, by several. A gate that is trained gets this rank's part of
    its gradient, as any other weight does.
    """
    gate_shape = str(tuple(gate.shape)) if isinstance(gate, Tensor) else str(gate)

    def described() -> dict[str, str]:
        check_inputs(query, key, value, key_mask, hasher=hasher)
        check_window(window, combine, scale, shift, is_causal=True)
        require_choice("way", way, WAYS)
        if documents is not None:
            check_documents(documents, query)
        if near is not None and (near[0].shape != query.shape or near[1].shape != key.shape):
            raise InputError("near", given="other shapes", expected="those of query and key")
        return {
            **describe_inputs(query, key, value),
            **describe_hasher(hasher),
            "window": str(window),
            "documents": "none" if documents is None else describe_documents(documents),
            "combine": combine,
            "gate": gate_shape,
            "scale": str(scale),
            "shift": str(shift),
            "near": str(near is not None),
            "way": way,
            "gradient": wanted_gradient(hasher, gradient, query, key),
        }

    calling = "window_attention"
    peers, said = start(group, patience, calling, described, query)
    dtype = accumulator(value.dtype)
    near_query, near_key = (query, key) if near is None else near
    with peers.telling(calling):
        cut = slices(peers, query, key, is_causal=True, doing=calling)
        own = None if documents is None else own_documents(peers, cut, documents, query, calling)
    batch, heads, n = key.shape[:3]
    reach = int(window) + int(shift)
    # Everything a token is, in one row per token, so that one exchange brings all of it; the last column says that it
    # is there, and is zero before the sequence begins.
    there = torch.ones(batch, n, dtype=torch.bool, device=key.device) if key_mask is None else key_mask
    about = torch.stack([there.long(), torch.zeros_like(there, dtype=torch.int64) if own is None else own.key], -1)
    rows = [x.transpose(1, 2).transpose(0, 1).flatten(1) for x in (near_key, key, value.to(dtype))]
    rows.append(about.transpose(0, 1).flatten(1))
    longer = with_tokens_before(peers, rows, cut.keys, reach, f"{calling}, exchange of the tokens before")
    near_keys, keys, values = (
        x.reshape(reach + n, batch, heads, width).permute(1, 2, 0, 3)
        for x, width in zip(longer[:3], (near_key.shape[3], key.shape[3], value.shape[3]), strict=True)
    )
    about = longer[3].reshape(reach + n, batch, 2).transpose(0, 1)
    kept, numbers = about[..., 0].bool(), about[..., 1]
    tokens = slice(shift, None)  # the last `window` before the slice, and the slice
    close = band_softmax(
        near_query, near_keys[:, :, tokens], values[:, :, tokens], window=window, scale=scale, key_mask=kept[:, tokens],
        documents=None if own is None else Documents(own.query, numbers[:, tokens], own.most),
    )  # fmt: skip
    far_keys, far_values = slice(0, n), slice(shift, shift + n)
    mask = kept[:, far_keys] & kept[:, far_values]
    if own is not None and shift:  # nothing follows the last token of a document
        mask = mask & (numbers[:, far_keys] == numbers[:, far_values])
    far_own = None if own is None else Documents(own.query, numbers[:, far_keys], own.most)
    with peers.telling(calling):
        key_far = keys[:, :, far_keys]
        codes = hashed_codes(peers, cut, hasher, query, key_far, mask, far_own, Order.CAUSAL, calling)
    plan = Plan(peers, Order.CAUSAL, slope_wanted(said["gradient"], hasher), False, way, calling)
    far, count = sharded_mean(query, key_far, values[:, :, far_values], codes, plan, counted=True)
    return combined(close, far, count.to(far.dtype) / hasher.tables, gate, combine).to(value.dtype)
