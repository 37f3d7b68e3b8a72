"""Protocols on Ray over data that the driver never holds: its peak memory, and what a round costs.

python -m benchmarks.ray_scale overhead
python -m benchmarks.ray_scale folders

Every answer is checked before a number is printed. Inputs are made and outputs are checked part by part, in other
processes, so that the memory of the driver is its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from annattn.mpc import PartFiles, run
from annattn.mpc.protocols import Sort
from benchmarks.mpc_figures import resident

PART = 1_000_000


def make(folder: Path, n: int, _: int) -> None:
    """Random words in parts of a million."""
    (folder / "in").mkdir(parents=True)
    for part, start in enumerate(range(0, n, PART)):
        words = np.random.default_rng(part).integers(0, 2**64, min(PART, n - start), dtype=np.uint64)
        np.save(folder / "in" / f"part-{part:05}.npy", words)


def verify(folder: Path, _: int, shards: int) -> None:
    """Sorted, and the same words: as many, with the same sum and the same exclusive or."""
    before, after = folder / "in", folder / f"out-{shards}"
    last = np.uint64(0)
    for path in PartFiles.open(after).paths:
        words = np.load(path)
        assert words[0] >= last
        assert (words[1:] >= words[:-1]).all()
        last = words[-1]
    totals = []
    for folder in (before, after):
        parts = PartFiles.open(folder)
        loaded = [np.load(path) for path in parts.paths]
        totals.append(
            (parts.records, sum(int(x.sum()) for x in loaded) % 2**64, np.bitwise_xor.reduce(np.concatenate(loaded)))
        )
    assert totals[0] == totals[1], totals


def drive(folder: Path, n: int, shards: int) -> None:
    """Sort a folder; print the time and how much this process grew, as JSON."""
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    run(Sort(1000, 200), range(1000), engine="ray")  # what is imported and started once
    # On Linux this resets the peak.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    start = time.perf_counter()
    result = run(Sort(n, int(n**0.6)), folder / "in", engine="ray", shards=shards, output=folder / f"out-{shards}")
    seconds = time.perf_counter() - start
    rounds, machines = result.trace.rounds, result.trace.limits.machines
    peak = resident("VmHWM")
    found = {"seconds": seconds, "grown": peak - before, "peak": peak, "rounds": rounds, "machines": machines}
    print(json.dumps(found))


def overhead(n: int, shards: int) -> None:
    """What a round costs more on Ray than in one process."""
    protocol = Sort(n, int(n**0.6))
    words = protocol.sample(np.random.default_rng(0))
    here = run(protocol, words)
    there = run(protocol, words, engine="ray", shards=shards)
    assert np.array_equal(here.output, there.output)
    assert here.trace == there.trace
    times = {"local": [], "ray": []}
    calls = {
        "local": lambda: run(protocol, words),
        "ray": lambda: run(protocol, words, engine="ray", shards=shards),
    }
    for _ in range(3):
        for engine, call in calls.items():
            start = time.perf_counter()
            call()
            times[engine].append(time.perf_counter() - start)
    extra = 1e3 * (min(times["ray"]) - min(times["local"])) / protocol.rounds
    print(
        f"Sort of {n:,} words, {shards} shards, {protocol.rounds} rounds: local {1e3 * min(times['local']):.0f} ms, "
        f"Ray {1e3 * min(times['ray']):.0f} ms, {extra:.0f} ms more per round; identical",
        flush=True,
    )


CHILDREN = {"make": make, "drive": drive, "verify": verify}
"""What runs in a process of its own."""


def child(what: str, folder: str, n: int, shards: int) -> str:
    """One of `CHILDREN`; returns what it printed."""
    arguments = [what, "--folder", folder, "--words", str(n), "--shards", str(shards)]
    command = [sys.executable, "-m", "benchmarks.ray_scale", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def main() -> None:
    """All sizes in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "folders", *CHILDREN])
    parser.add_argument("--words", type=int, nargs="*", default=[1_000_000, 3_000_000, 10_000_000, 30_000_000])
    parser.add_argument("--shards", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--folder", type=Path, help="where the data goes; by default a temporary folder")
    options = parser.parse_args()
    if options.what in CHILDREN:
        CHILDREN[options.what](options.folder, options.words[0], options.shards[0])
        return
    if options.what == "overhead":
        for n in (2_000, 200_000):
            for shards in options.shards:
                overhead(n, shards)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for n in options.words:
            at = f"{folder}/{n}"
            child("make", at, n, 0)
            for shards in options.shards:
                found = json.loads(child("drive", at, n, shards).splitlines()[-1])
                child("verify", at, n, shards)
                print(
                    f"Sort of {n:,} words ({8 * n / 2**20:.0f} MiB) on Ray, {shards} shards: {found['seconds']:.1f} s, "
                    f"{found['rounds']} rounds of {1e3 * found['seconds'] / found['rounds']:.0f} ms, "
                    f"{found['machines']} machines; the driver grew by {found['grown'] / 2**20:.0f} MiB "
                    f"to {found['peak'] / 2**20:.0f} MiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
