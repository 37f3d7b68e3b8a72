"""A decode step on dense tables in one compiled call each: Python around it would cost more than the step itself."""

import numpy as np
import torch
from torch import Tensor

from annattn.kernels.compiled import kernel, say_if_slow
from annattn.kernels.numba_backend import hash_rows
from annattn.lsh import Hasher

__all__ = ["dense_append", "dense_attend"]

_NO_MASK = np.ones((1, 1), np.bool_)


def dense_append(
    hasher: Hasher,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    table: Tensor,
    tally: Tensor,
    lost: Tensor,
    lengths: Tensor,
    *,
    newest: bool,
) -> None:
    """Put new tokens into dense tables (1 + batch · heads · tables · buckets, width), the first row nobody's."""
    codes = hash_rows(hasher, key)
    values = (value.float() if value.dtype.itemsize < 4 else value).contiguous().numpy()
    mask = _NO_MASK if key_mask is None else key_mask.contiguous().numpy()
    with say_if_slow("append", values.dtype):
        _append(
            codes.numpy(), values, mask, key_mask is not None, hasher.buckets, table.numpy(), tally.numpy(),
            lost.numpy(), lengths.numpy(), newest,
        )  # fmt: skip


def dense_attend(
    hasher: Hasher, query: Tensor, heads: int, table: Tensor, tally: Tensor, lost: Tensor, dtype: torch.dtype
) -> Tensor:
    """The mean of what each query finds there."""
    codes = hash_rows(hasher, query)
    wide = dtype if dtype.itemsize >= 4 else torch.float32
    out = torch.empty(*query.shape[:3], table.shape[-1], dtype=wide)
    with say_if_slow("attend", wide):
        _attend(codes.numpy(), heads, hasher.buckets, table.numpy(), tally.numpy(), lost.numpy(), out.numpy())
    return out.to(dtype)


@kernel
def _append(codes, value, mask, masked, buckets, table, tally, lost, lengths, newest):
    batch, heads, rows, tables = codes.shape
    width = table.shape[1]
    for b in range(batch):
        for row in range(rows):
            if masked and not mask[b, row]:
                continue
            lengths[b] += 1
            for head in range(heads):
                if codes[b, head, row, 0] < 0:
                    lost[b, head] = True
                    continue
                for t in range(tables):
                    slot = 1 + ((b * heads + head) * tables + t) * buckets + codes[b, head, row, t]
                    if newest:
                        tally[slot] = 1
                        for k in range(width):
                            table[slot, k] = value[b, head, row, k]
                    else:
                        tally[slot] += 1
                        for k in range(width):
                            table[slot, k] += value[b, head, row, k]


@kernel
def _attend(codes, heads, buckets, table, tally, lost, out):
    batch, query_heads, rows, tables = codes.shape
    share = query_heads // heads
    width = table.shape[1]
    total = np.empty(width)
    for b in range(batch):
        for query_head in range(query_heads):
            head = query_head // share
            for row in range(rows):
                if lost[b, head] or codes[b, query_head, row, 0] < 0:
                    out[b, query_head, row] = np.nan
                    continue
                total[:] = 0
                count = 0
                for t in range(tables):
                    slot = 1 + ((b * heads + head) * tables + t) * buckets + codes[b, query_head, row, t]
                    count += tally[slot]
                    for k in range(width):
                        total[k] += table[slot, k]
                for k in range(width):
                    out[b, query_head, row, k] = total[k] / max(count, 1)
