"""Tables that live on, as a decode cache holds them: filled and read in one compiled call each.

A decode step is shorter than the Python around it, so all tables of all heads are done in one go.
"""

import numpy as np
import torch
from torch import Tensor

from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.threads import run_pieces

__all__ = ["fill_tables", "read_tables"]


def fill_tables(sums: Tensor, counts: Tensor, slots: Tensor, value: Tensor, keep_newest: bool) -> None:
    """Put rows into their slots: see `Backend.fill_tables`."""
    values = (value.float() if value.dtype.itemsize < 4 else value).detach().contiguous().numpy()
    rows = slots.contiguous().numpy().reshape(-1, slots.shape[-1])
    run_pieces(
        lambda _: _fill(rows, values.reshape(-1, values.shape[-1]), sums.numpy(), counts.numpy(), keep_newest),
        1,
        "fill",
        values.dtype,
    )


def read_tables(sums: Tensor, counts: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """What lies in the slots, added up: see `Backend.read_tables`."""
    total = torch.empty(*slots.shape[:3], sums.shape[-1], dtype=sums.dtype)
    count = torch.empty(slots.shape[:3], dtype=counts.dtype)
    rows = slots.contiguous().numpy().reshape(-1, slots.shape[-1])
    run_pieces(
        lambda _: _read(
            rows, sums.numpy(), counts.numpy(), total.numpy().reshape(-1, sums.shape[-1]), count.numpy().reshape(-1)
        ),
        1,
        "read",
        sums.dtype,
    )
    return total, count


@kernel
def _fill(slots, value, sums, counts, keep_newest):
    rows, tables = slots.shape
    width = sums.shape[1]
    for row in range(rows):
        for t in range(tables):
            slot = slots[row, t]
            if slot == 0:
                continue
            if keep_newest:
                counts[slot] = 1
                for k in range(width):
                    sums[slot, k] = value[row, k]
            else:
                counts[slot] += 1
                for k in range(width):
                    sums[slot, k] += value[row, k]


@kernel
def _read(slots, sums, counts, total, count):
    rows, tables = slots.shape
    width = sums.shape[1]
    for row in range(rows):
        into = total[row]
        into[:] = 0
        met = np.int64(0)
        for t in range(tables):
            slot = slots[row, t]
            met += counts[slot]
            for k in range(width):
                into[k] += sums[slot, k]
        count[row] = met
