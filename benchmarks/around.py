"""`python -m benchmarks.around`: what changes when one thing about a call changes: cliffs beside the grid.

Each row is a plain call, 12 heads of 1,024 tokens of dimension 64 with 8 tables of 8 hashes, or one that differs from
it in what the row says. Numbers are the time of torch's `scaled_dot_product_attention` of the same shape and dtype
divided by ANNA's, and in brackets ANNA's milliseconds. Answers are checked against sums over all pairs in float64.

Examples:
  python -m benchmarks.around                 every row
  python -m benchmarks.around --only tables   rows with that word
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import annattn as aa
from annattn.measure.answers import collision_counts, sampled_queries
from annattn.measure.timing import runs_in_turns
from benchmarks.grid import threads


@dataclass(frozen=True)
class Case:
    n: int = 1024
    heads: int = 12
    key_heads: int = 12
    dim: int = 64
    value_dim: int = 64
    tables: int = 8
    hashes: int = 8
    dtype: torch.dtype = torch.float32


PLAIN = Case()
CASES = {
    "plain": PLAIN,
    **{f"{heads} key heads": replace(PLAIN, key_heads=heads) for heads in (6, 3, 1)},
    **{f"value dim {dim}": replace(PLAIN, value_dim=dim) for dim in (1, 16, 65, 128)},
    **{f"dim {dim}": replace(PLAIN, dim=dim, value_dim=dim) for dim in (8, 48, 63, 65, 80, 96, 128)},
    **{f"{hashes} hashes": replace(PLAIN, hashes=hashes) for hashes in (1, 2, 4, 7, 9, 11, 13, 16, 31, 33, 62)},
    **{str(dtype).removeprefix("torch."): replace(PLAIN, dtype=dtype) for dtype in (
        torch.float64, torch.bfloat16, torch.float16,
    )},
    **{f"{n} tokens, {tables} tables of {hashes}": replace(PLAIN, n=n, tables=tables, hashes=hashes)
       for n, hashes in ((256, 8), (512, 9), (1024, 10), (2048, 11), (4096, 12)) for tables in (16, 32, 64)},
    **{f"{n} tokens": replace(PLAIN, n=n) for n in (1, 16, 63, 64, 65, 255, 257, 1023, 1025, 4096)},
}  # fmt: skip
_ENOUGH = 0.15  # seconds of each call


def pairs(case: Case) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Softmax and ANNA for each column, checked."""
    generator = torch.Generator().manual_seed(0)

    def rows(heads: int, dim: int) -> Tensor:
        return torch.randn(1, heads, case.n, dim, generator=generator).to(case.dtype)

    query, key = rows(case.heads, case.dim), rows(case.key_heads, case.dim)
    value, direction = rows(case.key_heads, case.value_dim), rows(case.heads, case.value_dim)
    hasher = aa.lsh.Hyperplane(case.dim).sample(tables=case.tables, hashes=case.hashes, seed=0)
    gqa = case.heads != case.key_heads
    found = {}
    for name, is_causal in (("forward", False), ("causal", True)):
        _check(aa.anna_attention(query, key, value, hasher, is_causal=is_causal), query, key, value, hasher, is_causal)
        found[name] = (
            lambda is_causal=is_causal: scaled_dot_product_attention(
                query, key, value, is_causal=is_causal, enable_gqa=gqa
            ),
            lambda is_causal=is_causal: aa.anna_attention(query, key, value, hasher, is_causal=is_causal),
        )
    q, k, v = leaves = tuple(x.clone().requires_grad_() for x in (query, key, value))
    found["forward + backward"] = (
        lambda: torch.autograd.grad(scaled_dot_product_attention(q, k, v, enable_gqa=gqa), leaves, direction),
        lambda: torch.autograd.grad(aa.anna_attention(q, k, v, hasher), leaves, direction),
    )
    return found


def _check(out: Tensor, query: Tensor, key: Tensor, value: Tensor, hasher: aa.lsh.Hasher, is_causal: bool) -> None:
    """Σ_j c_ij v_j / Σ_j c_ij of the last head, for some queries, over all keys."""
    counts = collision_counts(query[:, -1:], key[:, -1:], hasher, is_causal=is_causal)[0, 0]
    expected = counts @ value[0, -1].double() / counts.sum(-1, keepdim=True).clamp(min=1)
    relative, absolute = (1e-4, 1e-5) if out.dtype.itemsize >= 4 else (1e-2, 1e-2)
    found = out[0, -1, sampled_queries(query.shape[2])].double()
    torch.testing.assert_close(found, expected, rtol=relative, atol=absolute)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    console, table = Console(width=120), Table(title=f"softmax / ANNA, {threads()}; ms of ANNA")
    for heading in ("", "forward", "causal", "forward + backward"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, case in track(CASES.items(), "cases", console=console, transient=True):
        if options.only not in name:
            continue
        cells = []
        for softmax, anna in pairs(case).values():
            softmax()
            anna()
            runs = runs_in_turns({"softmax": softmax, "ANNA": anna}, enough=_ENOUGH)
            times = {side: statistics.median(one) for side, one in runs.items()}
            cells.append(f"{times['softmax'] / times['ANNA']:.2f} ({1e3 * times['ANNA']:.2f})")
        table.add_row(name, *cells)
    console.print(table)


if __name__ == "__main__":
    main()
