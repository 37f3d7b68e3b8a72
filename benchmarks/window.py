"""What a window's exact softmax costs beside ANNA and beside softmax over all keys: `python -m benchmarks.window`.

Milliseconds of a call without gradients, and of one forward and backward pass. ANNA has 8 tables of 8 hashes. An answer
is compared with softmax under a mask of all pairs before it is timed.
"""

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import annattn as aa
from annattn.attention.sliding_window import inside_window, sliding_window_attention
from annattn.measure import median_of_blocks

SHAPES = ((4, 12, 512, 64, 32), (1, 12, 1_024, 64, 64), (1, 8, 4_096, 64, 64), (1, 8, 4_096, 64, 256))
Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def calls(dim: int, window: int, is_causal: bool) -> dict[str, Call]:
    """The three to compare."""
    hasher = aa.lsh.Hyperplane(dim).sample(tables=8, hashes=8, seed=0)
    softmax = torch.nn.functional.scaled_dot_product_attention
    return {
        "window": lambda q, k, v: sliding_window_attention(q, k, v, window=window, is_causal=is_causal),
        "ANNA": lambda q, k, v: aa.anna_attention(q, k, v, hasher, is_causal=is_causal),
        "softmax": lambda q, k, v: softmax(q, k, v, is_causal=is_causal),
    }


def check(n: int, rows: Tensor, window: int, is_causal: bool) -> None:
    """Raise unless the window's answer is softmax under a mask."""
    seen = inside_window(n, n, window)
    seen = seen.tril() if is_causal else seen
    expected = torch.nn.functional.scaled_dot_product_attention(*rows[:, :, :1], attn_mask=seen)
    query, key, value = rows[:, :, :1]
    found = sliding_window_attention(query, key, value, window=window, is_causal=is_causal)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def measure(batch: int, heads: int, n: int, dim: int, window: int, is_causal: bool) -> dict[str, float]:
    """Seconds by name; names that end in "train" include the backward pass."""
    rows = torch.randn(3, batch, heads, n, dim, generator=torch.Generator().manual_seed(0))
    check(n, rows, window, is_causal)

    def run(call: Call) -> None:
        with torch.no_grad():
            call(rows[0], rows[1], rows[2])

    def train(call: Call) -> None:
        query, key, value = (x.clone().requires_grad_() for x in rows)
        call(query, key, value).sum().backward()

    timed: dict[str, Callable[[], object]] = {}
    for name, call in calls(dim, window, is_causal).items():
        timed[name] = lambda call=call: run(call)
        timed[f"{name} train"] = lambda call=call: train(call)
    return median_of_blocks(timed, rounds=1, enough=0.2)


def main() -> None:
    """Print a row per shape and order."""
    argparse.ArgumentParser(prog="python -m benchmarks.window", description=__doc__).parse_args()
    table = Table(
        "batch x heads x n x dim, window", "order", "window", "ANNA", "softmax", "train: window", "ANNA", "softmax"
    )
    for *shape, window in SHAPES:
        for is_causal in (True, False):
            found = measure(shape[0], shape[1], shape[2], shape[3], window, is_causal)
            times = [
                f"{1e3 * found[name + kind]:.1f}" for kind in ("", " train") for name in ("window", "ANNA", "softmax")
            ]
            table.add_row(f"{'x'.join(map(str, shape))}, {window}", "causal" if is_causal else "both sides", *times)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
