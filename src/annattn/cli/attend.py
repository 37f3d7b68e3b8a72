"""`annattn attend`: attention over arrays in files."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from annattn import outofcore
from annattn.checks import require_count
from annattn.cli.families import Family, make_family
from annattn.cli.terminal import Flag, Integer, JsonFlag, print_json, print_line, progress_bar, stderr_console
from annattn.errors import InputError
from annattn.lsh import Hasher
from annattn.outofcore.arrays import dtype_name

__all__ = ["attend"]


def attend(
    query: Path,
    key: Path | None = None,
    value: Path | None = None,
    /,
    *,
    out: Annotated[Path, Parameter(name=("--output", "-o"))],
    mechanism: Literal["anna", "exact_match", "latest_match", "softmax"] = "anna",
    tables: Integer = 8,
    hashes: Integer = 8,
    family: Family = "hyperplane",
    width: float | None = None,
    seed: Integer = 0,
    beta: float = 1.0,
    causal: Flag = False,
    key_mask: Path | None = None,
    memory: Integer = 256,
    as_json: JsonFlag = False,
) -> None:
    """Attend over arrays in files, and write the result to another file.

    Arrays are (n, dim), (heads, n, dim) or (batch, heads, n, dim), in .npy or .safetensors files. They are mapped and
    worked through in pieces, so none has to fit in memory. The same seed gives the same result every time. The output
    appears when it is complete: a run that is stopped leaves nothing behind.

    Example: annattn attend q.npy k.npy v.npy -o out.npy --tables 8 --hashes 8

    Example: annattn attend qkv.safetensors -o out.safetensors --causal

    Args:
        query: the queries, or one .safetensors file with the tensors query, key and value.
        key: the keys.
        value: the values; the result has their dtype.
        out: the file to write.
        mechanism: anna (approximate nearest neighbours), exact_match, latest_match (causal), or softmax (quadratic).
        tables: hash tables, for anna and latest_match.
        hashes: hash functions per table.
        family: the family of hash functions.
        width: width of the euclidean family's slabs; 4 by default.
        seed: determines the hash functions.
        beta: inverse temperature of softmax, whose queries and keys are scaled to length 1.
        causal: query i sees only the keys up to its own position; the last query is aligned with the last key.
        key_mask: a file of bool, (n,) or (batch, n): True where a key takes part.
        memory: MiB to work in. As many heads are taken at a time as fit, and at least one; with anna a larger head is
            cut.
        as_json: print what was done as JSON.
    """
    require_count("--memory", memory)
    if key is None and value is None and query.suffix == ".safetensors":
        key = value = query
    if key is None or value is None:
        given = f"{1 if key is None else 2} of them"
        expected = "queries, keys and values, or one .safetensors file with the tensors query, key and value"
        raise InputError("input files", given=given, expected=expected)
    started = time.monotonic()
    with _options_in_errors(), progress_bar(stderr_console()) as progress:
        line = progress.add_task(mechanism, total=1.0, note="", visible=False)
        done = outofcore.attend(
            query,
            key,
            value,
            out,
            mechanism=mechanism,
            hasher=_make_hasher(query, mechanism, family, width, tables, hashes, seed),
            beta=beta,
            is_causal=causal,
            key_mask=key_mask,
            memory_bytes=memory << 20,
            progress=lambda share: progress.update(line, completed=share, visible=True),
        )
    dtype, seconds = dtype_name(done.dtype), time.monotonic() - started
    if as_json:
        print_json(
            {"output": str(out), "shape": done.shape, "dtype": dtype, "mechanism": mechanism, "seconds": seconds}
        )
    else:
        print_line(f"{out}: {dtype} {done.shape}, {seconds:.1f} s")


def _make_hasher(
    query: Path, mechanism: str, family: Family, width: float | None, tables: int, hashes: int, seed: int
) -> Hasher | None:
    shape = outofcore.ArrayFile.open("query", query).shape
    hash_family = make_family(family, shape[-1] if shape else 1, width)
    if mechanism in outofcore.HASHING:
        return hash_family.sample(tables=tables, hashes=hashes, seed=seed)
    # The options are checked although nothing hashes; a hasher of that size is not drawn.
    hash_family.sample(tables=min(tables, 1), hashes=min(hashes, 1), seed=seed)
    return None


@contextmanager
def _options_in_errors() -> Iterator[None]:
    """Errors name what was typed, `--key-mask`, instead of the library's argument."""
    try:
        yield
    except InputError as error:
        # Only the word by itself: it may also be part of a file's name.
        error.args = (re.sub(r"(?<![\w./-])key_mask(?![\w./-])", "--key-mask", str(error)),)
        raise
