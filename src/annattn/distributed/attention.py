"""Attention over a sequence that is cut among the ranks of a process group: equal to that of one process."""

import json
from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.autograd import forward_ad

from annattn.attention.anna import Empty
from annattn.attention.inputs import accumulator, attention_call, check_hasher, check_inputs
from annattn.attention.mechanism import Gradient
from annattn.attention.shapes import KeyMask, Keys, Outputs, Packing, Queries, Values
from annattn.checks import require_choice, require_count, require_number
from annattn.distributed.agreement import agree, describe_hasher, describe_tensor
from annattn.distributed.codes import equal_row_codes, hashed_codes, own_documents, slices
from annattn.distributed.mean import WAYS, Plan, sharded_mean
from annattn.distributed.peers import Peers, cpu_by_default
from annattn.errors import InputError
from annattn.kernels import Order, transforms_active, wanted_gradient
from annattn.kernels.interface import Slope, slope_of
from annattn.lsh import Hasher

__all__ = [
    "PATIENCE",
    "Way",
    "anna_attention",
    "check_documents",
    "describe_documents",
    "describe_inputs",
    "exact_match_attention",
    "first_place",
    "latest_match_attention",
    "slope_wanted",
    "start",
]

Way = Literal["auto", "states", "members"]
PATIENCE = 600.0
"""Seconds a rank waits for one that neither answers nor ends."""
assert get_args(Way) == WAYS


@cpu_by_default
@attention_call
def anna_attention(
    query: Queries, key: Keys, value: Values, hasher: Hasher, *,
    group: dist.ProcessGroup | None = None,
    is_causal: bool = False, key_mask: KeyMask | None = None,
    documents: Packing | None = None, empty: Empty = "zero",
    gradient: Gradient = "linear", way: Way = "auto", patience: float = PATIENCE,
) -> Outputs:  # fmt: skip
    """`annattn.anna_attention` over the slices of all ranks; each gets the outputs of its own queries.

    Every rank calls it, with its slice of the sequence, in the order of the ranks. Slices may differ in length or be
    empty; all else has to be the same, which is made sure of before anything is exchanged. Gradients are those of one
    process, and every rank has to run the backward pass. The same number of ranks gives the same bits.

    Args:
        query: this rank's slice.
        key: this rank's slice; with `is_causal` of as many tokens as the queries.
        value: this rank's slice.
        hasher: the same on every rank: a seed makes it so.
        group: the ranks that hold the sequence; all by default. Of a device mesh, `mesh["context"].get_group()`.
        is_causal: query i of the whole sequence sees the keys up to its own position.
        key_mask: this rank's slice.
        documents: boundaries in the whole sequence, the same on every rank; or numbers of this rank's tokens, which
            mean the same document on every rank.
        empty: as for one process.
        gradient: as for one process. "exact" makes members travel in the backward pass.
        way: "states" exchanges what buckets hold, in bytes that do not depend on the length; "members" sends tokens to
            the owners of their buckets. "auto" takes whichever sends fewer bytes, in each pass.
        patience: seconds to wait for a rank that neither answers nor ends. One that ends, or raises in here, is noticed
            within ten seconds.
    """

    def described() -> dict[str, str]:
        check_inputs(query, key, value, key_mask, is_causal=is_causal, hasher=hasher)
        require_choice("empty", empty, ("zero", "nan"))
        require_choice("way", way, WAYS)
        if documents is not None:
            check_documents(documents, query)
        return {
            **describe_inputs(query, key, value),
            **describe_hasher(hasher),
            "is_causal": str(is_causal),
            "documents": "none" if documents is None else describe_documents(documents),
            "empty": empty,
            "way": way,
            "gradient": wanted_gradient(hasher, gradient, query, key),
        }

    calling = "anna_attention"
    peers, said = start(group, patience, calling, described)
    order = Order.CAUSAL if is_causal else Order.ALL
    with peers.telling(calling):
        cut = slices(peers, query, key, aligned=is_causal, doing=calling)
        own = None if documents is None else own_documents(peers, cut, documents, query, calling)
        codes = hashed_codes(peers, cut, hasher, query, key, key_mask, own, order, calling)
    plan = Plan(peers, order, slope_wanted(said["gradient"], hasher), False, way, calling)
    out, count = sharded_mean(query, key, value.to(accumulator(value.dtype)), codes, plan)
    if empty == "nan":
        out = out.masked_fill(count[..., None] == 0, torch.nan)
    return out.to(value.dtype)


@cpu_by_default
@attention_call
def exact_match_attention(
    query: Shaped[Tensor, "batch heads queries dim"],
    key: Shaped[Tensor, "batch key_heads keys dim"],
    value: Values,
    *,
    group: dist.ProcessGroup | None = None,
    is_causal: bool = False,
    key_mask: KeyMask | None = None,
    way: Way = "auto",
    patience: float = PATIENCE,
) -> Outputs:
    """`annattn.exact_match_attention` over the slices of all ranks; see `anna_attention` for what that means.

    Rows are numbered first: each distinct row goes once to the rank that owns it.
    """

    def described() -> dict[str, str]:
        check_inputs(query, key, value, key_mask, is_causal=is_causal)
        require_choice("way", way, WAYS)
        if query.dtype != key.dtype:
            raise InputError("key", given=key.dtype, expected=f"the query's {query.dtype}", hint="cast one of them")
        return {**describe_inputs(query, key, value), "is_causal": str(is_causal), "way": way}

    calling = "exact_match_attention"
    peers, _ = start(group, patience, calling, described)
    with peers.telling(calling):
        cut = slices(peers, query, key, aligned=is_causal, doing=calling)
        codes = equal_row_codes(peers, cut, query, key, key_mask, calling)
    plan = Plan(peers, Order.CAUSAL if is_causal else Order.ALL, None, False, way, calling)
    return sharded_mean(query.detach(), key.detach(), value.to(accumulator(value.dtype)), codes, plan)[0].to(
        value.dtype
    )


