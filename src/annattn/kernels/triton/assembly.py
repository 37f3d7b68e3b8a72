"""Every binary that ships, compiled by the real assembler for the GPUs people own; no GPU and no driver are needed.

Which binaries there are is found by running the backend on small inputs of every kind it takes, with `launch` replaced
by a function that notes the kernel, the types of its arguments and its constants. `python -m
annattn.kernels.triton.assembly` compiles them all and prints JSON.
"""

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from annattn.kernels.interface import BandInputs, GradientInputs, Order, Slope, SumInputs
from annattn.kernels.triton import atomic, band, decode, hashing, launch, outer, sums
from annattn.kernels.triton.backend import AtomicTritonBackend, TritonBackend
from annattn.lsh import CrossPolytope, Hyperplane

__all__ = ["TARGETS", "Assembled", "Configuration", "assemble", "configuration", "configurations"]

TARGETS = {"sm_80": 80, "sm_90": 90, "sm_100": 100}
"""A100; H100; B200."""

_POINTERS = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int64: "*i64", torch.int32: "*i32", torch.int8: "*i8", torch.bool: "*i1",
}  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """One binary: a kernel, the types of its arguments, its constants, its warps and its limit on registers."""

    kernel: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    warps: int
    registers: int | None = None


@dataclass(frozen=True)
class Assembled:
    """What the assembler says of one binary: per thread registers and bytes spilled, per program shared bytes."""

    configuration: Configuration
    target: str
    registers: int
    spilled: int
    shared: int


def configuration(
    kernel: launch.Kernel, arguments: tuple[Any, ...], warps: int, registers: int | None, **constants: Any
) -> Configuration:
    """The binary that these arguments take."""
    types = []
    for name, argument in zip(kernel.arg_names, arguments, strict=False):
        said = str(kernel.fn.__annotations__.get(name, ""))
        if isinstance(argument, Tensor):
            kind = _POINTERS[argument.dtype]
        elif "int64" in said:
            kind = "i64"
        else:
            kind = "fp32" if isinstance(argument, float) else "i32"
        types.append((name, kind))
    return Configuration(kernel.__name__, tuple(types), tuple(sorted(constants.items())), warps, registers)


def configurations() -> dict[Configuration, launch.Kernel]:
    """Every binary that the backend can ask for, with its kernel."""
    found: dict[Configuration, launch.Kernel] = {}

    def note(
        kernel: launch.Kernel,
        programs: tuple[int, ...],
        *arguments: Any,
        warps: int = 4,
        registers: int | None = None,
        **constants: Any,
    ) -> None:
        assert 0 not in programs
        found[configuration(kernel, arguments, warps, registers, **constants)] = kernel

    modules: tuple[Any, ...] = (atomic, band, decode, hashing, outer, sums)
    before = [module.launch for module in modules]
    try:
        for module in modules:
            module.launch = note
        for call in _calls():
            call()
    finally:
        for module, kept in zip(modules, before, strict=True):
            module.launch = kept
    return found


def _calls() -> Iterator[Callable[[], object]]:
    """The backend's operations on inputs of every kind that makes a difference to a binary."""
    backend = TritonBackend()
    rows = torch.zeros(1, 1, 2, 16)
    for bits in hashing.BITS:
        yield lambda bits=bits: backend.hash_rows(Hyperplane(16).sample(tables=1, hashes=min(bits, 60)), rows)
    yield lambda: backend.hash_rows(CrossPolytope(16).sample(tables=1, hashes=1), rows)
    axes = 16
    while axes <= hashing.MOST_AXES:
        family = CrossPolytope(axes, rotation="structured")
        yield lambda family=family: backend.hash_rows(
            family.sample(tables=1, hashes=1), torch.zeros(1, 1, 2, family.dim)
        )
        axes *= 2
    codes = torch.zeros(1, 1, 2, 1, dtype=torch.int64)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        value = torch.zeros(1, 1, 2, 4, dtype=dtype)
        inputs = SumInputs(codes, codes, value, Order.ALL, 1)
        yield lambda inputs=inputs: backend.bucket_sum(inputs)
        yield lambda inputs=inputs: AtomicTritonBackend().bucket_sum(inputs)
        count = torch.ones(1, 1, 2, dtype=torch.int64)
        gradient = GradientInputs(value, value, value, value, value, count, Slope(0.5), Order.ALL, codes, codes, 1)
        yield lambda gradient=gradient: backend.query_key_gradient(gradient)
        if dtype != torch.float64:
            for n in (1, 17):
                rows = torch.zeros(1, 1, n, 4, dtype=dtype)
                near = BandInputs(rows, rows, rows, 1, 1.0, True)
                yield lambda near=near: backend.band(near)
            wide = rows.float()
            yield lambda near=near, wide=wide: backend.band_gradient(near, wide, wide[..., 0], wide, None)
    yield from decode.every_kind()


def assemble(found: Configuration, kernel: launch.Kernel, target: str) -> Assembled:
    """Compile one binary for one target, and ask the assembler what it takes."""
    names = dict(found.constants)
    source = ASTSource(kernel, dict(found.types) | dict.fromkeys(names, "constexpr"), names)
    options = launch.options(found.warps, found.registers)
    said = io.StringIO()
    # Anew, and with what the assembler prints of it: registers and spills are in no other place.
    with knobs.compilation.scope(), knobs.nvidia.scope(), contextlib.redirect_stdout(said):
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        compiled = triton.compile(source, target=GPUTarget("cuda", TARGETS[target], 32), options=options)
    (registers,) = re.findall(r"Used (\d+) registers", said.getvalue())
    (spilled,) = re.findall(r"(\d+) bytes spill stores", said.getvalue())
    return Assembled(found, target, int(registers), int(spilled), compiled.metadata.shared)


def main() -> None:
    """Assemble everything and print JSON: one object per binary and target."""
    every = [assemble(found, kernel, target) for found, kernel in configurations().items() for target in TARGETS]
    sys.stdout.write(json.dumps([asdict(one) for one in every], indent=1) + "\n")


if __name__ == "__main__":
    main()
