"""The bucket operations on a CPU: what is compiled, and what is not."""

import numpy as np
import torch
from torch import Tensor

from annattn.kernels.codes import nan_targets
from annattn.kernels.interface import NO_BAND, Backend, Call, GradientInputs, SumInputs
from annattn.kernels.numba import hashing, memory
from annattn.kernels.numba.few_rows import FewRows
from annattn.kernels.numba.gradient import constant_gradient, newest_gradient
from annattn.kernels.numba.newest import newest, newest_mean, newest_value_gradient
from annattn.kernels.numba.numbering import equal_rows
from annattn.kernels.numba.sums import bucket_sums, divide_rows
from annattn.kernels.numba.tables import NumbaTables
from annattn.kernels.overflow import gradient_in_range
from annattn.kernels.tables import Layout, Tables
from annattn.lsh import CrossPolytope, Hasher, Hyperplane

__all__ = ["NumbaBackend"]


_DTYPES = (torch.float32, torch.float64)


class NumbaBackend(Backend):
    """Compiled loops over threads that release the GIL; results are the same to the bit for any number of them."""

    def unsupported_reasons(self, call: Call) -> list[str]:
        """See `Backend`."""
        reasons = []
        if call.device.type != "cpu":
            reasons.append(f"tensors are on {call.device}, not on the CPU")
        if call.dtype not in _DTYPES and call.operation not in ("hash", "equal_rows", "newest"):
            reasons.append(f"sums of {call.dtype} are not compiled: only of float32 and float64")
        if call.operation == "band":
            reasons.append(NO_BAND)
        if call.operation == "hash":
            # Not isinstance: a subclass may hash in its own way.
            if type(call.family) not in (Hyperplane, CrossPolytope):
                reasons.append(f"{call.family} is not compiled: only Hyperplane and CrossPolytope are")
            if call.buckets is None:
                reasons.append(f"{call.hashes} hashes do not fit one code of 63 bits")
        if call.slope is not None and call.slope.constant is None:
            reasons.append('gradient="exact" weighs each pair by its cosine, and only constant weights are compiled')
        return reasons

    def hash_rows(self, hasher: Hasher, rows: Tensor) -> Tensor:
        """See `Backend`."""
        return hashing.hash_rows(hasher, rows)[0]

    def hash_pair(self, hasher: Hasher, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        query_codes, key_codes = hashing.hash_rows(hasher, query, key)
        return query_codes, key_codes

    def equal_rows(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        return equal_rows(query, key)

    def bucket_sum(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        return bucket_sums(inputs, np.zeros(2, np.bool_), divide=False)

    def bucket_mean(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        lost = np.zeros(2, np.bool_)
        mean, count = bucket_sums(inputs, lost, divide=True)
        if lost[0]:
            unknown = nan_targets(inputs.target_codes, inputs.source_codes, inputs.order)
            mean = mean.masked_fill(unknown[..., None], torch.nan)
        return mean, count

    def divide_rows(self, rows: Tensor, counts: Tensor) -> Tensor:
        """See `Backend`."""
        return divide_rows(rows, counts) if rows.dtype.itemsize >= 4 else super().divide_rows(rows, counts)

    def newest(self, target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
        """See `Backend`."""
        return newest(target_codes, source_codes, buckets)

    def newest_mean(self, value: Tensor, newest: Tensor) -> Tensor:
        """See `Backend`."""
        return newest_mean(value, newest)

    def newest_value_gradient(self, value: Tensor, newest: Tensor, grad: Tensor) -> Tensor:
        """See `Backend`."""
        return newest_value_gradient(value, newest, grad)

    def query_key_gradient(self, inputs: GradientInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        gradient = constant_gradient if inputs.newest is None else newest_gradient
        found = gradient(inputs)
        return found if all(map(memory.is_finite, found)) else gradient_in_range(found, gradient, inputs)

    def few_rows(self, hasher: Hasher) -> FewRows:
        """See `Backend`."""
        return FewRows(hasher)

    def make_tables(self, layout: Layout) -> Tables:
        """See `Backend`."""
        return NumbaTables(layout)
