"""Theorem "MPC simulates EMA": O(L/(ε'−ε)) rounds, s = O(N^ε') words, O(N^(1+ε−ε')) machines for mH = N^ε.

Random L-layer transformers with two heads become protocols, which are run under their limits and compared with the
transformers, bit for bit. The paper counts the machines for the sorted lists, mN/s, but also names a token machine and
a meta-information machine for each of the N tokens. Each of those needs only O(m) words, so s/m of them can share a
machine, as they do here. Taken literally they would be N machines, more than N^(1+ε−ε').
"""

import numpy as np

from annattn.compiler import ExactMatch, Transformer, to_protocol
from annattn.compiler.to_protocol import TransformerProtocol
from annattn.mpc import run
from annattn.theorems.integers import integer_rows, integer_transformer
from annattn.theorems.verdict import Bound, Effort, Progress, Trials, Verdict, at_most, exponent, silent

__all__ = [
    "EPSILON",
    "EPSILON_PRIME",
    "HEADS",
    "ROUNDS",
    "as_protocol",
    "head_width",
    "rounds_bound",
    "row",
    "run_both",
]

EPSILON, EPSILON_PRIME, HEADS = 0.25, 0.75, 2
ROOM, ROUNDS = 48, 12
PLANNED = [(2 * m) ** 4 for m in range(2, 17)]
CASES = {"tiny": {256: 1}, "quick": {256: 10, 1296: 5, 4096: 3}, "full": {256: 100, 1296: 40, 4096: 20, 20_736: 5}}


def head_width(n: int) -> int:
    """The width m of a head, such that two heads make mH = N^ε.

    >>> head_width(4096)
    4
    """
    return round(n**EPSILON) // HEADS


def ema(n: int, layers: int, seed: int) -> Transformer:
    """A random L-layer EMA-transformer of two heads with mH = N^ε.

    >>> ema(256, 3, seed=0).sizes.layers
    3
    """
    return integer_transformer(ExactMatch(), layers=layers, heads=HEADS, width=head_width(n), seed=seed)


def as_protocol(transformer: Transformer, n: int, room: int) -> TransformerProtocol:
    """The transformer as a protocol on machines of room·N^ε' words.

    >>> as_protocol(ema(256, 2, seed=0), 256, ROOM).limits.memory_words
    3072
    """
    return to_protocol(transformer, n, int(room * n**EPSILON_PRIME), dim=HEADS * head_width(n))


def run_both(trials: Trials, transformer: Transformer, protocol: TransformerProtocol, seed: int) -> None:
    """Run the transformer and the protocol on one input; the trace must have the protocol's number of rounds.

    >>> trials, model = Trials(), ema(256, 1, seed=0)
    >>> run_both(trials, model, as_protocol(model, 256, ROOM), seed=0)
    >>> trials.equal
    1
    """
    rows = integer_rows(protocol.n, protocol.widths[0], seed)
    output, trace = run(protocol, protocol.encode(rows))
    trials.add(np.array_equal(output, transformer(rows).numpy()) and trace.rounds == protocol.rounds)


def rounds_bound(protocol: TransformerProtocol, layers: int, constant: float) -> Bound:
    """The rounds for L layers, at most the constant times L/(ε'−ε).

    >>> print(rounds_bound(as_protocol(ema(256, 2, seed=0), 256, ROOM), 2, constant=ROUNDS))
    rounds 17 ≤ 48 = 12·L/(ε'−ε) at N = 256, L = 2
    """
    limit, at = constant * layers / (EPSILON_PRIME - EPSILON), f"N = {protocol.n:,}, L = {layers}"
    return at_most("rounds", protocol.rounds, limit, f"{constant:g}·L/(ε'−ε)", at)


def row(effort: Effort = "quick", progress: Progress = silent) -> Verdict:
    """Theorem "MPC simulates EMA": constant rounds, N^(1+ε−ε') machines, and the transformer's own numbers.

    >>> row("tiny").holds
    True
    """
    trials, bounds = Trials(), []
    for n, count in CASES[effort].items():
        progress(f"N = {n:,}")
        for seed in range(count):
            layers = 1 + seed % 3
            transformer = ema(n, layers, seed)
            protocol = as_protocol(transformer, n, ROOM)
            run_both(trials, transformer, protocol, seed)
            bounds.append(rounds_bound(protocol, layers, ROUNDS))
    machines = []
    for n in PLANNED:
        protocol = as_protocol(ema(n, 2, seed=0), n, ROOM)
        machines.append(protocol.limits.machines)
        at, limit = f"N = {n:,}", n ** (1 + EPSILON - EPSILON_PRIME)
        bounds.append(rounds_bound(protocol, 2, ROUNDS))
        bounds.append(at_most("machines", machines[-1], limit, "N^(1+ε−ε')", at))
    return trials.verdict(
        "MPC simulates EMA",
        f"random transformers of 1 to 3 layers, {HEADS} heads, mH = N^{EPSILON:g}, to protocols with s = "
        f"{ROOM}·N^{EPSILON_PRIME:g}",
        sizes=list(CASES[effort]),
        planned=PLANNED,
        bounds=bounds,
        exponents=[exponent("machines", PLANNED, machines, 1 + EPSILON - EPSILON_PRIME, "1+ε−ε'")],
    )
