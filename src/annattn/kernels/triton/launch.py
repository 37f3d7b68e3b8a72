"""How a kernel is declared and started: one binary for one choice of dtypes and constants, whatever the sizes.

Triton would compile a kernel anew for arguments that are 1 or multiples of 16. Here it does not, so that the binaries
that run are exactly those `assembly` has compiled and held to its limits.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

__all__ = ["COLUMNS", "Kernel", "kernel", "launch", "options", "pieces"]

Kernel = Any  # triton.JITFunction, or what stands for it in the interpreter
COLUMNS = 64  # numbers of a row that one program handles


def kernel(function: Callable[..., None]) -> Kernel:
    """A Triton kernel that is specialised to dtypes and constants only."""
    sizes = [name for name, of in inspect.signature(function).parameters.items() if "constexpr" not in str(of)]
    return triton.jit(do_not_specialize=sizes, do_not_specialize_on_alignment=sizes)(function)


def options(warps: int, registers: int | None) -> dict[str, Any]:
    """What the compiler is told: warps per program, and registers per thread where its own choice would spill."""
    return {"num_warps": warps, "enable_fp_fusion": True} | ({} if registers is None else {"maxnreg": registers})


def launch(
    kernel: Kernel,
    programs: tuple[int, ...],
    *arguments: Tensor | float,
    warps: int = 4,
    registers: int | None = None,
    **constants: Any,
) -> None:
    """Start the kernel on the device of its first argument."""
    if 0 in programs:
        return
    device = arguments[0].device  # pyright: ignore[reportAttributeAccessIssue]
    with torch.cuda.device(device if device.type == "cuda" else -1):
        kernel[programs](*arguments, **constants, **options(warps, registers))


def pieces(whole: int, size: int) -> int:
    """How many pieces of this size cover the whole.

    >>> pieces(65, 64)
    2
    """
    return -(-whole // size)
