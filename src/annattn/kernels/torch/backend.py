"""Bucket primitives in plain torch: any device, and the truth for the other backends.

Buckets add up in float64, so that sums do not drift however many values a bucket holds.
"""

import functools
from dataclasses import replace

import torch
from torch import Tensor

from annattn.kernels.codes import heads_and_shares, nan_targets
from annattn.kernels.interface import NO_BAND, NOT_FOUND, Backend, Call, GradientInputs, Order, SumInputs
from annattn.kernels.overflow import gradient_in_range, mean_in_range, sum_in_range
from annattn.kernels.tables import Layout, Tables
from annattn.kernels.torch.gradient import collision_gradient, newest_gradient
from annattn.kernels.torch.tables import TorchTables, fill_tables, read_tables
from annattn.lsh import IGNORED, NO_BUCKET, Hasher, Identity

__all__ = ["TorchBackend"]

_BLOCK = 128  # targets of a causal block: pairs inside it are compared one by one, earlier ones read from the tables


def _in_full(method):
    """The method without autocast: what the caller allows of lower precision in a model is not meant for sums."""

    @functools.wraps(method)
    def outside(self, *arguments):
        device = next((x.device for x in arguments if isinstance(x, Tensor)), None)
        device = arguments[0].value.device if device is None else device
        if not torch.is_autocast_enabled(device.type):
            return method(self, *arguments)
        with torch.autocast(device.type, enabled=False):
            return method(self, *arguments)

    return outside


