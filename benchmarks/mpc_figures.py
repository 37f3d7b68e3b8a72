"""The measured figures of massively parallel computation: speed, memory, rounds over N, Ray compared with local.

A number is printed only after its answer was checked. `--plot FILE.svg` also draws rounds over N, and those of
KHop over k in a file beside it; `--ray` also compares the engines.
"""

import argparse
import time
import tracemalloc
from pathlib import Path

import numpy as np

from annattn.drawing import Axis, Line, chart, write_figure
from annattn.mpc import run
from annattn.mpc.protocols import AnnaAttention, Connectivity, ExactMatchAttention, InductionHead, KHop, Sort

SIZES = [2**e for e in range(10, 21)]


def best(function, times: int = 3) -> float:
    """The shortest of some runs, in seconds."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def sort_speed(n: int = 1_000_000) -> None:
    """Sort compared with NumPy's stable argsort of the same words."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**64, n, dtype=np.uint64)
    base = best(lambda: np.argsort(words, kind="stable"))
    for width in (1, 2):
        protocol = Sort(n, int(n**0.6), width=width)
        given = words if width == 1 else np.column_stack([words, np.arange(n, dtype=np.uint64)])
        result = run(protocol, given)
        assert np.array_equal(result.output, given[np.argsort(words, kind="stable")])
        assert result.trace.rounds == protocol.round_formula()
        seconds = best(lambda protocol=protocol, given=given: run(protocol, given))
        print(
            f"Sort n={n} width={width} s={protocol.limits.memory_words}: {seconds:.2f} s, "
            f"{seconds / base:.1f} x np.argsort ({base * 1e3:.0f} ms); rounds {protocol.rounds}"
        )


