"""The tokens just before and after a rank's slice, from the ranks that hold them; differentiable."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from annattn.distributed.agreement import agree
from annattn.distributed.peers import Peers, cpu_by_default
from annattn.distributed.wire import pack, row_bytes, unpack
from annattn.kernels import in_own_dtypes

__all__ = ["with_neighbours"]


def with_neighbours(
    peers: Peers, tensors: Sequence[Tensor], lengths: Sequence[int], reach: tuple[int, int], doing: str
) -> list[Tensor]:
    """This rank's tensors (tokens, width) of any dtypes, each with `reach` tokens before and after it.

    Tokens outside of the whole sequence are zeros. Where the next slice is shorter than that, the ones behind it give
    theirs as well.
    """
    return list(_Neighbours.apply(peers, list(lengths), reach, doing, *tensors))


def _needed(lengths: list[int], reach: tuple[int, int]) -> list[list[slice]]:
    """[to][of]: which tokens of its own rank `of` has to give to rank `to`."""
    firsts = [sum(lengths[:rank]) for rank in range(len(lengths))]
    needed = []
    for to, (start, n) in enumerate(zip(firsts, lengths, strict=True)):
        row = []
        for of, (first, length) in enumerate(zip(firsts, lengths, strict=True)):
            low, high = (start - reach[0], start) if of < to else (start + n, start + n + reach[1])
            low, high = (min(max(edge - first, 0), length) for edge in (low, high))
            row.append(slice(low, high) if n and of != to else slice(0, 0))
        needed.append(row)
    return needed


def _length(part: slice) -> int:
    return part.stop - part.start


class _Neighbours(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, peers: Peers, lengths: list[int], reach: tuple[int, int], doing: str, *tensors: Tensor):
        ctx.peers, ctx.lengths, ctx.reach, ctx.doing = peers, lengths, reach, doing
        ctx.columns = columns = [(x.shape[1], x.dtype) for x in tensors]
        me, needed = peers.rank, _needed(lengths, reach)
        each = row_bytes(columns)
        out = [pack([x[needed[to][me]] for x in tensors]) for to in range(peers.size)]
        coming = [_length(part) for part in needed[me]]
        predicted = each * sum(_length(needed[to][me]) for to in range(peers.size))
        with peers.telling(doing), peers.predicting(doing, "neighbours", predicted):
            found = peers.exchange(out, [n * each for n in coming], doing)
        parts = [unpack(raw, n, columns) for raw, n in zip(found, coming, strict=True)]
        missing = reach[0] - sum(coming[:me]), reach[1] - sum(coming[me:])
        return tuple(
            torch.cat([
                x.new_zeros(missing[0], x.shape[1]), *(part[at] for part in parts[:me]), x,
                *(part[at] for part in parts[me:]), x.new_zeros(missing[1], x.shape[1]),
            ])
            for at, x in enumerate(tensors)
        )  # fmt: skip

    @staticmethod
    @torch.autograd.function.once_differentiable
    @cpu_by_default
    @in_own_dtypes
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        peers, me, (before, _) = ctx.peers, ctx.peers.rank, ctx.reach
        needed = _needed(ctx.lengths, ctx.reach)
        real = [at for at, (_, dtype) in enumerate(ctx.columns) if dtype.is_floating_point]
        columns = [ctx.columns[at] for at in real]
        each, doing = row_bytes(columns), f"the backward pass of {ctx.doing}"
        coming = [_length(part) for part in needed[me]]
        n = ctx.lengths[me]
        parts = []
        for of in range(peers.size):
            first = before - sum(coming[of:me]) if of < me else before + n + sum(coming[me:of])
            parts.append(pack([grads[at][first : first + coming[of]] for at in real]))
        lengths = [_length(needed[to][me]) for to in range(peers.size)]
        with peers.telling(doing):
            agree(peers, doing, {}, None)
            with peers.predicting(doing, "neighbours", each * sum(coming)):
                found = peers.exchange(parts, [length * each for length in lengths], doing)
        own: list[Tensor | None] = [None] * len(grads)
        for at in real:
            own[at] = grads[at][before : before + n].clone()
        for to, (raw, length) in enumerate(zip(found, lengths, strict=True)):
            for at, part in zip(real, unpack(raw, length, columns), strict=True):
                grad = own[at]
                assert grad is not None
                grad[needed[to][me]] += part
        return None, None, None, None, *own
