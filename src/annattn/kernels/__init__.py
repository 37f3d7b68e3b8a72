"""Bucket operations: sums and newest members of hash buckets, as torch ops over interchangeable backends."""

from annattn.kernels.band import band
from annattn.kernels.codes import nan_targets
from annattn.kernels.dispatch import BACKENDS, choose, use_backend
from annattn.kernels.interface import GRADIENTS, NOT_FOUND, Backend, BandInputs, Call, GradientInputs, Order, SumInputs
from annattn.kernels.newest_ops import nan_where_unknown, newest, newest_attention, newest_call
from annattn.kernels.ops import (
    bucket_attention,
    bucket_mean,
    bucket_sum,
    equal_rows,
    hash_call,
    hash_pair,
    name_codes,
    query_key_gradient,
    tables_call,
)
from annattn.kernels.tables import Layout, Tables, check_saved
from annattn.kernels.transforms import fold_into_batch, in_own_dtypes, not_twice, transforms_active, wanted_gradient

__all__ = [
    "BACKENDS",
    "GRADIENTS",
    "NOT_FOUND",
    "Backend",
    "BandInputs",
    "Call",
    "GradientInputs",
    "Layout",
    "Order",
    "SumInputs",
    "Tables",
    "band",
    "bucket_attention",
    "bucket_mean",
    "bucket_sum",
    "check_saved",
    "choose",
    "equal_rows",
    "fold_into_batch",
    "hash_call",
    "hash_pair",
    "in_own_dtypes",
    "name_codes",
    "nan_targets",
    "nan_where_unknown",
    "newest",
    "newest_attention",
    "newest_call",
    "not_twice",
    "query_key_gradient",
    "tables_call",
    "transforms_active",
    "use_backend",
    "wanted_gradient",
]
