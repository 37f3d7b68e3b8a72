"""`python -m benchmarks.grid`: ANNA against torch's softmax attention at the shapes people use, with its accuracy.

Every answer is checked before it is timed, against the sum over all pairs in float64 on sampled queries; gradients of
values against those of the same sum. Both sides use the same number of threads and take turns. Prints tables, and
writes `grid.json` and a heat map.

Examples:
  python -m benchmarks.grid                  all shapes (three minutes on two cores)
  python -m benchmarks.grid --shapes 0 3     the first and the fourth
  python -m benchmarks.grid --matches        latest match and exact match beside ANNA, instead of softmax
"""

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import annattn as aa
from annattn.drawing import heat, write_figure
from annattn.files import write_json
from annattn.lsh import Hyperplane
from annattn.measure import Accuracy, describe_machine
from annattn.measure.answers import check_answer, collision_counts, sampled_queries
from annattn.measure.timing import runs_in_turns, timed

COLUMNS = ("forward", "causal", "forward + backward")


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    n: int
    dim: int
    tables: int
    hashes: int

    @property
    def label(self) -> str:
        return f"{self.batch} × {self.heads} × {self.n:,} × {self.dim}, {self.tables} × {self.hashes}"


SHAPES = (
    Shape(8, 12, 128, 32, 8, 8),
    Shape(8, 12, 512, 32, 8, 8),
    Shape(4, 12, 512, 64, 8, 8),
    Shape(1, 12, 1024, 64, 8, 8),
    Shape(1, 32, 2048, 128, 32, 10),
    Shape(1, 8, 4096, 64, 32, 12),
    Shape(1, 8, 16_384, 64, 32, 14),
    Shape(1, 8, 16_384, 64, 16, 28),
)


def threads() -> str:
    """How many threads torch uses, in words."""
    count = torch.get_num_threads()
    return f"{count} thread{'s' * (count > 1)}"


def accuracy_of(shape: Shape) -> Accuracy:
    """What the tables and hashes of a shape are worth at its length."""
    return Accuracy.of(shape.n, dim=shape.dim, tables=shape.tables, hashes=shape.hashes)


def measured_share(shape: Shape, draws: int = 8) -> float:
    """The weight of the true match among random keys: one query per key, averaged over all of them and over draws."""
    shares = []
    for draw in range(draws):
        rows = torch.randn(1, 1, shape.n, shape.dim, generator=torch.Generator().manual_seed(draw))
        hasher = Hyperplane(shape.dim).sample(tables=shape.tables, hashes=shape.hashes, seed=draw)
        # Each query meets its own key in every table, so Σ_j c_ij, its own meetings included, is all there is to know.
        met = torch.zeros(shape.n, dtype=torch.float64)
        for column in hasher(rows[0, 0]).unbind(-1):
            _, bucket, size = column.unique(return_inverse=True, return_counts=True)
            met += size[bucket]
        shares.append((shape.tables / met).mean().item())
    return statistics.mean(shares)


