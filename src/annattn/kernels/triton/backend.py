"""The bucket operations on a GPU: what is written in Triton, and what plain torch does there.

Nothing here imports Triton before a call is run, so that judging a call costs nothing where there is no GPU.
"""

import importlib.util
import os

import torch
from torch import Tensor

from annattn.kernels.codes import nan_targets
from annattn.kernels.dispatch import asked_for
from annattn.kernels.interface import NOT_FOUND, BandInputs, Call, GradientInputs, Order, SumInputs
from annattn.kernels.tables import Layout, Tables
from annattn.kernels.torch.backend import TorchBackend
from annattn.kernels.torch.tables import DENSE, TorchTables
from annattn.lsh import CrossPolytope, Hasher, Hyperplane

__all__ = ["AtomicTritonBackend", "TritonBackend"]

_HASHED = (torch.float32, torch.float16, torch.bfloat16)
_SUMMED = (*_HASHED, torch.float64)
_MOST_ROWS = 2**31 - 2**16  # rows of a group are numbered in 32 bits
_MOST_AXES = 128


class TritonBackend(TorchBackend):
    """Kernels for NVIDIA GPUs from sm_80; results are the same to the bit in every run."""

    name = "triton"

    def missing(self) -> str | None:
        """See `Backend`."""
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed: pip install 'annattn[gpu]'"
        if not torch.cuda.is_available() and not _interpreted():
            return (
                "no CUDA GPU is visible; to try the kernels without one, slowly and on CPU tensors, "
                "set TRITON_INTERPRET=1 before Python starts"
            )
        return None

    def unsupported_reasons(self, call: Call) -> list[str]:
        """See `Backend`."""
        if call.device.type == "cpu" and not asked_for(self.name):
            return ["tensors are on the CPU, where only the interpreter runs Triton, and only if asked for by name"]
        missing = self.missing()
        if missing is not None:
            return [missing]
        reasons = []
        if call.device.type != ("cpu" if _interpreted() else "cuda"):
            here = "in the interpreter, which takes CPU tensors" if _interpreted() else "on CUDA tensors"
            reasons.append(f"tensors are on {call.device}, and the kernels run {here}")
        if max(rows[1] * rows[2] for rows in (call.targets, call.sources)) > _MOST_ROWS:
            reasons.append(f"more than {_MOST_ROWS:,} rows")
        if call.operation == "hash":
            reasons += _hash_reasons(call)
        elif call.operation == "band" and call.dtype not in _HASHED:
            reasons.append(f"a window of {call.dtype} is not compiled: only float32, float16 and bfloat16 are")
        elif call.operation != "equal_rows" and call.dtype not in (*_SUMMED, torch.int64):
            reasons.append(f"{call.dtype} is not compiled")
        if call.slope is not None and call.slope.constant is None:
            reasons.append('gradient="exact" weighs each pair by its cosine, and only constant weights are compiled')
        return reasons

    def is_finite(self, *results: Tensor) -> bool:
        """Taken for granted: to look, the CPU would have to wait for the GPU."""
        return True

    def hash_rows(self, hasher: Hasher, rows: Tensor) -> Tensor:
        """See `Backend`."""
        from annattn.kernels.triton.hashing import hash_rows

        return hash_rows(hasher, rows)

    def hash_pair(self, hasher: Hasher, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        return self.hash_rows(hasher, query), self.hash_rows(hasher, key)

    def bucket_sum(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        from annattn.kernels.triton.sums import bucket_sums

        return bucket_sums(inputs, divide=False)

    def bucket_mean(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        from annattn.kernels.triton.sums import bucket_sums

        mean, count = bucket_sums(inputs, divide=True)
        unknown = nan_targets(inputs.target_codes, inputs.source_codes, inputs.order)
        return mean.masked_fill(unknown[..., None], torch.nan), count

    def newest(self, target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
        """See `Backend`."""
        from annattn.kernels.triton.sums import newest

        if not target_codes.numel() or not source_codes.numel():
            return torch.full_like(target_codes, NOT_FOUND)
        return newest(target_codes, source_codes, buckets)

    def newest_value_gradient(self, value: Tensor, newest: Tensor, grad: Tensor) -> Tensor:
        """See `Backend`."""
        # A sum over buckets, each a position: no atomics.
        weight = grad / (newest >= 0).sum(-1, keepdim=True).clamp(min=1)
        return self.bucket_sum(SumInputs(_positions(value, newest), newest, weight, Order.ALL, value.shape[2]))[0]

    def query_key_gradient(self, inputs: GradientInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        from annattn.kernels.triton.outer import constant_gradient

        if inputs.newest is not None:
            # Queries meet the keys at the positions found; what may be seen was settled when they were.
            met = _positions(inputs.value, inputs.newest)
            return constant_gradient(inputs, inputs.newest, met, Order.ALL, inputs.value.shape[2])
        assert inputs.query_codes is not None
        assert inputs.key_codes is not None
        return constant_gradient(inputs, inputs.query_codes, inputs.key_codes, inputs.order, inputs.buckets)

    def band(self, inputs: BandInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        from annattn.kernels.triton.band import attend_band

        return attend_band(inputs)

    def band_gradient(
        self, inputs: BandInputs, out: Tensor, level: Tensor, grad: Tensor, grad_level: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Backend`."""
        from annattn.kernels.triton.band import band_gradient

        return band_gradient(inputs, out, level, grad, grad_level)

    def make_tables(self, layout: Layout) -> Tables:
        """See `Backend`."""
        from annattn.kernels.triton.decode import TritonTables

        return TritonTables(layout) if layout.buckets <= DENSE else TorchTables(layout)


class AtomicTritonBackend(TritonBackend):
    """The same, but non-causal sums by atomic additions into a row per bucket: no sort, and not reproducible.

    The order in which a GPU adds atomically changes from run to run, and with it the last digits. Never chosen unless
    asked for by name.
    """

    name = "triton_atomic"

    def bucket_sum(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        from annattn.kernels.triton.atomic import add_atomically, has_room

        if inputs.order == Order.ALL and has_room(inputs):
            return add_atomically(inputs)
        return super().bucket_sum(inputs)

    def bucket_mean(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        total, count = self.bucket_sum(inputs)
        unknown = nan_targets(inputs.target_codes, inputs.source_codes, inputs.order)
        return (total / count[..., None].clamp(min=1)).masked_fill(unknown[..., None], torch.nan), count


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _hash_reasons(call: Call) -> list[str]:
    reasons = []
    # Not isinstance: a subclass may hash in its own way.
    if type(call.family) not in (Hyperplane, CrossPolytope):
        reasons.append(f"{call.family} is not compiled: only Hyperplane and CrossPolytope are")
    if call.buckets is None:
        reasons.append(f"{call.hashes} hashes do not fit one code of 63 bits")
    if call.shared:
        reasons.append("tables that share hash functions are not compiled")
    if call.dtype not in _HASHED:
        reasons.append(f"rows of {call.dtype} are hashed in float64 by the torch backend")
    family = call.family
    if isinstance(family, CrossPolytope) and family.rotation == "structured" and family.axes > _MOST_AXES:
        reasons.append(f"structured rotations are compiled up to {_MOST_AXES} axes")
    return reasons


def _positions(value: Tensor, newest: Tensor) -> Tensor:
    """Codes of keys (batch, heads, keys, tables) that are their positions."""
    batch, heads, m, _ = value.shape
    return torch.arange(m, device=value.device)[:, None].expand(batch, heads, m, newest.shape[-1])
