"""A band of softmax attention on CPUs: torch's fused attention computes the blocks, and the gradient is written out."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from annattn.attention.band_blocks import Band
from annattn.attention.packed import Documents
from annattn.kernels import in_own_dtypes

__all__ = ["FusedBand", "fused_runs"]

_BLOCK = 32  # queries per block: a larger block looks at more keys outside of the band
_BLOCK_BACK, _WIDE_BLOCK_BACK = 64, 128  # in the backward pass, whose five products are worth larger matrices
_WIDE = 192  # the window from which the second pays
_SCORES = 2**20  # computed at a time, so that they stay near the processor

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def fused_runs(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether nobody traces or transforms the call, and torch has a fused attention for it."""
    return (
        query.device.type == "cpu"
        and query.dtype == key.dtype == value.dtype
        and query.shape[-1] == value.shape[-1]
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and all(type(x) in (Tensor, torch.nn.Parameter) for x in (query, key, value))
    )


class FusedBand(torch.autograd.Function):
    """(query, key, value, band, scale, key_mask, documents) to outputs and log-sums, as `band_softmax` defines them.

    Masked keys and values are zero already. The gradient is made of differentiable operations, so there is a second.
    """

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        band: Band,
        scale: float,
        key_mask: Tensor | None,
        documents: Documents | None,
    ) -> tuple[Tensor, Tensor]:
        """Blocks are the batch of one fused call per mask: one for all rows, or one per row of the batch."""
        # The kernel takes it that the numbers of a row stand side by side, and does not look.
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        blocks, (batch, heads, n, dim) = band.cut(_BLOCK), query.shape
        share = heads // key.shape[1]
        seen = blocks.seen(key_mask, documents, query.device)
        mask = query.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        # Query heads that share keys are more queries of one block: (rows · key heads, blocks, share · block, dim).
        mask = mask.repeat(1, 1, share, 1) if share > 1 else mask
        queries = blocks.of_queries(query.flatten(0, 1))
        if share > 1:
            queries = queries.unflatten(0, (-1, share)).transpose(1, 2).flatten(2, 3)
        keys, values = (blocks.of_keys(x.flatten(0, 1)) for x in (key, value))
        step = len(keys) // len(mask)
        found = [
            _attend(
                *(x[at * step : (at + 1) * step].transpose(0, 1) for x in (queries, keys, values)),
                attn_mask=one[:, None], scale=scale,
            )
            for at, one in enumerate(mask)
        ]  # fmt: skip
        out, level = (torch.cat(each, 1) if len(found) > 1 else each[0] for each in zip(*found, strict=True))
        out = out.unflatten(2, (share, -1)).permute(1, 2, 0, 3, 4).reshape(batch, heads, -1, dim)[:, :, :n]
        level = level.unflatten(2, (share, -1)).permute(1, 2, 0, 3).reshape(batch, heads, -1)[:, :, :n].to(query.dtype)
        lonely = ~seen.any(-1).flatten(1)[:, None, :n]
        return out, level.masked_fill(lonely, -torch.inf)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the gradient needs."""
        query, key, value, ctx.band, ctx.scale, ctx.key_mask, ctx.documents = inputs
        ctx.save_for_backward(query, key, value, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    @in_own_dtypes
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """With w the weights, g and h the gradients of output and log-sum: ds_ij = w_ij (g_i·(v_j − out_i) + h_i)."""
        query, key, value, out, level = ctx.saved_tensors
        g, h = grads
        g = torch.zeros_like(out) if g is None else g
        push = -(g * out).sum(-1) if h is None else h - (g * out).sum(-1)
        block = _WIDE_BLOCK_BACK if ctx.band.window + ctx.band.ahead >= _WIDE else _BLOCK_BACK
        blocks, (batch, heads, n, _) = ctx.band.cut(block), query.shape
        share, key_heads = heads // key.shape[1], key.shape[1]
        seen = blocks.seen(ctx.key_mask, ctx.documents, query.device)

        def rows(x: Tensor) -> Tensor:  # (batch · key heads, blocks, share · block, width)
            x = blocks.of_queries(x.flatten(0, 1)).unflatten(0, (-1, share))
            return x.transpose(1, 2).flatten(2, 3)

        queries, g, push = rows(query * ctx.scale), rows(g), rows(push[..., None])
        level = rows(level.masked_fill(level == -torch.inf, 0)[..., None])
        keys, values = (blocks.of_keys(x.flatten(0, 1)) for x in (key, value))
        shift = query.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        step = max(1, _SCORES // (batch * heads * blocks.block * blocks.span))
        for start in range(0, blocks.count, step):
            at = slice(start, start + step)
            # Copied once here, and not by each product that needs them side by side.
            q, k, v, up = (x[:, at].contiguous() for x in (queries, keys, values, g))
            scores = torch.matmul(q, k.mT).sub_(level[:, at])
            as_masked = scores.view(batch, key_heads, -1, share, *shift.shape[2:])
            as_masked += shift[:, None, at, None]
            weights = scores.exp_()
            slope = torch.matmul(up, v.mT).add_(push[:, at]).mul_(weights)
            found.append((torch.matmul(slope, k), torch.matmul(slope.mT, q), torch.matmul(weights.mT, up)))
        of_query, of_key, of_value = (torch.cat(each, 1) for each in zip(*found, strict=True))
        of_query = (of_query * ctx.scale).unflatten(2, (share, -1)).transpose(1, 2).flatten(2, 3)[:, :, :n]
        of_key, of_value = (blocks.sum_of_keys(x).view_as(like) for x, like in ((of_key, key), (of_value, value)))
        return of_query.reshape(query.shape), of_key, of_value, None, None, None, None
