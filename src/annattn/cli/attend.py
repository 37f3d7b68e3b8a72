"""`annattn attend`: attention over arrays in files."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import torch
from cyclopts import Parameter
from torch import Tensor

from annattn.attention import anna_attention, exact_match_attention, latest_match_attention, softmax_attention
from annattn.cli.arrays import FLOATS, Sink, Source, name_of
from annattn.cli.families import Family, make_family
from annattn.cli.streaming import Arrays, attend_by_heads, attend_by_rows, streams
from annattn.cli.terminal import AsJson, Flag, Whole, bar, output, print_json, remarks
from annattn.errors import InputError

__all__ = ["attend"]


def attend(
    query: Path,
    key: Path | None = None,
    value: Path | None = None,
    /,
    *,
    out: Annotated[Path, Parameter(name=("--output", "-o"))],
    mechanism: Literal["anna", "exact_match", "latest_match", "softmax"] = "anna",
    tables: Whole = 8,
    hashes: Whole = 8,
    family: Family = "hyperplane",
    width: float | None = None,
    seed: Whole = 0,
    beta: float = 1.0,
    causal: Flag = False,
    key_mask: Path | None = None,
    memory: Whole = 256,
    as_json: AsJson = False,
) -> None:
    """Attend over arrays in files and write the result to another; files are mapped, and worked through in pieces.

    Arrays are (n, dim), (heads, n, dim) or (batch, heads, n, dim), .npy or .safetensors. The same seed gives the same
    result every time. The output appears when it is whole: a run that is stopped leaves nothing behind.

    Example: annattn attend q.npy k.npy v.npy -o out.npy --tables 8 --hashes 8

    Example: annattn attend qkv.safetensors -o out.safetensors --causal

    Args:
        query: the queries; or a .safetensors file with tensors query, key and value, and no further file.
        key: the keys.
        value: the values; their dtype is the result's.
        out: the file to write.
        mechanism: anna (approximate nearest neighbours), exact_match, latest_match (causal), or softmax (quadratic).
        tables: hash tables, for anna and latest_match.
        hashes: hash functions a table.
        family: which hash functions.
        width: width of the slabs of the euclidean family, 4 unless given.
        seed: decides the hash functions.
        beta: softmax's inverse temperature; its queries and keys are scaled to length 1.
        causal: query i sees the keys up to its own position, the last query aligned with the last key.
        key_mask: a file of bool, (n,) or (batch, n): True where a key takes part.
        memory: MiB to work in. Several heads are taken at a time, or one; of anna a head larger than this is cut.
        as_json: print what was done as JSON.
    """
    if memory < 1:
        raise InputError("--memory", given=memory, expected="at least 1 MiB")
    arrays = _opened(query, key, value, key_mask, mechanism)
    # Mechanisms that do not hash check these numbers too, but draw nothing of that size.
    drawn = (tables, hashes) if mechanism in ("anna", "latest_match") else (min(tables, 1), min(hashes, 1))
    hasher = make_family(family, arrays.query.shape[-1], width).sample(tables=drawn[0], hashes=drawn[1], seed=seed)
    work: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]] = {
        "anna": lambda q, k, v, mask: anna_attention(q, k, v, hasher, is_causal=causal, key_mask=mask),
        "exact_match": lambda q, k, v, mask: exact_match_attention(q, k, v, is_causal=causal, key_mask=mask),
        "latest_match": lambda q, k, v, mask: latest_match_attention(q, k, v, hasher, key_mask=mask),
        "softmax": lambda q, k, v, mask: softmax_attention(q, k, v, beta=beta, is_causal=causal, key_mask=mask),
    }
    sink = Sink(out, arrays.out_shape, arrays.value.dtype)
    _check_apart(out, query, key, value, key_mask)
    started = time.monotonic()
    with torch.inference_mode(), sink, bar(remarks()) as progress:
        line = progress.add_task(mechanism, total=arrays.rows, note="")

        def report(rows: int) -> None:
            progress.advance(line, rows)

        if mechanism == "anna" and streams(arrays, hasher, memory << 20):
            attend_by_rows(arrays, hasher, causal, memory << 20, sink, report)
        else:
            attend_by_heads(arrays, work[mechanism], hasher.tables, memory << 20, sink, report)
    dtype, seconds = name_of(sink.dtype), time.monotonic() - started
    if as_json:
        print_json(
            {"output": str(out), "shape": sink.shape, "dtype": dtype, "mechanism": mechanism, "seconds": seconds}
        )
    else:
        output().print(f"{out}: {dtype} {sink.shape}, {seconds:.1f} s", markup=False, soft_wrap=True)


def _opened(query: Path, key: Path | None, value: Path | None, key_mask: Path | None, mechanism: str) -> Arrays:
    if key is None and value is None and query.suffix == ".safetensors":
        key = value = query
    if key is None or value is None:
        given = f"{1 if key is None else 2} of them"
        expected = "queries, keys and values, or one .safetensors file with the tensors query, key and value"
        raise InputError("input files", given=given, expected=expected)
    mask = None
    if key_mask is not None:
        source = Source.open("key_mask", key_mask)
        if source.dtype != torch.bool:
            raise InputError(
                "key_mask", given=f"{name_of(source.dtype)} in {key_mask}", expected="bool, True = take part"
            )
        mask = source.read(())[0]
        mask = mask[None] if mask.ndim == 1 else mask
    # Exact matches are those of any numbers.
    integers = mechanism == "exact_match"
    return Arrays(
        _numbers("query", query, integers), _numbers("key", key, integers), _numbers("value", value, False), mask
    )


def _numbers(what: str, path: Path, integers: bool) -> Source:
    source = Source.open(what, path)
    if source.dtype in FLOATS or (integers and not source.dtype.is_floating_point and not source.dtype.is_complex):
        return source
    expected = ", ".join(map(name_of, FLOATS)) + (" or integers" if integers else "")
    raise InputError(what, given=f"{name_of(source.dtype)} in {path}", expected=expected)


def _check_apart(out: Path, *inputs: Path | None) -> None:
    for path in inputs:
        if path is not None and out.exists() and out.samefile(path):
            raise InputError("output", given=f"{out}, which is an input", expected="another file")