def calls(shape: Shape) -> dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]]:
    """Softmax and ANNA for each column, checked."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, shape.batch, shape.heads, shape.n, shape.dim, generator=generator)
    hasher = Hyperplane(shape.dim).sample(tables=shape.tables, hashes=shape.hashes, seed=0)
    found = {}
    for name, is_causal in (("forward", False), ("causal", True)):
        out = aa.anna_attention(query, key, value, hasher, is_causal=is_causal)
        counts = collision_counts(query[:1], key[:1], hasher, is_causal=is_causal)
        check_answer(f"ANNA, {shape.label}", out[:1], counts, value[:1])
        found[name] = (
            lambda is_causal=is_causal: scaled_dot_product_attention(query, key, value, is_causal=is_causal),
            lambda is_causal=is_causal: aa.anna_attention(query, key, value, hasher, is_causal=is_causal),
        )
    q, k, v = leaves = tuple(x.clone().requires_grad_() for x in (query, key, value))
    direction = torch.randn(value.shape, generator=generator)

    def backward(out: Tensor) -> Tensor:
        return torch.autograd.grad(out, leaves, direction)[2]

    grad = backward(aa.anna_attention(q, k, v, hasher))
    _check_value_gradient(query[:1, :1], key[:1, :1], hasher, direction[:1, :1], grad[:1, :1])
    found["forward + backward"] = (
        lambda: backward(scaled_dot_product_attention(q, k, v)),
        lambda: backward(aa.anna_attention(q, k, v, hasher)),
    )
    return found


def _check_value_gradient(query: Tensor, key: Tensor, hasher: aa.lsh.Hasher, direction: Tensor, grad: Tensor) -> None:
    """dv_j = Σ_i c_ij g_i / C_i for a few keys, over all queries."""
    codes, some = hasher(query[0, 0]), torch.arange(0, key.shape[2], max(1, key.shape[2] // 8))
    total = torch.zeros(query.shape[2], dtype=torch.float64)
    for column, keys in zip(codes.T.contiguous(), hasher(key[0, 0]).T.contiguous(), strict=True):
        ordered = keys.sort().values
        total += torch.searchsorted(ordered, column, right=True) - torch.searchsorted(ordered, column)
    weight = (codes[:, None] == hasher(key[0, 0, some])[None]).sum(-1) / total.clamp(min=1)[:, None]
    torch.testing.assert_close(grad[0, 0, some].double(), weight.T @ direction[0, 0].double(), rtol=1e-3, atol=1e-4)


def measure(shape: Shape) -> dict[str, dict[str, float]]:
    """Median seconds of both sides and their ratio, per column."""
    found = {}
    for name, pair in calls(shape).items():
        once = [timed(call)[0] for call in pair]
        turns = dict(zip(("softmax", "ANNA"), pair, strict=True))
        runs = {"softmax": once[:1]} if once[0] > 2 else {}  # what takes seconds is run twice in all
        runs |= runs_in_turns({side: call for side, call in turns.items() if side not in runs}, enough=0.6)
        times = {side: statistics.median(runs[side]) for side in turns}
        found[name] = times | {"ratio": times["softmax"] / times["ANNA"]}
    return found


def match_calls(shape: Shape) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """ANNA and another mechanism that reads buckets, for each column, checked.

    Rows for exact match are drawn from n different ones, so that a query equals one key on average.
    """
    generator = torch.Generator().manual_seed(0)
    size = shape.batch, shape.heads, shape.n
    query, key, value = torch.randn(3, *size, shape.dim, generator=generator)
    rows = torch.randn(shape.n, shape.dim, generator=generator)
    asked, held = rows[torch.randint(shape.n, (2, *size), generator=generator)]
    hasher = Hyperplane(shape.dim).sample(tables=shape.tables, hashes=shape.hashes, seed=0)
    out = aa.latest_match_attention(query, key, value, hasher)
    check_answer(f"latest match, {shape.label}", out[:1, :1], _newest_counts(query, key, hasher), value[:1, :1])
    sample = sampled_queries(shape.n)
    equal = (asked[:1, :1, sample, None] == held[:1, :1, None]).all(-1).double()
    for is_causal in (False, True):
        out = aa.exact_match_attention(asked, held, value, is_causal=is_causal)
        seen = equal * (torch.arange(shape.n) <= sample[:, None]) if is_causal else equal
        check_answer(f"exact match, {shape.label}", out[:1, :1], seen, value[:1, :1])
    leaves = q, k, v = tuple(x.clone().requires_grad_() for x in (query, key, value))
    direction = torch.randn(value.shape, generator=generator)

    def anna(is_causal: bool) -> Callable[[], Tensor]:
        return lambda: aa.anna_attention(query, key, value, hasher, is_causal=is_causal)

    def anna_backward(is_causal: bool) -> Callable[[], object]:
        return lambda: torch.autograd.grad(aa.anna_attention(q, k, v, hasher, is_causal=is_causal), leaves, direction)

    return {
        "latest match": (anna(True), lambda: aa.latest_match_attention(query, key, value, hasher)),
        "latest match + backward": (
            anna_backward(True),
            lambda: torch.autograd.grad(aa.latest_match_attention(q, k, v, hasher), leaves, direction),
        ),
        "exact match": (anna(False), lambda: aa.exact_match_attention(asked, held, value)),
        "exact match, causal": (anna(True), lambda: aa.exact_match_attention(asked, held, value, is_causal=True)),
        "exact match + backward": (
            anna_backward(False),
            lambda: torch.autograd.grad(aa.exact_match_attention(asked, held, v), v, direction),
        ),
    }


def _newest_counts(query: Tensor, key: Tensor, hasher: aa.lsh.Hasher) -> Tensor:
    """In how many tables a key is the newest in a sampled query's bucket, over all keys of the first head."""
    sample = sampled_queries(query.shape[2])
    asked, held = hasher(query[0, 0, sample]), hasher(key[0, 0])
    counts = torch.zeros(len(sample), len(held), dtype=torch.float64)
    for row, i in enumerate(sample.tolist()):
        for table in range(hasher.tables):
            met = (held[: i + 1, table] == asked[row, table]).nonzero().flatten()
            if len(met):
                counts[row, met[-1]] += 1
    return counts[None, None]