class TorchBackend(Backend):
    """Runs every bucket operation, everywhere."""

    def unsupported_reasons(self, call: Call) -> list[str]:
        """None, but for the window, for which torch needs no kernel of ours."""
        return [NO_BAND] if call.operation == "band" else []

    def hash_rows(self, hasher: Hasher, rows: Tensor) -> Tensor:
        """See `Backend`."""
        return hasher(rows)

    def hash_pair(self, hasher: Hasher, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        return hasher.joint_codes(query, key)  # pyright: ignore[reportReturnType]

    def equal_rows(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        hasher = Identity(query.shape[-1]).sample(tables=1, hashes=1)
        codes = [codes.masked_fill(codes == NO_BUCKET, IGNORED) for codes in hasher.joint_codes(query, key)]
        return codes[0], codes[1]

    def is_finite(self, *results: Tensor) -> bool:
        """Whether sums stayed within the range of their dtype."""
        return all(bool(result.isfinite().all()) for result in results)

    @_in_full
    def bucket_sum(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        total, count = self._sums(inputs)
        if not self.is_finite(total):
            total = sum_in_range(
                total, lambda value: self._sums(replace(inputs, value=value))[0], inputs.value, _terms(inputs)
            )
        return total, count

    def _sums(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        target_codes, source_codes, value, order = inputs.target_codes, inputs.source_codes, inputs.value, inputs.order
        shape = target_codes.shape[:3]
        if not target_codes.numel() or not source_codes.numel():
            return value.new_zeros(*shape, value.shape[-1]), torch.zeros(shape, dtype=torch.int64, device=value.device)
        heads, _, _ = heads_and_shares(target_codes, source_codes)
        target_codes, source_codes, value = (_grouped(x, heads) for x in (target_codes, source_codes, value))
        offset = None if order == Order.ALL else 0
        if order == Order.CAUSAL:
            offset = source_codes.shape[2] - target_codes.shape[2]
        if order == Order.MIRRORED:  # a target sees the sources up to its own place, counted from the end
            target_codes, source_codes, value = target_codes.flip(2), source_codes.flip(2), value.flip(2)
        total = value.new_zeros(*target_codes.shape[:3], value.shape[-1])
        count = torch.zeros(target_codes.shape[:3], dtype=torch.int64, device=value.device)
        tables = range(target_codes.shape[-1])
        for chosen in [[table] for table in tables] if inputs.one_table_at_a_time else [list(tables)]:
            targets, sources, size = _slots(target_codes[..., chosen], source_codes[..., chosen], inputs.buckets)
            self._add(targets, sources, value, size, offset, total, count)
        if order == Order.MIRRORED:
            total, count = total.flip(2), count.flip(2)
        return total.reshape(*shape, value.shape[-1]), count.reshape(shape)

    def _add(self, targets, sources, value, size: int, offset: int | None, total: Tensor, count: Tensor) -> None:
        """Blocks of targets read tables of all sources that the whole block sees; nearer ones are compared in pairs.

        The tables are those of a state that lives on: what is filled stays for the next block.
        """
        n, m = targets.shape[2], sources.shape[2]
        dtype = value.dtype if value.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        sums = torch.zeros(size, value.shape[-1], dtype=dtype, device=value.device)
        counts = torch.zeros(size, dtype=torch.int64, device=value.device)
        filled = 0
        for first in range(0, n, n if offset is None else _BLOCK):
            block = slice(first, n if offset is None else min(first + _BLOCK, n))
            # Sources before `seen` are seen by the whole block, those before `end` by its last target.
            seen = end = m
            if offset is not None:
                seen, end = (min(max(edge + offset, 0), m) for edge in (block.start, block.stop))
            fill_tables(sums, counts, sources[:, :, filled:seen], value[:, :, filled:seen], False)
            filled = seen
            read, met = read_tables(sums, counts, targets[:, :, block])
            total[:, :, block] += read.to(total.dtype)
            count[:, :, block] += met
            if offset is not None and end > seen:
                i = torch.arange(block.start, block.stop, device=value.device)[:, None]
                j = torch.arange(seen, end, device=value.device)
                near = sources[:, None, :, None, seen:end]
                # (groups, share of targets, share of sources, i, j)
                shared = ((targets[:, :, None, block, None] == near) & (near > 0)).sum(-1) * (j <= i + offset)
                count[:, :, block] += shared.sum((2, 4))
                total[:, :, block] += _weighted(shared, value[:, None, :, seen:end]).sum(2)

    @_in_full
    def bucket_mean(self, inputs: SumInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        total, count = self._sums(inputs)
        met = count[..., None].clamp(min=1)
        mean = total / met
        if not self.is_finite(mean):
            mean = mean_in_range(
                mean, lambda value: self._sums(replace(inputs, value=value))[0] / met, inputs.value, _terms(inputs)
            )
        unknown = nan_targets(inputs.target_codes, inputs.source_codes, inputs.order)[..., None]
        return mean.masked_fill(unknown, torch.nan), count

    def newest(self, target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
        """See `Backend`."""
        n, m = target_codes.shape[2], source_codes.shape[2]
        shape = target_codes.shape
        heads, _, _ = heads_and_shares(target_codes, source_codes)
        if target_codes.numel() == 0 or source_codes.numel() == 0:
            return torch.full(shape, NOT_FOUND, dtype=torch.int64, device=target_codes.device)
        targets, sources, _ = _slots(_grouped(target_codes, heads), _grouped(source_codes, heads), buckets)
        # Sources in order of (slot, position); the one wanted is the last not after (slot of the target, its horizon).
        position = torch.arange(m, device=targets.device)[:, None]
        horizon = torch.arange(n, device=targets.device)[:, None] + (m - n)
        ranked = (sources * (m + 1) + position).flatten().sort().values
        wanted = targets * (m + 1) + horizon.clamp(min=-1)
        at = torch.searchsorted(ranked, wanted.flatten(), right=True) - 1
        candidate = ranked[at.clamp(min=0)].reshape(wanted.shape)
        hit = (at >= 0).reshape(wanted.shape) & (candidate // (m + 1) == targets) & (horizon >= 0) & (targets > 0)
        return torch.where(hit, candidate % (m + 1), NOT_FOUND).reshape(shape)

    def newest_mean(self, value: Tensor, newest: Tensor) -> Tensor:
        """See `Backend`."""
        mean = _newest_mean(value, newest)
        if self.is_finite(mean):
            return mean
        return mean_in_range(mean, lambda value: _newest_mean(value, newest), value, newest.shape[-1])

    def newest_value_gradient(self, value: Tensor, newest: Tensor, grad: Tensor) -> Tensor:
        """See `Backend`."""
        found = _newest_value_gradient(value, newest, grad)
        if self.is_finite(found):
            return found
        return sum_in_range(found, lambda grad: _newest_value_gradient(value, newest, grad), grad, newest[0].numel())

    @_in_full
    def query_key_gradient(self, inputs: GradientInputs) -> tuple[Tensor, Tensor]:
        """See `Backend`."""
        gradient = collision_gradient if inputs.newest is None else newest_gradient
        found = gradient(inputs)
        return found if self.is_finite(*found) else gradient_in_range(found, gradient, inputs)

    def make_tables(self, layout: Layout) -> Tables:
        """See `Backend`."""
        return TorchTables(layout)


def _newest_mean(value: Tensor, newest: Tensor) -> Tensor:
    heads, share, _ = heads_and_shares(newest, value)
    batch, _, n, tables = newest.shape
    at = newest.reshape(batch, heads, share * n, tables)
    total = value.new_zeros(batch, heads, share * n, value.shape[-1])
    if value.shape[2]:
        for position in at.unbind(-1):
            index = position.clamp(min=0)[..., None].expand(-1, -1, -1, value.shape[-1])
            total += torch.where((position >= 0)[..., None], value.gather(2, index), 0)
    total = total.reshape(*newest.shape[:3], value.shape[-1])
    return total / (newest >= 0).sum(-1, keepdim=True).clamp(min=1)


def _newest_value_gradient(value: Tensor, newest: Tensor, grad: Tensor) -> Tensor:
    heads, share, _ = heads_and_shares(newest, value)
    batch, _, n, tables = newest.shape
    grad_value = torch.zeros_like(value)
    if not value.numel() or not newest.numel():
        return grad_value
    weight = grad / (newest >= 0).sum(-1, keepdim=True).clamp(min=1)
    weight = weight.reshape(batch, heads, share * n, value.shape[-1])
    for position in newest.reshape(batch, heads, share * n, tables).unbind(-1):
        index = position.clamp(min=0)[..., None].expand(weight.shape)
        grad_value.scatter_add_(2, index, torch.where((position >= 0)[..., None], weight, 0))
    return grad_value


def _terms(inputs: SumInputs) -> int:
    """How many values a sum has at most, one per table and source."""
    return inputs.source_codes[0].numel()


def _grouped(x: Tensor, heads: int) -> Tensor:
    """(batch, heads · share, n, …) to (batch · heads, share, n, …)."""
    batch, all_heads, *rest = x.shape
    return x.reshape(batch * heads, all_heads // heads if heads else 0, *rest)


def _slots(target_codes: Tensor, source_codes: Tensor, buckets: int) -> tuple[Tensor, Tensor, int]:
    """Number the buckets of all groups and tables from 1; also how many slots that takes.

    Slot 0 is nobody's: rows without a bucket have it.
    """
    groups, _, _, tables = target_codes.shape
    rows = target_codes.shape[:3].numel() + source_codes.shape[:3].numel()
    home = torch.arange(groups * tables, device=target_codes.device).reshape(groups, 1, 1, tables)
    if 0 < groups * buckets <= 4 * rows:
        targets, sources, size = target_codes + home * buckets, source_codes + home * buckets, groups * tables * buckets
    else:
        flat = torch.cat([target_codes.flatten(), source_codes.flatten()])
        named, rank = torch.unique(flat, return_inverse=True)
        split = target_codes.numel()
        of_target = rank[:split].reshape(target_codes.shape) + home * len(named)
        of_source = rank[split:].reshape(source_codes.shape) + home * len(named)
        named, slot = torch.unique(torch.cat([of_target.flatten(), of_source.flatten()]), return_inverse=True)
        targets, sources = slot[:split].reshape(target_codes.shape), slot[split:].reshape(source_codes.shape)
        size = len(named)
    return torch.where(target_codes < 0, 0, targets + 1), torch.where(source_codes < 0, 0, sources + 1), size + 1


def _weighted(shared: Tensor, value: Tensor) -> Tensor:
    """Shared @ value, but a value that is not shared takes no part even if it is NaN or infinite."""
    clean = torch.isfinite(value).all(-1, keepdim=True)
    result = shared.to(value.dtype) @ torch.where(clean, value, 0)
    if bool(clean.all()):
        return result
    unclean = torch.where(shared[..., None] > 0, shared[..., None] * value[..., None, :, :], 0).sum(-2)
    touched = ((shared > 0) & ~clean.squeeze(-1)[..., None, :]).any(-1, keepdim=True)
    return torch.where(touched, unclean, result)
