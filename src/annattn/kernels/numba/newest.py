"""Newest members of buckets on a CPU, their mean, and its gradients."""

import numpy as np
import torch
from torch import Tensor

from annattn.kernels.codes import heads_and_shares
from annattn.kernels.interface import NOT_FOUND, GradientInputs
from annattn.kernels.numba import memory
from annattn.kernels.numba.compiled import kernel
from annattn.kernels.numba.numbering import slots_of
from annattn.kernels.numba.threads import run_pieces
from annattn.kernels.overflow import mean_in_range, sum_in_range
from annattn.lsh.rows import directions_and_lengths

__all__ = ["newest", "newest_gradient", "newest_mean", "newest_value_gradient"]


def newest(target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
    """Per table the newest source in a causal target's bucket: see `Backend.newest`."""
    heads, _, _ = heads_and_shares(target_codes, source_codes)
    batch, _, n, tables = target_codes.shape
    m = source_codes.shape[2]
    found = torch.full(target_codes.shape, NOT_FOUND, dtype=torch.int64, device="cpu")
    if not target_codes.numel() or not source_codes.numel():
        return found
    targets = target_codes.contiguous().numpy().reshape(batch * heads, -1, n, tables)
    sources = source_codes.contiguous().numpy().reshape(batch * heads, 1, m, tables)
    memory.require_below(buckets, "hash code", targets, sources)
    into = found.numpy().reshape(targets.shape)
    numbered = [slots_of(t, s, buckets, run_pieces) for t, s in zip(targets, sources, strict=True)]
    targets, sources, slots = zip(*numbered, strict=True)

    def one(piece: int) -> None:
        group, table = divmod(piece, tables)
        _newest(targets[group], sources[group][0], table, max(slots[group], 1), m - n, into[group])

    run_pieces(one, batch * heads * tables, "newest")
    return found


def newest_mean(value: Tensor, newest: Tensor) -> Tensor:
    """The mean over tables of the values at the positions found: see `Backend.newest_mean`."""
    mean = _newest_mean(value, newest)
    if memory.is_finite(mean):
        return mean
    return mean_in_range(mean, lambda value: _newest_mean(value, newest), value, newest.shape[-1])


def _newest_mean(value: Tensor, newest: Tensor) -> Tensor:
    mean = value.new_zeros(*newest.shape[:3], value.shape[-1])
    if not mean.numel() or not value.numel():
        return mean
    values, found, shape = _by_group(value, newest)
    into = mean.numpy().reshape(*shape, value.shape[-1])
    run_pieces(lambda group: _mean(values[group], found[group], into[group]), len(found), "newest mean", value.dtype)
    return mean


def newest_value_gradient(value: Tensor, newest: Tensor, grad: Tensor) -> Tensor:
    """The gradient of `newest_mean` for the values: see `Backend.newest_value_gradient`."""
    grad_value = _newest_value_gradient(value, newest, grad)
    if memory.is_finite(grad_value):
        return grad_value
    return sum_in_range(grad_value, lambda grad: _newest_value_gradient(value, newest, grad), grad, newest[0].numel())


def _newest_value_gradient(value: Tensor, newest: Tensor, grad: Tensor) -> Tensor:
    grad_value = grad.new_zeros(value.shape)
    if not grad.numel() or not value.numel():
        return grad_value
    _, found, shape = _by_group(value, newest)
    grads = grad.contiguous().numpy().reshape(*shape, value.shape[-1])
    into = grad_value.numpy().reshape(-1, *value.shape[2:])
    run_pieces(
        lambda group: _scatter(grads[group], found[group], into[group]), len(found), "newest value gradient", grad.dtype
    )
    return grad_value


def newest_gradient(inputs: GradientInputs) -> tuple[Tensor, Tensor]:
    """The gradients of `newest_mean` for queries and keys when all pairs weigh the same."""
    assert inputs.newest is not None
    dtype, constant = inputs.grad.dtype, inputs.slope.constant
    if not inputs.query.numel() or not inputs.value.numel():
        return inputs.grad.new_zeros(inputs.query.shape), inputs.grad.new_zeros(inputs.key.shape)
    query, query_length = directions_and_lengths(inputs.query.to(dtype))
    key, key_length = directions_and_lengths(inputs.key.to(dtype))
    values, found, shape = _by_group(inputs.value.to(dtype), inputs.newest)
    weight = inputs.grad / inputs.count[..., None].clamp(min=1)
    level = (weight * inputs.out.to(dtype).nan_to_num(0, 0, 0)).sum(-1)
    grad_query, grad_key = torch.zeros_like(query), torch.zeros_like(key)
    queries, to_query = (x.contiguous().numpy().reshape(*shape, x.shape[-1]) for x in (query, grad_query))
    keys, to_key = (x.contiguous().numpy().reshape(-1, *x.shape[2:]) for x in (key, grad_key))
    weights = weight.contiguous().numpy().reshape(*shape, weight.shape[-1])
    levels = level.contiguous().numpy().reshape(shape)

    def one(group: int) -> None:
        _pairs(
            queries[group], keys[group], values[group], weights[group], levels[group], found[group], constant,
            to_query[group], to_key[group],
        )  # fmt: skip

    run_pieces(one, len(found), "newest gradient", dtype)
    grads = []
    for grad, unit, length in ((grad_query, query, query_length), (grad_key, key, key_length)):
        grads.append((grad - (grad * unit).sum(-1, keepdim=True) * unit) / length)
    return grads[0], grads[1]


def _by_group(value: Tensor, newest: Tensor) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Values (groups, keys, width), positions (groups, share · queries, tables), and the first two axes of these."""
    heads, share, _ = heads_and_shares(newest, value)
    shape = newest.shape[0] * heads, share * newest.shape[2]
    values = value.detach().contiguous().numpy().reshape(-1, *value.shape[2:])
    found = newest.contiguous().numpy().reshape(*shape, newest.shape[3])
    memory.require_below(value.shape[2], "position of a key", found)
    return values, found, shape


@kernel
def _newest(targets, sources, table, slots, horizon, found):
    share, n, _ = targets.shape
    m = sources.shape[0]
    held = np.full(slots, NOT_FOUND, np.int64)
    entered = 0
    for at in range(n):
        while entered < m and entered <= at + horizon:
            code = sources[entered, table]
            if code >= 0:
                held[code] = entered
            entered += 1
        for head in range(share):
            code = targets[head, at, table]
            found[head, at, table] = held[code] if code >= 0 else NOT_FOUND


@kernel
def _mean(value, found, mean):
    rows, tables = found.shape
    width = value.shape[1]
    for row in range(rows):
        into = mean[row]
        into[:] = 0
        hits = 0
        for table in range(tables):
            at = found[row, table]
            if at >= 0:
                hits += 1
                here = value[at]
                for k in range(width):
                    into[k] += here[k]
        divisor = mean.dtype.type(max(hits, 1))
        for k in range(width):
            into[k] /= divisor


@kernel
def _scatter(grad, found, grad_value):
    rows, tables = found.shape
    width = grad.shape[1]
    for row in range(rows):
        hits = 0
        for table in range(tables):
            hits += found[row, table] >= 0
        share = grad.dtype.type(max(hits, 1))
        for table in range(tables):
            at = found[row, table]
            if at >= 0:
                into = grad_value[at]
                for k in range(width):
                    into[k] += grad[row, k] / share


@kernel(fastmath={"reassoc", "contract"})
def _pairs(query, key, value, weight, level, found, constant, to_query, to_key):
    rows, tables = found.shape
    dim, width = query.shape[1], value.shape[1]
    scale = query.dtype.type(constant)
    for row in range(rows):
        for table in range(tables):
            at = found[row, table]
            if at < 0:
                continue
            push = -level[row]
            for k in range(width):
                push += weight[row, k] * value[at, k]
            push *= scale
            for k in range(dim):
                to_query[row, k] += push * key[at, k]
                to_key[at, k] += push * query[row, k]
