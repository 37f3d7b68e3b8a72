"""The measured figures of the compiler: k-hop as a transformer, 4,096 machines in memory, and widths against the lemma.

A number is printed only after its answer was checked. The random cases have a command of their own:
`python -m tests.compiler.cases --count 1000`.
"""

import argparse
import resource
import time

import numpy as np

from annattn.compiler import to_transformer, value_widths
from annattn.mpc import Limits
from annattn.mpc.protocols import KHop, Permute


def k_hop(inputs: int) -> None:
    """KHop as a transformer on random words."""
    protocol = KHop(1024, 512, k=16)
    model = to_transformer(protocol)
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(inputs):
        words = protocol.sample(rng)
        start = time.perf_counter()
        output = model.run(words)
        seconds.append(time.perf_counter() - start)
        assert np.array_equal(output, protocol.oracle(words))
    print(f"KHop, N = 1,024, k = 16, s = 512: {model.sizes}")
    print(f"  equal on {inputs} inputs, {np.median(seconds):.1f} s each, the slowest {max(seconds):.1f} s")


def many_machines(attention: str) -> None:
    """Permuting 32,768 records on 4,096 machines of 16 words of 64 bits."""
    protocol = Permute(32768, 16)
    assert protocol.limits.machines == 4096
    start = time.perf_counter()
    model = to_transformer(protocol, attention)  # type: ignore[arg-type]
    words = protocol.sample(np.random.default_rng(0))
    assert np.array_equal(model.run(words), protocol.oracle(words))
    seconds, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"Permute on 4,096 machines of 16 words, {attention}: {model.sizes}")
    print(f"  equal, {seconds:.1f} s with compiling, peak {peak:.2f} GiB resident so far")


def widths() -> None:
    """Value widths of practical codes, and α⁴Δ log q and α²Δ log q."""
    print("machines  words  partners  heads   practical       α²Δ log q       α⁴Δ log q")
    for machines, words, partners in (
        (64, 4, None),
        (4096, 16, None),
        (4096, 16, 3),
        (2**16, 64, None),
        (2**16, 64, 7),
    ):
        limits = Limits(machines, words, 32, partners)
        found = value_widths(limits)
        heads = min(words, machines, machines if partners is None else partners + 1)
        sizes = f"{found.built:11d} {found.square:15d} {found.lemma:15d}"
        print(f"{machines:8d} {words:6d} {partners or '-':>9} {heads:6d} {sizes}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20, help="how many inputs k-hop is run on")
    chosen = parser.parse_args()
    widths()
    k_hop(chosen.inputs)
    for name in ("ema", "anna"):
        many_machines(name)
