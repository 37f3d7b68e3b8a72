"""Arrays in .npy and .safetensors files: read and written piece by piece, so that none has to fit in memory."""

import contextlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from annattn.cli.names import known
from annattn.errors import InputError

__all__ = ["FLOATS", "Sink", "Source", "name_of"]

_NPY, _SAFETENSORS = ".npy", ".safetensors"
FLOATS = {
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
}  # fmt: skip
"""The floating-point dtypes that can be read and written, by their names in a safetensors file."""


@dataclass(frozen=True)
class Source:
    """One array in a file. A read maps the file, copies the part that is wanted, and lets go of it again."""

    what: str
    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def open(cls, what: str, path: Path) -> Self:
        """The array `what` of a file: of a safetensors file the tensor of that name, or its only one."""
        kind = _kind(what, path)
        if not path.is_file():
            given = f"{path}, a folder" if path.is_dir() else f"{path}, which is not there"
            raise InputError(what, given=given, expected=f"a {kind} file")
        name = ""
        with _reading(what, path):
            if kind == _NPY:
                array = np.lib.format.open_memmap(path, mode="r")
                return cls(what, path, name, array.shape, _torch_dtype(what, path, array.dtype))
            with safe_open(path, "pt") as file:
                names = list(file.keys())
                name = names[0] if len(names) == 1 else known(f"tensor of {path}", what, names)
                # A slice of nothing has the dtype as torch calls it.
                part = file.get_slice(name)
                shape = tuple(part.get_shape())
                dtype = file.get_tensor(name).dtype if not shape else part[:0].dtype
                return cls(what, path, name, shape, dtype)

    def read(self, *places: tuple[int | slice, ...]) -> Tensor:
        """The parts of the array at these places, stacked, in memory of their own."""
        with _reading(self.what, self.path):
            if self.name:
                with safe_open(self.path, "pt") as file:
                    whole = file.get_slice(self.name)
                    return torch.stack([whole[place] for place in places])
            array = np.lib.format.open_memmap(self.path, mode="r")
            parts = np.stack([array[place] for place in places])
            return torch.from_numpy(parts.astype(parts.dtype.newbyteorder("="), copy=False))


class Sink:
    """An array being written to a file: under another name beside its place, and moved there once it is whole."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        kind = _kind("output", path)
        if kind == _NPY and dtype == torch.bfloat16:
            raise InputError("output", given="bfloat16 in a .npy file", expected="a .safetensors file")
        # A link stays one: what it points to is replaced.
        self.path, self.shape, self.dtype = path.resolve(), shape, dtype
        if not self.path.parent.is_dir():
            raise InputError("output", given=str(path), expected="a name in a folder that is there")
        if self.path.exists() and not self.path.is_file():
            raise InputError("output", given=str(path), expected="a file, or a name that is free")
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        self._header = (_npy_header if kind == _NPY else _safetensors_header)(shape, dtype)

    def __enter__(self) -> Self:
        # Read as well as written, as the file may have been there from a run that was killed.
        self._file = self._partial.open("wb")
        try:
            size = self.dtype.itemsize * int(np.prod(self.shape, dtype=object))
            self._file.write(self._header)
            self._file.truncate(len(self._header) + size)
            if hasattr(os, "posix_fallocate") and size:
                # A full disk is better known now than in an hour.
                os.posix_fallocate(self._file.fileno(), 0, len(self._header) + size)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def write(self, at: int, rows: Tensor) -> None:
        """Put rows, in order and without gaps, where element number `at` of the array is."""
        self._file.seek(len(self._header) + at * self.dtype.itemsize)
        self._file.write(rows.contiguous().view(torch.uint8).numpy().data if rows.numel() else b"")

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            # Closing writes what is still held back, so it may fail as writing does.
            self._file.close()
            if kind is None:
                os.replace(self._partial, self.path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._partial.unlink()


def name_of(dtype: torch.dtype) -> str:
    """A dtype as it is called outside of torch.

    >>> name_of(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def _kind(what: str, path: Path) -> str:
    if path.suffix not in (_NPY, _SAFETENSORS):
        hint = "save each array with numpy.save" if path.suffix == ".npz" else ""
        raise InputError(
            what, given=str(path), expected=f"a file name that ends in {_NPY} or {_SAFETENSORS}", hint=hint
        )
    return path.suffix


@contextlib.contextmanager
def _reading(what: str, path: Path) -> Any:
    try:
        yield
    except InputError:
        raise
    except (SafetensorError, ValueError, TypeError, OverflowError, EOFError, SyntaxError) as wrong:
        raise InputError(what, given=str(path), expected=f"a whole {path.suffix} file", hint=str(wrong)) from None


def _torch_dtype(what: str, path: Path, dtype: np.dtype) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        raise InputError(what, given=f"{dtype} in {path}", expected="numbers that torch knows") from None


def _npy_header(shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    written = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(torch.empty(0, dtype=dtype).numpy().dtype)
    np.lib.format.write_array_header_1_0(written, {"descr": descr, "fortran_order": False, "shape": shape})
    return written.getvalue()


def _safetensors_header(shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    size = dtype.itemsize * int(np.prod(shape, dtype=object))
    text = json.dumps({"output": {"dtype": FLOATS[dtype], "shape": shape, "data_offsets": [0, size]}}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
