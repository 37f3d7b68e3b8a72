"""The bucket primitives as torch.library ops: traceable, differentiable in the values, run by the chosen backend."""

import torch
from torch import Tensor

from annattn.kernels.dispatch import choose
from annattn.lsh import FAMILIES, Hasher, restore

__all__ = ["collect", "equal_rows", "hash_pair", "latest"]


def hash_pair(hasher: Hasher, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of queries and keys, comparable with each other; traceable for the families listed in FAMILIES."""
    if type(hasher.family) not in FAMILIES.values():
        return choose(query).hash_pair(hasher, query, key)
    return _hash_pair(query, key, list(hasher.parameters), hasher.spec)


# An op takes tensors and plain values only, so a hasher travels as its parameters and a description of the rest.
@torch.library.custom_op("annattn::hash_pair", mutates_args=())
def _hash_pair(query: Tensor, key: Tensor, parameters: list[Tensor], spec: str) -> tuple[Tensor, Tensor]:
    return choose(query).hash_pair(restore(spec, tuple(parameters)), query, key)


@_hash_pair.register_fake
def _(query, key, parameters, spec):
    tables = restore(spec, tuple(parameters)).tables
    return tuple(x.new_empty(*x.shape[:-1], tables, dtype=torch.int64) for x in (query, key))


@torch.library.custom_op("annattn::equal_rows", mutates_args=())
def equal_rows(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes in one table that are equal exactly when rows are."""
    return choose(query).equal_rows(query, key)


@equal_rows.register_fake
def _(query, key):
    return tuple(x.new_empty(*x.shape[:-1], 1, dtype=torch.int64) for x in (query, key))


@torch.library.custom_op("annattn::collect", mutates_args=())
def collect(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j and Σ_j c_ij: see `torch_backend.collect`."""
    backend = choose(value)
    return backend.collect(target_codes, source_codes, value, order, buckets, one_table_at_a_time)


@collect.register_fake
def _(target_codes, source_codes, value, order, buckets, one_table_at_a_time):
    shape = target_codes.shape[:3]
    return value.new_empty(*shape, value.shape[-1]), value.new_empty(shape, dtype=torch.int64)


def _keep_codes(ctx, inputs, output):
    target_codes, source_codes, _, ctx.order, ctx.buckets, ctx.one_table_at_a_time = inputs
    ctx.save_for_backward(target_codes, source_codes)
    ctx.mark_non_differentiable(output[1])


def _collect_backward(ctx, grad_total, _grad_count):
    # dv_j = Σ_i c_ij g_i: the same sum with the roles of targets and sources exchanged.
    target_codes, source_codes = ctx.saved_tensors
    grad, _ = collect(source_codes, target_codes, grad_total, -ctx.order, ctx.buckets, ctx.one_table_at_a_time)
    return None, None, grad, None, None, None


collect.register_autograd(_collect_backward, setup_context=_keep_codes)


@torch.library.custom_op("annattn::latest", mutates_args=())
def latest(target_codes: Tensor, source_codes: Tensor, buckets: int) -> Tensor:
    """Per table the newest source in a causal target's bucket: see `torch_backend.latest`."""
    return choose(target_codes).latest(target_codes, source_codes, buckets)


@latest.register_fake
def _(target_codes, source_codes, buckets):
    return torch.empty_like(target_codes)
