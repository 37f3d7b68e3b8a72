"""`python -m benchmarks.hashing`: the time of hashing beside torch's matrix product of the same size, one thread each.

For every number of hashes from 1 to 62 and for widths from 8 to 256: `tables` tables of `hashes` hyperplanes of n rows,
against rows @ normals.T in float32, which leaves the signs, the packing and the float64 decisions undone. Codes are
compared with the definition before anything is timed. To imitate a processor without AVX-512 on one with it:

  ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
  NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= python -m benchmarks.hashing

Examples:
  python -m benchmarks.hashing                              the ratios, a row per width
  python -m benchmarks.hashing --dims 64 --hashes 8 12 --tables 32
"""

import argparse
import statistics

import torch
from rich.console import Console
from rich.table import Table

from annattn.kernels.numba.hashing import hash_rows
from annattn.lsh import Hyperplane
from annattn.measure.timing import runs_in_turns

DIMS = (8, 16, 24, 32, 48, 64, 80, 96, 128, 256)
HASHES = (1, 2, 3, 4, 6, 7, 8, 9, 12, 16, 20, 28, 31, 32, 40, 62)
_ENOUGH = 0.01  # seconds that the runs of a call take together


def ratio(n: int, dim: int, tables: int, hashes: int, enough: float = _ENOUGH) -> tuple[float, float]:
    """Median seconds of hashing n rows, and how many times longer that is than the matrix product."""
    hasher = Hyperplane(dim).sample(tables=tables, hashes=hashes, seed=0)
    rows = torch.randn(1, 1, n, dim, generator=torch.Generator().manual_seed(0))
    if not torch.equal(hash_rows(hasher, rows[:, :, :64])[0], hasher(rows[:, :, :64])):
        raise RuntimeError(f"wrong codes at dim {dim}, {tables} x {hashes}")
    normals = hasher.parameters[0].T.contiguous()
    product = torch.empty(n, normals.shape[1])
    calls = {"hash": lambda: hash_rows(hasher, rows), "product": lambda: torch.mm(rows[0, 0], normals, out=product)}
    for call in calls.values():
        call()
    times = runs_in_turns(calls, enough=enough)
    seconds = {name: statistics.median(runs) for name, runs in times.items()}
    return seconds["hash"], seconds["hash"] / seconds["product"]


def main() -> None:
    """Print a row of ratios per width, and the largest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", nargs="*", type=int, default=DIMS, help="widths of a row")
    parser.add_argument("--hashes", nargs="*", type=int, default=HASHES, help="hashes per table")
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table(title=f"hashing / matrix product, {options.rows:,} rows, {options.tables} tables")
    for heading in ("dim", *map(str, options.hashes)):
        table.add_column(heading, justify="right")
    every = {}
    for dim in options.dims:
        found = [ratio(options.rows, dim, options.tables, hashes)[1] for hashes in options.hashes]
        every |= {(dim, hashes): one for hashes, one in zip(options.hashes, found, strict=True)}
        table.add_row(str(dim), *(f"{one:.2f}" for one in found))
    console = Console(width=140)
    console.print(table)
    worst = max(every, key=lambda case: every[case])
    middle = statistics.median(every.values())
    console.print(f"largest: {every[worst]:.2f} at dim {worst[0]}, {worst[1]} hashes; median {middle:.2f}")


if __name__ == "__main__":
    main()