def resident(what: str) -> int:
    """The bytes of memory this process has (VmRSS) or had at most (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def khop_speed(letters: int, n: int = 2**20, k: int = 16) -> None:
    """Time and memory of KHop; with many letters nearly every jump leaves its machine."""
    protocol = KHop(n, int(n**0.6), k=k)
    words = np.random.default_rng(0).integers(0, letters, n, dtype=np.uint64)
    # On Linux this resets the peak.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    start = time.perf_counter()
    result = run(protocol, words)
    seconds = time.perf_counter() - start
    grown = resident("VmHWM") - before
    assert np.array_equal(result.output, protocol.oracle(words))
    tracemalloc.start()
    run(protocol, words)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(
        f"KHop n={n} k={k} s={protocol.limits.memory_words}, {letters} letters: {seconds:.1f} s; "
        f"rounds {protocol.rounds}; peak memory {peak / words.nbytes:.1f} x input as allocated, "
        f"{grown / words.nbytes:.1f} x as the process grew"
    )


def rounds_table() -> tuple[dict[str, list[int]], list[int]]:
    """Rounds for N from 2^10 to 2^20 at fixed ε, and those of KHop for k from 1 to 1024."""
    makers = {
        "Sort, s = N^0.6": lambda n: Sort(n, int(n**0.6)),
        "Sort, s = 2 N^0.7": lambda n: Sort(n, int(2 * n**0.7)),
        "InductionHead, s = 6 N^0.7": lambda n: InductionHead(n, int(6 * n**0.7)),
        "ExactMatchAttention, s = 10 N^0.7": lambda n: ExactMatchAttention(n, int(10 * n**0.7)),
        "AnnaAttention, 4 tables, s = 40 N^0.7": lambda n: AnnaAttention(n, int(40 * n**0.7), tables=4),
        "KHop, k = 16, s = 6 N^0.7": lambda n: KHop(n, int(6 * n**0.7), k=16),
        "Connectivity, s = 20 N^0.7": lambda n: Connectivity(n, int(20 * n**0.7)),
    }
    table = {}
    for name, make in makers.items():
        table[name] = [make(n).rounds for n in SIZES]
        # The table has the protocol's own count; runs at the smaller sizes confirm it.
        for n in SIZES[:3]:
            protocol = make(n)
            words = protocol.sample(np.random.default_rng(n))
            result = run(protocol, words)
            assert result.trace.rounds == protocol.rounds == protocol.round_formula()
            assert protocol.agrees(result.output, protocol.oracle(words))
        print(f"rounds for N = 2^10 … 2^20: {name}: {table[name]}")
    hops = [KHop(2**16, int(6 * 2 ** (16 * 0.7)), k=2**e).rounds for e in range(11)]
    print(f"rounds for k = 1, 2, 4 … 1024: KHop, N = 2^16: {hops}")
    return table, hops


def anna(n: int = 16_384, dim: int = 16, tables: int = 4) -> None:
    """AnnaAttention compared with bucket sums in NumPy, and how its machines grow."""
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, n, dim))
    planes = rng.standard_normal((dim, tables, 8))
    bits = [(np.einsum("nd,dtz->ntz", x, planes) > 0) @ (1 << np.arange(8)) for x in (query, key)]
    memory = int(40 * n**0.6)
    protocol = AnnaAttention(n, memory, tables=tables, value_dim=dim)
    words = protocol.encode(bits[0], bits[1], value)
    start = time.perf_counter()
    result = run(protocol, words)
    seconds = time.perf_counter() - start
    expected = np.zeros((n, dim))
    count = np.zeros(n)
    for t in range(tables):
        sums, counts = np.zeros((256, dim)), np.bincount(bits[1][:, t], minlength=256)
        np.add.at(sums, bits[1][:, t], value)
        expected += sums[bits[0][:, t]]
        count += counts[bits[0][:, t]]
    expected /= np.maximum(count, 1)[:, None]
    assert protocol.agrees(result.output, expected)
    sizes = np.array([2**e for e in range(12, 21)])
    machines = [AnnaAttention(int(m), int(40 * m**0.6), tables=tables, value_dim=dim).limits.machines for m in sizes]
    exponent = np.polyfit(np.log(sizes), np.log(machines), 1)[0]
    print(
        f"AnnaAttention n={n} dim={dim} tables={tables} s={memory}: {seconds:.1f} s, largest difference "
        f"{np.abs(result.output - expected).max():.1e}; rounds {protocol.rounds}, machines {protocol.limits.machines}; "
        f"machines grow as N^{exponent:.2f} at s = 40 N^0.6, the theorem's for constant tables and dim: N^0.4"
    )


def engines(n: int) -> None:
    """Ray compared with local."""
    protocol = Sort(n, int(n**0.6), width=2)
    words = protocol.sample(np.random.default_rng(0))
    here = run(protocol, words)
    there = run(protocol, words, engine="ray", shards=4)
    assert np.array_equal(here.output, there.output)
    assert here.trace == there.trace
    local = best(lambda: run(protocol, words))
    ray = best(lambda: run(protocol, words, engine="ray", shards=4))
    extra = (ray - local) / protocol.rounds * 1e3
    print(f"ray, 4 shards, Sort n={n}: {ray:.2f} s against {local:.2f} s, {extra:.0f} ms more per round; identical")


def plot(table: dict[str, list[int]], hops: list[int], path: Path) -> None:
    """Draw rounds over N, and those of KHop over k, on axes where a straight line means linear in a logarithm."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, rounds in table.items():
        alike.setdefault(tuple(rounds), []).append(name)
    # Protocols with the same rounds share one line, so that lines do not cover each other.
    over_n = [Line("; ".join(names), list(zip(SIZES, rounds, strict=True))) for rounds, names in alike.items()]
    over_k = [Line("KHop, N = 2^16", [(2**e, rounds) for e, rounds in enumerate(hops)])]
    for lines, x, name in ((over_n, "N", path), (over_k, "k", path.with_name(f"{path.stem}_over_k{path.suffix}"))):
        most = int(max(rounds for line in lines for _, rounds in line.points))
        step = max(1, 10 ** int(np.log10(most)) // 2)
        across = Axis(x, [(n, f"2^{int(n).bit_length() - 1}") for n, _ in lines[0].points], log=True)
        up = Axis("rounds", [(k, f"{k:,}") for k in range(0, most + step, step)])
        title = f"Rounds over {x}"
        write_figure(
            lambda theme, lines=lines, across=across, up=up, title=title: chart(
                lines, across, up, title=title, description="", width=1100, height=420, theme=theme
            ),
            name,
        )


def main() -> None:
    """All figures in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", metavar="FILE", type=Path)
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    for letters in (4, 100_000, 2**20):
        khop_speed(letters)
    sort_speed()
    rounds = rounds_table()
    anna()
    if options.ray:
        # Few records show what a round itself costs, many what moving them costs.
        for n in (2_000, 200_000):
            engines(n)
    if options.plot:
        plot(*rounds, options.plot)


if __name__ == "__main__":
    main()