def measure_matches(shape: Shape) -> dict[str, dict[str, float]]:
    """Median seconds of ANNA and of the other mechanism, per column."""
    found = {}
    for name, (anna, other) in match_calls(shape).items():
        anna()
        other()
        runs = runs_in_turns({"ANNA": anna, "match": other}, enough=0.2)
        found[name] = {side: statistics.median(times) for side, times in runs.items()}
    return found


def print_matches(console: Console, shapes: list[Shape]) -> None:
    """A row per shape: how many times ANNA's time, and in brackets milliseconds."""
    table = Table(title=f"time / ANNA's time, {threads()}; ms in brackets")
    for number, shape in enumerate(track(shapes, "shapes", console=console, transient=True)):
        found = measure_matches(shape)
        for heading in ("batch × heads × tokens × dim, tables × hashes", *found) if number == 0 else ():
            table.add_column(heading, justify="right")
        cells = (f"{one['match'] / one['ANNA']:.2f} ({1e3 * one['match']:.1f})" for one in found.values())
        table.add_row(shape.label, *cells)
    console.print(table)


def draw(results: list[dict], path: Path) -> None:
    """The ratios as a heat map, shape by column; blue where ANNA is faster, orange where it is not."""
    ratios = [[one["columns"][name]["ratio"] for name in COLUMNS] for one in results]
    slower = any(ratio < 1 for row in ratios for ratio in row)
    write_figure(
        lambda theme: heat(
            ratios,
            [Shape(**one["shape"]).label for one in results],
            [name.replace(" + ", " +\n") for name in COLUMNS],
            words=lambda ratio: f"{ratio:.2g} ×" if ratio < 10 else f"{ratio:.0f} ×",
            shade=lambda ratio: math.log2(ratio) / 5,
            title="How many times as fast as softmax attention" + ("; below 1 in the other colour" if slower else ""),
            row_label="batch × heads × tokens × dim, tables × hashes",
            column_label="",
            theme=theme,
        ),
        path.with_suffix(".svg"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", type=int, choices=range(len(SHAPES)), help="numbers of shapes, from 0")
    parser.add_argument("--out", type=Path, default=Path("results/grid"), help="folder for JSON and the heat map")
    parser.add_argument("--matches", action="store_true", help="time latest match and exact match beside ANNA")
    options = parser.parse_args()
    console = Console(width=150)
    chosen = [SHAPES[number] for number in options.shapes] if options.shapes else list(SHAPES)
    if options.matches:
        print_matches(console, chosen)
        return
    results = []
    for shape in track(chosen, "shapes", console=console, transient=True):
        accuracy = accuracy_of(shape)
        results.append({"shape": asdict(shape), "columns": measure(shape), "accuracy": asdict(accuracy)})
    table = Table(title=f"softmax / ANNA, {threads()} on both sides; ms of ANNA in brackets")
    for heading in (
        "batch × heads × tokens × dim, tables × hashes",
        *COLUMNS,
        "share of a true match",
        "missed at 0.99",
    ):
        table.add_column(heading, justify="left" if heading.startswith("batch") else "right")
    for one in results:
        cells = (f"{one['columns'][c]['ratio']:.2f} ({1e3 * one['columns'][c]['ANNA']:.1f})" for c in COLUMNS)
        worth = one["accuracy"]
        table.add_row(Shape(**one["shape"]).label, *cells, f"{worth['share']:.3f}", f"{worth['missed']:.1e}")
    console.print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    write_json({"machine": describe_machine(), "results": results}, options.out / "grid.json")
    draw(results, options.out / "grid")
    console.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