@cpu_by_default
@attention_call
def latest_match_attention(
    query: Queries,
    key: Keys,
    value: Values,
    hasher: Hasher,
    *,
    group: dist.ProcessGroup | None = None,
    key_mask: KeyMask | None = None,
    gradient: Gradient = "linear",
    patience: float = PATIENCE,
) -> Outputs:
    """`annattn.latest_match_attention` over the slices of all ranks; see `anna_attention` for what that means.

    Members always travel here: a sum does not tell which member is the newest.
    """

    def described() -> dict[str, str]:
        check_inputs(query, key, value, key_mask)
        check_hasher(hasher, key)
        wanted = wanted_gradient(hasher, gradient, query, key)
        return {**describe_inputs(query, key, value), **describe_hasher(hasher), "gradient": wanted}

    calling = "latest_match_attention"
    peers, said = start(group, patience, calling, described)
    with peers.telling(calling):
        cut = slices(peers, query, key, aligned=True, doing=calling)
        codes = hashed_codes(peers, cut, hasher, query, key, key_mask, None, Order.CAUSAL, calling)
    plan = Plan(peers, Order.CAUSAL, slope_wanted(said["gradient"], hasher), True, "auto", calling)
    return sharded_mean(query, key, value.to(accumulator(value.dtype)), codes, plan)[0].to(value.dtype)


@cpu_by_default
def first_place(n: int, *, group: dist.ProcessGroup | None = None, patience: float = PATIENCE) -> int:
    """Where this rank's slice of `n` tokens begins in the whole sequence: what its positions are counted from.

    Every rank calls it; slices follow each other in the order of the ranks.
    """

    def described() -> dict[str, str]:
        nonlocal n
        n = require_count("n", n, least=0)
        return {}

    calling = "first_place"
    peers, _ = start(group, patience, calling, described)
    with peers.telling(calling):
        lengths = peers.gather(torch.tensor([n], device=peers.device), calling)[:, 0].tolist()
    return sum(lengths[: peers.rank])


def start(
    group: dist.ProcessGroup | None,
    patience: float,
    calling: str,
    described: Callable[[], dict[str, str]],
) -> tuple[Peers, dict[str, str]]:
    """The ranks, once they agree on what they are called with."""
    peers = Peers(group, PATIENCE)
    with peers.telling(calling):
        _refuse_transforms()
    said: dict[str, str] = {}
    error = None
    try:
        peers.patience = require_number("patience", patience, "a number of seconds above 0", low=1e-3)
        said = described()
    except Exception as found:  # told to all ranks, then raised
        error = found
    agree(peers, calling, said, error)
    return peers, said


def _refuse_transforms() -> None:
    """Ranks cannot exchange what a transform of torch has wrapped, so this is not even agreed on."""
    if transforms_active() or forward_ad._current_level >= 0:
        raise InputError(
            "attention",
            given="a call inside torch.func (grad, vjp, jvp, vmap) or forward-mode AD",
            expected="a call outside of them",
            hint="use torch.autograd.grad or backward() for gradients, and the batch for many inputs",
        )


def describe_inputs(query: Tensor, key: Tensor, value: Tensor) -> dict[str, str]:
    """What ranks have to have alike in their slices."""
    if query.is_meta:
        raise InputError("query", given="a tensor on the device meta", expected="numbers to exchange")
    wanted = [x.requires_grad and torch.is_grad_enabled() for x in (query, key, value)]
    return {
        "query": describe_tensor(query),
        "key": describe_tensor(key),
        "value": describe_tensor(value),
        "gradients wanted of query, key and value": str(wanted),
    }


def slope_wanted(wanted: str, hasher: Hasher) -> Slope | None:
    """The weight of a pair in the gradient that queries and keys get, or None."""
    return None if wanted == "none" else slope_of(wanted, hasher.spec)


def check_documents(documents: Tensor, query: Tensor) -> None:
    """Raise InputError unless these are boundaries, or a number per token."""
    if not isinstance(documents, Tensor) or documents.dtype not in (torch.int64, torch.int32):
        given = documents.dtype if isinstance(documents, Tensor) else type(documents).__name__
        raise InputError("documents", given=given, expected="a tensor of integers")
    wanted = (query.shape[0], query.shape[2])
    if documents.ndim != 1 and tuple(documents.shape) != wanted:
        raise InputError(
            "documents",
            given=f"shape {tuple(documents.shape)}",
            expected=f"boundaries (documents + 1,) of the whole sequence, or a number per token of the slice {wanted}",
        )


def describe_documents(documents: Tensor) -> str:
    """Boundaries must be the same everywhere; numbers are of a rank's own tokens."""
    return "numbers" if documents.ndim > 1 else f"boundaries {json.dumps(documents.tolist())}"
