"""The tokens just before a rank's slice, from the ranks that hold them; differentiable."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from annattn.distributed.agreement import agree
from annattn.distributed.peers import Peers
from annattn.distributed.wire import pack, row_bytes, unpack

__all__ = ["with_tokens_before"]


def with_tokens_before(
    peers: Peers, tensors: Sequence[Tensor], lengths: Sequence[int], reach: int, doing: str
) -> list[Tensor]:
    """This rank's tensors (tokens, width) of any dtypes, each preceded by the `reach` tokens before it.

    Tokens before the first of the whole sequence are zeros. A rank that holds fewer tokens than `reach` passes on those
    of the ranks before it as well.
    """
    return list(_TokensBefore.apply(peers, list(lengths), reach, doing, *tensors))


def _needed(peers: Peers, lengths: list[int], reach: int) -> list[list[tuple[int, int]]]:
    """[to][of]: which tokens of its own (from, up to) rank `of` has to give to rank `to`."""
    firsts = [sum(lengths[:rank]) for rank in range(len(lengths))]
    needed = []
    for to in range(peers.size):
        low, high = firsts[to] - reach, firsts[to]
        edges = [(max(low, first), min(high, first + n)) for first, n in zip(firsts, lengths, strict=True)]
        needed.append([
            (start - first, end - first) if start < end and lengths[to] and of < to else (0, 0)
            for of, ((start, end), first) in enumerate(zip(edges, firsts, strict=True))
        ])  # fmt: skip
    return needed


class _TokensBefore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, peers: Peers, lengths: list[int], reach: int, doing: str, *tensors: Tensor):
        ctx.peers, ctx.lengths, ctx.reach, ctx.doing = peers, lengths, reach, doing
        ctx.shapes = [(x.shape[1], x.dtype) for x in tensors]
        me, needed = peers.rank, _needed(peers, lengths, reach)
        columns = [(x.shape[1], x.dtype) for x in tensors]
        each = row_bytes(columns)
        out = [pack([x[slice(*needed[to][me])] for x in tensors]) for to in range(peers.size)]
        coming = [end - start for start, end in needed[me]]
        predicted = each * sum(needed[to][me][1] - needed[to][me][0] for to in range(peers.size))
        with peers.telling(doing), peers.predicting(doing, "neighbours", predicted):
            found = peers.exchange(out, [n * each for n in coming], doing)
        parts = [unpack(raw, n, columns) for raw, n in zip(found, coming, strict=True)]
        missing = reach - sum(coming)
        return tuple(
            torch.cat([x.new_zeros(missing, x.shape[1]), *(part[at] for part in parts), x])
            for at, x in enumerate(tensors)
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        peers, me, reach = ctx.peers, ctx.peers.rank, ctx.reach
        needed = _needed(peers, ctx.lengths, reach)
        real = [at for at, (_, dtype) in enumerate(ctx.shapes) if dtype.is_floating_point]
        columns = [ctx.shapes[at] for at in real]
        each, doing = row_bytes(columns), f"the backward pass of {ctx.doing}"
        coming = [end - start for start, end in needed[me]]
        first = reach - sum(coming)
        device = grads[real[0]].device
        parts = []
        for n in coming:
            parts.append(pack([grads[at][first : first + n] for at in real]))
            first += n
        lengths = [needed[to][me][1] - needed[to][me][0] for to in range(peers.size)]
        with peers.telling(doing):
            agree(peers, doing, {}, None, device)
            with peers.predicting(doing, "neighbours", each * sum(coming)):
                found = peers.exchange(parts, [n * each for n in lengths], doing)
        own: list[Tensor | None] = [None] * len(grads)
        for at in real:
            own[at] = grads[at][reach:].clone()
        for to, (raw, n) in enumerate(zip(found, lengths, strict=True)):
            for at, part in zip(real, unpack(raw, n, columns), strict=True):
                grad = own[at]
                assert grad is not None
                grad[slice(*needed[to][me])] += part
        return None, None, None, None, *own
