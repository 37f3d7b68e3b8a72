"""The bucket operations as torch.library ops: traceable, differentiable, run by the backend chosen for the call.

An op takes tensors and plain values only, so a hasher travels as its parameters and its `spec`, and the gradient that
queries and keys get as a word of GRADIENTS. Each op describes its call to `choose`.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from annattn.errors import InputError
from annattn.kernels.dispatch import choose
from annattn.kernels.interface import GRADIENTS, Call, GradientInputs, Operation, Order, SumInputs, slope_of
from annattn.kernels.tables import Layout
from annattn.kernels.transforms import fold_into_batch, not_twice, refuse_transforms, transforms_active, wanted_gradient
from annattn.lsh import FAMILIES, Hasher, restore

__all__ = [
    "bucket_attention",
    "bucket_mean",
    "bucket_sum",
    "equal_rows",
    "hash_call",
    "hash_pair",
    "name_codes",
    "needs_no_op",
    "query_key_gradient",
    "runs_now",
    "sum_call",
    "tables_apart",
    "tables_call",
]


def runs_now() -> bool:
    """Whether nobody is tracing or transforming the call, so that what needs no gradient can do without an op."""
    return not torch.compiler.is_compiling() and not transforms_active()


def needs_no_op(*tensors: Tensor) -> bool:
    """Whether what is computed from these may be computed at once: nobody traces, and no gradient is wanted of it."""
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not wanted and runs_now() and all(type(x) is Tensor for x in tensors)


def hash_call(hasher: Hasher, query: Tensor, key: Tensor) -> Call:
    """The hashing of these rows, described."""
    return Call(
        "hash", query.device, query.dtype, query.shape[:-1], key.shape[:-1], hasher.tables, query.shape[-1],
        family=hasher.family, hashes=hasher.hashes, shared=hasher.shared, buckets=hasher.buckets,
    )  # fmt: skip


def tables_call(layout: Layout) -> Call:
    """Tables that live on, described."""
    rows = (layout.batch, layout.heads, 1)
    return Call("tables", layout.device, torch.float64, rows, rows, layout.tables, layout.width)


def sum_call(operation: Operation, inputs: SumInputs) -> Call:
    """Sums over buckets, checked and described."""
    targets, sources, value = inputs.target_codes.shape, inputs.source_codes.shape, inputs.value
    if (
        len(targets) != 4
        or len(sources) != 4
        or targets[0] != sources[0]
        or targets[3] != sources[3]
        or value.shape[:3] != sources[:3]
        or (targets[1] != sources[1] and max(targets[1], sources[1]) % (min(targets[1], sources[1]) or 1))
        or inputs.target_codes.dtype != torch.int64
        or inputs.source_codes.dtype != torch.int64
    ):
        raise InputError(
            "codes and values",
            given=f"shapes {tuple(targets)}, {tuple(sources)} and {tuple(value.shape)}",
            expected="int64 codes (batch, heads, n, tables) and a value for every source",
        )
    return Call(
        operation, value.device, value.dtype, targets[:3], sources[:3], targets[3], value.shape[-1], order=inputs.order
    )


def _bucket_mean(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    inputs = SumInputs(target_codes, source_codes, value, Order(order), buckets, one_table_at_a_time)
    return choose(sum_call("bucket_mean", inputs)).bucket_mean(inputs)


def hash_pair(hasher: Hasher, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of queries and keys, comparable with each other; traceable for the families listed in FAMILIES."""
    if not torch.compiler.is_compiling() and (transforms_active() or forward_ad._current_level >= 0):
        refuse_transforms()
    if runs_now() or type(hasher.family) not in FAMILIES.values():
        return choose(hash_call(hasher, query, key)).hash_pair(hasher, query.detach(), key.detach())
    return _hash_pair(query, key, list(hasher.parameters), hasher.spec)


