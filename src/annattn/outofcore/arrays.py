"""Arrays in .npy and .safetensors files, read and written in pieces, so that none has to fit in memory."""

import contextlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import IO, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from annattn.checks import did_you_mean, require_choice
from annattn.errors import InputError
from annattn.files import replacing, resolved

__all__ = ["FLOATS", "ArrayFile", "ArrayWriter", "OutputFile", "dtype_name"]

_NPY, _SAFETENSORS = ".npy", ".safetensors"
FLOATS = {
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
}  # fmt: skip
"""The floating-point dtypes that can be read and written, with their names in a safetensors file."""


@dataclass(frozen=True)
class ArrayFile:
    """An array in a file. Each read maps the file, copies the wanted part, and closes the file again.

    role: what the array is for, such as "query". path: the file. name: the tensor's name in a .safetensors file, empty
    for a .npy file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/q.npy", np.zeros((3, 5, 8), np.float32))
    ...     found = ArrayFile.open("query", Path(folder) / "q.npy")
    >>> found.shape, found.dtype
    ((3, 5, 8), torch.float32)
    """

    role: str
    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def open(cls, role: str, path: Path) -> Self:
        """The array in a file; in a .safetensors file the tensor named `role`, or the only one."""
        kind = _kind(role, path)
        if not path.is_file():
            given = f"{path}, a folder" if path.is_dir() else f"{path}, which does not exist"
            raise InputError(role, given=given, expected=f"a {kind} file")
        with _errors_as_input_errors(role, path):
            if kind == _NPY:
                array = np.lib.format.open_memmap(path, mode="r")
                return cls(role, path, "", array.shape, _torch_dtype(role, path, array.dtype))
            with safe_open(path, "pt") as file:
                names = list(file.keys())
                if len(names) == 1:
                    name = names[0]
                else:
                    name = require_choice(f"tensor of {path}", role, names, hint=did_you_mean(role, names))
                # An empty slice has the dtype as torch calls it.
                part = file.get_slice(name)
                shape = tuple(part.get_shape())
                dtype = file.get_tensor(name).dtype if not shape else part[:0].dtype
                return cls(role, path, name, shape, dtype)

    def read(self, *places: tuple[int | slice, ...]) -> Tensor:
        """The parts of the array at these places, stacked, as a copy in memory."""
        with _errors_as_input_errors(self.role, self.path):
            if self.name:
                with safe_open(self.path, "pt") as file:
                    whole = file.get_slice(self.name)
                    return torch.stack([whole[place] for place in places])
            array = np.lib.format.open_memmap(self.path, mode="r")
            parts = np.stack([array[place] for place in places])
            return torch.from_numpy(parts.astype(parts.dtype.newbyteorder("="), copy=False))


@dataclass(frozen=True)
class OutputFile:
    """A file to be written with an array of a known shape and dtype; refused at once if that cannot work."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        kind, target = _kind("output", self.path), resolved(self.path)
        if kind == _NPY and self.dtype == torch.bfloat16:
            raise InputError("output", given="bfloat16 in a .npy file", expected="a .safetensors file")
        if not target.parent.is_dir():
            raise InputError("output", given=str(self.path), expected="a file in a folder that exists")
        if target.exists() and not target.is_file():
            raise InputError("output", given=str(self.path), expected="a file, or a name that is free")

    @contextlib.contextmanager
    def writing(self) -> Iterator["ArrayWriter"]:
        """A writer of the array's rows. The file appears when the block ends; if the block raises, nothing is left."""
        header = (_npy_header if self.path.suffix == _NPY else _safetensors_header)(self.shape, self.dtype)
        size = len(header) + _bytes_of(self.shape, self.dtype)
        with replacing(self.path) as file:
            file.write(header)
            file.truncate(size)
            if hasattr(os, "posix_fallocate") and size > len(header):
                # Better to learn now that the disk is full than in an hour.
                os.posix_fallocate(file.fileno(), 0, size)
            yield ArrayWriter(file, len(header), self.dtype)


@dataclass(frozen=True)
class ArrayWriter:
    """Writes rows of an array into an open file, after its header."""

    file: IO[bytes]
    header_bytes: int
    dtype: torch.dtype

    def write(self, at: int, rows: Tensor) -> None:
        """Write consecutive rows, beginning at element number `at` of the array."""
        self.file.seek(self.header_bytes + at * self.dtype.itemsize)
        self.file.write(rows.contiguous().view(torch.uint8).numpy().data if rows.numel() else b"")


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype's name without torch's prefix.

    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def _kind(role: str, path: Path) -> str:
    if path.suffix not in (_NPY, _SAFETENSORS):
        hint = "save each array with numpy.save" if path.suffix == ".npz" else ""
        raise InputError(
            role, given=str(path), expected=f"a file name that ends in {_NPY} or {_SAFETENSORS}", hint=hint
        )
    return path.suffix


@contextlib.contextmanager
def _errors_as_input_errors(role: str, path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (SafetensorError, ValueError, TypeError, OverflowError, EOFError, SyntaxError, TokenError) as wrong:
        raise InputError(role, given=str(path), expected=f"a complete {path.suffix} file", hint=str(wrong)) from None


def _torch_dtype(role: str, path: Path, dtype: np.dtype) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        raise InputError(role, given=f"{dtype} in {path}", expected="a dtype that torch has") from None


def _bytes_of(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return dtype.itemsize * int(np.prod(shape, dtype=object))


def _npy_header(shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(torch.empty(0, dtype=dtype).numpy().dtype)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()


def _safetensors_header(shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    offsets = [0, _bytes_of(shape, dtype)]
    text = json.dumps({"output": {"dtype": FLOATS[dtype], "shape": shape, "data_offsets": offsets}}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
