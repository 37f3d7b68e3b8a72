"""The public function: attention from files to a file."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annattn.attention import anna_attention, exact_match_attention, latest_match_attention, softmax_attention
from annattn.checks import require_choice, require_count, require_flag
from annattn.errors import InputError
from annattn.lsh import Hasher
from annattn.outofcore.arrays import FLOATS, ArrayFile, OutputFile, dtype_name
from annattn.outofcore.pieces import Inputs, attend_by_heads, attend_by_rows, needs_rows

__all__ = ["HASHING", "MECHANISMS", "attend"]

MECHANISMS = ("anna", "exact_match", "latest_match", "softmax")
"""The mechanisms by name."""
HASHING = ("anna", "latest_match")
"""Those of them that need a hasher."""

AnyPath = str | PathLike[str]
Call = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def attend(
    query: AnyPath,
    key: AnyPath,
    value: AnyPath,
    out: AnyPath,
    *,
    mechanism: str = "anna",
    hasher: Hasher | None = None,
    beta: float = 1.0,
    is_causal: bool = False,
    key_mask: AnyPath | None = None,
    memory_bytes: int = 2**28,
    progress: Callable[[float], None] = lambda share: None,
) -> ArrayFile:
    """Attend over arrays in files, and write the result to another file.

    Arrays are (n, dim), (heads, n, dim) or (batch, heads, n, dim), in .npy or .safetensors files. The files are mapped
    and worked through in pieces, so none has to fit in memory. The output appears when it is complete: a run that fails
    or is stopped leaves nothing behind.

    >>> import tempfile
    >>> import numpy as np
    >>> import annattn as aa
    >>> x = np.random.default_rng(0).standard_normal((2, 100, 16), dtype=np.float32)
    >>> hasher = aa.lsh.Hyperplane(16).sample(tables=8, hashes=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", x)
    ...     done = attend(*[f"{folder}/x.npy"] * 3, f"{folder}/out.npy", hasher=hasher)
    ...     found = torch.from_numpy(np.load(f"{folder}/out.npy"))
    >>> done.shape
    (2, 100, 16)
    >>> torch.equal(found, aa.anna_attention(*[torch.from_numpy(x)[None]] * 3, hasher)[0])
    True

    Args:
        query: the queries. A .safetensors file may hold several arrays: a tensor is found by the name of its role.
        key: the keys.
        value: the values; the result has their dtype.
        out: the file to write.
        mechanism: "anna", "exact_match", "latest_match" (always causal) or "softmax" (quadratic).
        hasher: the hash functions, for "anna" and "latest_match".
        beta: the inverse temperature of "softmax", whose queries and keys are scaled to length 1.
        is_causal: whether query i sees only the keys up to its own position, the last query aligned with the last key.
        key_mask: a file of bool, (n,) or (batch, n): True where a key takes part.
        memory_bytes: memory to work in. As many heads are taken at a time as fit, and at least one; with "anna" a head
            that does not fit is cut into blocks of rows.
        progress: called with the share of the work that is done, from 0 to 1.
    """
    require_choice("mechanism", mechanism, MECHANISMS)
    memory_bytes = require_count("memory_bytes", memory_bytes)
    require_flag("is_causal", is_causal)
    if mechanism in HASHING and not isinstance(hasher, Hasher):
        raise InputError(
            "hasher",
            given=repr(hasher),
            expected=f"a hasher for {mechanism}",
            hint="for example aa.lsh.Hyperplane(64).sample(tables=8, hashes=8)",
        )
    inputs = _open_inputs(query, key, value, key_mask, integers=mechanism == "exact_match")
    output = OutputFile(Path(out), inputs.out_shape, inputs.value.dtype)
    for path in (query, key, value, key_mask):
        if path is not None and output.path.exists() and output.path.samefile(path):
            raise InputError("output", given=f"{output.path}, which is an input", expected="another file")
    call = _call_of(mechanism, hasher, beta, is_causal)
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        progress(done / max(1, inputs.rows))

    with torch.inference_mode(), output.writing() as writer:
        count(0)
        if mechanism == "anna" and hasher is not None and needs_rows(inputs, hasher, memory_bytes):
            attend_by_rows(inputs, hasher, is_causal, memory_bytes, writer, count)
        else:
            attend_by_heads(inputs, call, 1 if hasher is None else hasher.tables, memory_bytes, writer, count)
    return ArrayFile.open("output", output.path)


def _call_of(mechanism: str, hasher: Any, beta: float, is_causal: bool) -> Call:
    calls: dict[str, Call] = {
        "anna": lambda q, k, v, mask: anna_attention(q, k, v, hasher, is_causal=is_causal, key_mask=mask),
        "exact_match": lambda q, k, v, mask: exact_match_attention(q, k, v, is_causal=is_causal, key_mask=mask),
        "latest_match": lambda q, k, v, mask: latest_match_attention(q, k, v, hasher, key_mask=mask),
        "softmax": lambda q, k, v, mask: softmax_attention(q, k, v, beta=beta, is_causal=is_causal, key_mask=mask),
    }
    return calls[mechanism]


def _open_inputs(query: AnyPath, key: AnyPath, value: AnyPath, key_mask: AnyPath | None, *, integers: bool) -> Inputs:
    # Exact matches are defined for integers too.
    return Inputs(
        _open_numbers("query", Path(query), integers),
        _open_numbers("key", Path(key), integers),
        _open_numbers("value", Path(value), False),
        None if key_mask is None else _read_mask(Path(key_mask)),
    )


def _open_numbers(role: str, path: Path, integers: bool) -> ArrayFile:
    array = ArrayFile.open(role, path)
    if array.dtype in FLOATS or (integers and not array.dtype.is_floating_point and not array.dtype.is_complex):
        return array
    expected = ", ".join(map(dtype_name, FLOATS)) + (" or integers" if integers else "")
    raise InputError(role, given=f"{dtype_name(array.dtype)} in {path}", expected=expected)


def _read_mask(path: Path) -> Tensor:
    array = ArrayFile.open("key_mask", path)
    if array.dtype != torch.bool:
        given = f"{dtype_name(array.dtype)} in {path}"
        raise InputError("key_mask", given=given, expected="bool, True where a key takes part")
    mask = array.read(())[0]
    return mask[None] if mask.ndim == 1 else mask