@torch.library.custom_op("annattn::hash_pair", mutates_args=())
def _hash_pair(query: Tensor, key: Tensor, parameters: list[Tensor], spec: str) -> tuple[Tensor, Tensor]:
    hasher = restore(spec, tuple(parameters))
    query_codes, key_codes = choose(hash_call(hasher, query, key)).hash_pair(hasher, query, key)
    return tables_apart(query_codes), tables_apart(key_codes)


@_hash_pair.register_fake
def _(query, key, parameters, spec):
    tables = restore(spec, ()).tables
    return tuple(
        x.new_empty(*x.shape[:-2], tables, x.shape[-2], dtype=torch.int64).transpose(-1, -2) for x in (query, key)
    )


def tables_apart(codes: Tensor) -> Tensor:
    """The same codes with the rows of a table side by side in memory: one layout for all backends."""
    return codes.transpose(-1, -2).contiguous().transpose(-1, -2)


@torch.library.custom_op("annattn::name_codes", mutates_args=())
def name_codes(query_codes: Tensor, key_codes: Tensor) -> tuple[Tensor, Tensor]:
    """The codes numbered from 0, so that they are fewer than rows; negative ones stay as they are."""
    flat = torch.cat([query_codes.flatten(), key_codes.flatten()])
    named = torch.where(flat < 0, flat, torch.unique(flat, return_inverse=True)[1])
    of_query, of_key = named.split([query_codes.numel(), key_codes.numel()])
    return of_query.reshape(query_codes.shape).clone(), of_key.reshape(key_codes.shape).clone()


@name_codes.register_fake
def _(query_codes, key_codes):
    return tuple(x.new_empty(x.shape) for x in (query_codes, key_codes))


def equal_rows(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Codes in one table that are equal exactly when rows are."""
    if not torch.compiler.is_compiling() and (transforms_active() or forward_ad._current_level >= 0):
        refuse_transforms()
    return _equal(query, key) if needs_no_op(query.detach(), key.detach()) else _equal_rows(query, key)


def _equal(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    if query.ndim != 4 or key.ndim != 4 or query.shape[3] != key.shape[3] or query.dtype != key.dtype:
        given = f"{query.dtype} {tuple(query.shape)} and {key.dtype} {tuple(key.shape)}"
        raise InputError("rows to compare", given=given, expected="(batch, heads, n, dim) of one dtype and dim")
    call = Call("equal_rows", query.device, query.dtype, query.shape[:-1], key.shape[:-1], 1, query.shape[-1])
    return choose(call).equal_rows(query, key)


_equal_rows = torch.library.custom_op("annattn::equal_rows", _equal, mutates_args=())


@_equal_rows.register_fake
def _(query, key):
    return tuple(x.new_empty(*x.shape[:-1], 1, dtype=torch.int64) for x in (query, key))


_mean_of_buckets = torch.library.custom_op("annattn::bucket_mean", _bucket_mean, mutates_args=())


def bucket_mean(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j / Σ_j c_ij and Σ_j c_ij: see `Backend.bucket_mean`."""
    mean = _bucket_mean if needs_no_op(value) else _mean_of_buckets
    return mean(target_codes, source_codes, value, order, buckets, one_table_at_a_time)


def _bucket_sum(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    inputs = SumInputs(target_codes, source_codes, value, Order(order), buckets, one_table_at_a_time)
    return choose(sum_call("bucket_sum", inputs)).bucket_sum(inputs)


@torch.library.custom_op("annattn::bucket_sum", mutates_args=())
def bucket_sum(
    target_codes: Tensor, source_codes: Tensor, value: Tensor, order: int, buckets: int, one_table_at_a_time: bool
) -> tuple[Tensor, Tensor]:
    """Σ_j c_ij v_j and Σ_j c_ij: see `Backend.bucket_sum`."""
    return _bucket_sum(target_codes, source_codes, value, order, buckets, one_table_at_a_time)


@_mean_of_buckets.register_fake
@bucket_sum.register_fake
def _(target_codes, source_codes, value, order, buckets, one_table_at_a_time):
    shape = target_codes.shape[:3]
    return value.new_empty(*shape, value.shape[-1]), value.new_empty(shape, dtype=torch.int64)


def _keep(ctx, inputs, output):
    target_codes, source_codes, _, ctx.order, ctx.buckets, ctx.one_table_at_a_time = inputs
    ctx.save_for_backward(target_codes, source_codes, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # zeros for the counts would wake torch's threads


def _bucket_sum_backward(ctx, grad_total, _grad_count):
    # dv_j = Σ_i c_ij g_i: the same sum with the roles of targets and sources exchanged.
    if grad_total is None:
        return (None,) * 6
    target_codes, source_codes, _ = ctx.saved_tensors
    grad, _ = bucket_sum(source_codes, target_codes, grad_total, -ctx.order, ctx.buckets, ctx.one_table_at_a_time)
    return None, None, grad, None, None, None


def _bucket_mean_backward(ctx, grad_mean, grad_count):
    count = ctx.saved_tensors[2]
    return _bucket_sum_backward(ctx, None if grad_mean is None else _divided(grad_mean, count), grad_count)


def _divided(grad: Tensor, count: Tensor) -> Tensor:
    """g_i / C_i. By the backend where nobody traces: threads that torch woke for it would stay awake beside its own."""
    if not needs_no_op(grad):
        return grad / count[..., None].clamp(min=1)
    shape = grad.shape[:3]
    call = Call("bucket_sum", grad.device, grad.dtype, shape, shape, 1, grad.shape[-1])
    return choose(call).divide_rows(grad, count)


bucket_sum.register_autograd(_bucket_sum_backward, setup_context=_keep)
_mean_of_buckets.register_autograd(_bucket_mean_backward, setup_context=_keep)


# The mean of what a query's buckets hold, differentiable in queries and keys as well: they take no part in the forward
# pass, which knows only their codes, and get the gradient of their collision probability. If
# `counted`, so does the count, which is then a number of the values' dtype.
def _attend(
    query: Tensor, key: Tensor, value: Tensor, query_codes: Tensor, key_codes: Tensor, order: int, buckets: int,
    one_table_at_a_time: bool, gradient: str, spec: str, counted: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    mean, count = _bucket_mean(query_codes, key_codes, value, order, buckets, one_table_at_a_time)
    return mean, count.to(value.dtype) if counted else count


_bucket_attention = torch.library.custom_op("annattn::bucket_attention", _attend, mutates_args=())


@_bucket_attention.register_fake
def _(query, key, value, query_codes, key_codes, order, buckets, one_table_at_a_time, gradient, spec, counted=False):
    count = value.new_empty(query.shape[:3], dtype=value.dtype if counted else torch.int64)
    return value.new_empty(*query.shape[:3], value.shape[-1]), count


def _turn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_codes: Tensor,
    key_codes: Tensor,
    grad: Tensor,
    out: Tensor,
    count: Tensor,
    order: int,
    buckets: int,
    gradient: str,
    spec: str,
) -> tuple[Tensor, Tensor]:
    inputs = GradientInputs(
        query, key, value, grad, out, count, slope_of(gradient, spec), Order(order), query_codes, key_codes, buckets
    )
    return query_key_gradient("gradient", inputs, query_codes.shape[-1])


_bucket_attention_gradient = torch.library.custom_op("annattn::bucket_attention_gradient", _turn, mutates_args=())


@_bucket_attention_gradient.register_fake
def _(query, key, value, query_codes, key_codes, grad, out, count, order, buckets, gradient, spec):
    return query.new_empty(query.shape), key.new_empty(key.shape)


_bucket_attention_gradient.register_autograd(not_twice)


def query_key_gradient(operation: Operation, inputs: GradientInputs, tables: int) -> tuple[Tensor, Tensor]:
    """The gradients for queries and keys, checked and in their dtypes: see `Backend.query_key_gradient`."""
    query, key, value = inputs.query, inputs.key, inputs.value
    inputs.check()
    call = Call(
        operation, value.device, value.dtype, query.shape[:3], key.shape[:3], tables, value.shape[-1],
        order=inputs.order, slope=inputs.slope,
    )  # fmt: skip
    grad_query, grad_key = choose(call).query_key_gradient(inputs)
    # Contiguous whatever the layout of the inputs, as the fakes promise.
    return grad_query.to(query.dtype).contiguous(), grad_key.to(key.dtype).contiguous()


def _keep_attention(ctx, inputs, output):
    *tensors, ctx.order, ctx.buckets, ctx.one_table_at_a_time, ctx.gradient, ctx.spec, counted = inputs
    ctx.save_for_backward(*tensors, *output)
    if not counted:
        ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # zeros for the counts would wake torch's threads


def _bucket_attention_backward(ctx, grad, grad_count):
    if grad is None and grad_count is None:
        return (None,) * 11
    query, key, value, query_codes, key_codes, out, count = ctx.saved_tensors
    grad_query = grad_key = grad_value = None
    count = count.long()
    if grad is None:
        grad = torch.zeros_like(out)
    if ctx.needs_input_grad[2]:
        weight = _divided(grad, count)
        add = _bucket_sum if needs_no_op(weight) else bucket_sum
        grad_value, _ = add(key_codes, query_codes, weight, -ctx.order, ctx.buckets, ctx.one_table_at_a_time)
    if any(ctx.needs_input_grad[:2]):
        if grad_count is not None:
            # The count is the sum of a value of 1, so it is one more column: dx_ij gains c_ij · w · dC_i.
            value, out = torch.nn.functional.pad(value, (0, 1), value=1.0), torch.nn.functional.pad(out, (0, 1))
            grad = torch.cat([grad, (grad_count * count)[..., None]], dim=-1)
        turn = _turn if needs_no_op(query, key, value, grad, out) else _bucket_attention_gradient
        grad_query, grad_key = turn(
            query, key, value, query_codes, key_codes, grad, out, count, ctx.order, ctx.buckets, ctx.gradient, ctx.spec
        )
    return grad_query, grad_key, grad_value, *[None] * 8


_bucket_attention.register_autograd(_bucket_attention_backward, setup_context=_keep_attention)


class _BucketAttention(torch.autograd.Function):
    """The op for those who do not trace: the first call of an op imports all of torch's compiler."""

    forward = staticmethod(_attend)
    setup_context = staticmethod(_keep_attention)
    backward = staticmethod(_bucket_attention_backward)  # pyright: ignore[reportAssignmentType]


def bucket_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    codes: tuple[Tensor, Tensor],
    hasher: Hasher,
    *,
    order: int,
    buckets: int,
    one_table_at_a_time: bool,
    gradient: str,
    counted: bool = False,
) -> tuple[Tensor, Tensor]:
    """`bucket_mean`, with a gradient for queries and keys, and if `counted` one of the count for them."""
    wanted = "none"
    if gradient != "none" and (
        query.requires_grad or key.requires_grad or gradient not in GRADIENTS or transforms_active()
    ):
        wanted = wanted_gradient(hasher, gradient, query, key)
    if wanted == "none":
        if runs_now() and not (value.requires_grad and torch.is_grad_enabled()):
            return _bucket_mean(*codes, value, order, buckets, one_table_at_a_time)
        return bucket_mean(*codes, value, order, buckets, one_table_at_a_time)
    attend = _BucketAttention.apply if runs_now() else _bucket_attention
    return attend(query, key, value, *codes, order, buckets, one_table_at_a_time, wanted, hasher.spec, counted)


for _op in (
    _hash_pair, name_codes, _equal_rows, _mean_of_buckets, bucket_sum, _bucket_attention, _bucket_attention_gradient,
):  # fmt: skip
    fold_into_batch(_op)
